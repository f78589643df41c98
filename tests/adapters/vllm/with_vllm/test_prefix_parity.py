"""vLLM's own scheduler with prefix caching, its default, and the simulator's vllm-v1: the same at every step."""

import dataclasses

import pytest

from experiments.engines.prefix_parity import compared, first_difference, found_share, sessions
from experiments.engines.vllm_driving import Limits
from tests.adapters.vllm.with_vllm.served import PROFILE

CACHING = Limits(4000, max_num_batched_tokens=1024, prefix_caching=True)


@pytest.mark.parametrize(("limits", "seed", "preempts", "overwrites"), [
    pytest.param(CACHING, 1, False, False, id="roomy"),
    pytest.param(dataclasses.replace(CACHING, blocks=900), 2, False, True, id="overwriting"),
    pytest.param(dataclasses.replace(CACHING, blocks=400), 3, True, True, id="pressure"),
    pytest.param(
        dataclasses.replace(CACHING, blocks=500, max_num_batched_tokens=200, max_num_seqs=128),
        4,
        True,
        True,
        id="chunked",
    ),
    pytest.param(dataclasses.replace(CACHING, blocks=500, watermark=0.05), 5, False, True, id="watermark"),
])  # fmt: skip
def test_finds_and_overwrites_the_same(limits: Limits, seed: int, preempts: bool, overwrites: bool) -> None:
    workload = sessions(seed, 60, 4.0)
    served, steps, result = compared(workload, limits, PROFILE)
    assert first_difference(served, steps) is None
    assert len(served.steps) > 1000 and found_share(steps, workload) > 0.1
    assert not preempts or sum(len(step.preempted) for step in served.steps) >= 10
    assert not overwrites or sum(len(step.overwritten) for step in served.steps) >= 1000
    assert result.arrays.status[0].finished == len(workload)
