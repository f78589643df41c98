"""An engine's own limits of tokens and sequences, by hand; tests/test_agreement.py has them at random."""

import dataclasses
from typing import Any

import pytest

from servegym.baselines.registry import scheduler
from servegym.errors import DeploymentError
from servegym.evaluation.identity import deployment_digest
from servegym.scenarios.fleets import deployment_of
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import linear
from tests.timelines import iterations

SECOND = linear(t_c=1.0)
POOL = Deployment(SECOND, SECOND, 100, block_tokens=1, watermark=0.0)
THREE = {"arrival_s": 0.0, "prompt_tokens": 4, "output_tokens": [2, 2, 2]}


def batches(policy: str, **own: int) -> list[list[tuple[int, int]]]:
    pool = dataclasses.replace(POOL, **own)
    return [
        i.batch
        for i in iterations(Simulation(Scenario(Workload.from_columns(THREE), pool, scheduler(policy)), True).run())
    ]


@pytest.mark.nojit
@pytest.mark.parametrize("policy", ["vllm-v1", "slide-batching"])
def test_a_batch_has_no_more_tokens_than_the_engine_takes(policy: str) -> None:
    assert len(batches(policy)[0]) == 3
    limited = batches(policy, max_num_batched_tokens=6)
    assert limited[0] == [(0, 4), (1, 2)]
    assert max(sum(tokens for _, tokens in batch) for batch in limited) == 6


@pytest.mark.nojit
def test_the_lower_of_two_budgets_counts() -> None:
    assert batches("vllm-v1:max_num_batched_tokens=5", max_num_batched_tokens=6)[0] == [(0, 4), (1, 1)]
    assert batches("vllm-v1:max_num_batched_tokens=7", max_num_batched_tokens=6)[0] == [(0, 4), (1, 2)]


@pytest.mark.nojit
def test_no_more_requests_hold_memory_than_the_engine_takes() -> None:
    limited = batches("vllm-v1", max_num_seqs=2)
    assert limited[:2] == [[(0, 4), (1, 4)], [(0, 1), (1, 1)]]
    assert limited[2:] == [[(2, 4)], [(2, 1)]]


@pytest.mark.parametrize("field", ["max_num_batched_tokens", "max_num_seqs"])
@pytest.mark.parametrize("value", [0, -1, 2.5, 2**31])
def test_a_limit_that_is_none_is_refused(field: str, value: Any) -> None:
    with pytest.raises(DeploymentError, match=f"{field} is {value}; it should be a whole number"):
        dataclasses.replace(POOL, **{field: value})


def test_a_spec_has_them_and_results_depend_on_them() -> None:
    pool = deployment_of(ServingSpec().replaced(max_num_batched_tokens=2048, max_num_seqs=64))
    assert isinstance(pool, Deployment)
    assert (pool.max_num_batched_tokens, pool.max_num_seqs) == (2048, 64)
    digests = [deployment_digest(deployment_of(ServingSpec().replaced(**own))) for own in (
        {}, {"max_num_batched_tokens": 2048}, {"max_num_seqs": 2048}
    )]  # fmt: skip
    assert len(set(digests)) == 3
