"""Deployments: what they hold, and what is refused."""

import numpy as np
import pytest

from servegym.errors import DeploymentError
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import SECONDS
from tests.simulator.scenes import requests, scene

pytestmark = pytest.mark.nojit


@pytest.mark.parametrize(("field", "value", "right"), [
    ("engines", 0, "a whole number from 1 to "),
    ("engines", 1.5, "a whole number from 1 to "),
    ("total_blocks", 0, "a whole number from 1 to "),
    ("block_tokens", -1, "a whole number from 1 to "),
    ("engines", 10**6, "a whole number from 1 to "),
    ("total_blocks", 2**31, "a whole number from 1 to "),
    ("watermark", -0.1, "0 or more and below 1"),
    ("watermark", 1.0, "0 or more and below 1"),
    ("watermark", np.nan, "0 or more and below 1"),
])  # fmt: skip
def test_what_is_refused(field, value, right):
    with pytest.raises(DeploymentError) as error:
        Deployment(SECONDS, SECONDS, **({"total_blocks": 10, "name": "mine"} | {field: value}))
    assert str(error.value).startswith(f"mine: {field} is {value}; it should be {right}")


def test_a_request_larger_than_memory():
    # The last token is never cached: 4 + 7 - 1 = 10 fit, 4 + 8 - 1 do not.
    workload = requests(prompt_tokens=[1, 4], output_tokens=[1, 7])
    assert Simulation(scene(workload, total_blocks=10)).run().summary["finished"] == 2
    workload = requests(prompt_tokens=[1, 4, 4], output_tokens=[1, 7, 8])
    with pytest.raises(DeploymentError) as error:
        Simulation(scene(workload, total_blocks=10))
    assert str(error.value) == (
        "workload 'workload', request 2: 4 prompt + 8 output tokens do not fit the KV cache of deployment, "
        "which holds 10 tokens; leave out longer requests (--max-total-tokens 10) or give it more blocks"
    )


@pytest.mark.parametrize(("watermark", "blocks"), [(0.0, 0), (0.01, 0), (0.05, 2), (0.5, 29)])
def test_the_watermark_is_rounded_down(watermark, blocks):
    scenario = scene(requests(prompt_tokens=[1]))
    deployment = Deployment(SECONDS, SECONDS, total_blocks=59, watermark=watermark)
    simulation = Simulation(type(scenario)(scenario.workload, deployment, scenario.scheduler))
    assert simulation.arrays.engines[0].watermark_blocks == blocks


def test_more_engines_than_requests():
    result = Simulation(scene(requests(prompt_tokens=[3, 4]), engines=5)).run()
    assert result.requests["engine"].tolist() == [0, 1]
    assert result.engines["iterations"].tolist() == [1, 1, 0, 0, 0] and result.summary["cost_engine_s"] == 25
