"""What credit by request refuses."""

import pytest

pytest.importorskip("stable_baselines3")

import servegym
from servegym.errors import TrainingError


@pytest.mark.parametrize("model", [3, None, "model.zip"])
def test_credit_is_for_a_model_of_stable_baselines(model):
    with pytest.raises(TrainingError, match=r"^credit by request is for PPO or MaskablePPO on Sb3VecEnv"):
        servegym.credit_requests(model)
    with pytest.raises(TrainingError, match=r"horizon_s '30', trace_s 1\.0; both should be above 0, in s"):
        servegym.credit_requests(model, horizon_s="30")
