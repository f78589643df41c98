"""Asynchronous scheduling (docs/feature_rules.md), by hand; tests/test_agreement.py has it at random."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from servegym.baselines.registry import router, scheduler
from servegym.errors import DeploymentError
from servegym.evaluation.identity import deployment_digest
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.features.speculation import Speculation
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.inputs.deployment import Deployment, HostMemory
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.prefixes import PrefixStore
from servegym.simulator.runs.loops import WHOLE
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import linear
from tests.simulator.whole_runs import finished
from tests.timelines import iterations

SECOND = linear(t_c=1.0)
POOL = Deployment(SECOND, SECOND, 100, block_tokens=1, watermark=0.0, async_scheduling=True)


def served(columns: dict[str, Any], pool: Deployment = POOL, policy: str = "vllm-v1", **more: Any) -> Simulation:
    """Every batch takes 1 s."""
    return finished(Scenario(Workload.from_columns(columns), pool, scheduler(policy), **more))


def batches(simulation: Simulation) -> list[tuple[float, list[tuple[int, int]]]]:
    return [(i.start_s, i.batch) for i in iterations(simulation.result())]


@pytest.mark.nojit
def test_what_arrives_while_a_batch_runs_waits_for_the_next_one_too():
    columns = {"arrival_s": [0.0, 0.5], "prompt_tokens": 4, "output_tokens": [3, 1]}
    asynchronous = served(columns)
    assert batches(asynchronous) == [(0.0, [(0, 4)]), (1.0, [(0, 1)]), (2.0, [(0, 1), (1, 4)])]
    assert asynchronous.arrays.outcomes["finish_s"].tolist() == [3.0, 3.0]
    at_once = served(columns, dataclasses.replace(POOL, async_scheduling=False))
    assert batches(at_once) == [(0.0, [(0, 4)]), (1.0, [(0, 1), (1, 4)]), (2.0, [(0, 1)])]
    assert at_once.arrays.outcomes["finish_s"].tolist() == [3.0, 2.0]


@pytest.mark.nojit
def test_where_nothing_is_formed_the_engine_tries_again_when_the_iteration_has_ended():
    """The last token is under way from 1 s on; a request that arrives at 1.5 s is formed and started at 2 s."""
    columns = {"arrival_s": [0.0, 1.5], "prompt_tokens": 4, "output_tokens": [2, 1]}
    assert batches(served(columns)) == [(0.0, [(0, 4)]), (1.0, [(0, 1)]), (2.0, [(1, 4)])]


@pytest.mark.nojit
def test_a_token_under_way_comes_out_though_its_request_has_lost_its_memory():
    """Nine blocks: at 1 s request 0 takes the eighth and ninth for its third token, and 1 gives up its own."""
    columns = {"arrival_s": 0.0, "prompt_tokens": [4, 3], "output_tokens": [4, 3]}
    simulation = served(columns, dataclasses.replace(POOL, total_blocks=9))
    lost = [(i.start_s, i.evicted) for i in iterations(simulation.result()) if i.evicted]
    assert lost == [(2.0, [1])]
    outcomes = simulation.arrays.outcomes
    assert outcomes["evictions"].tolist() == [0, 1]
    assert outcomes["finish_s"].tolist() == [4.0, 5.0]
    assert simulation.arrays.requests["num_output_tokens"].tolist() == [4, 3]
    assert not outcomes["under_way"].any()
    assert simulation.arrays.engines[0].free_blocks == 9


def random_columns(seed: int, count: int = 40) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "arrival_s": np.cumsum(random.exponential(0.3, count)), "prompt_tokens": random.integers(1, 60, count),
        "output_tokens": random.integers(1, 30, count), "ttft_slo_s": 20.0, "tpot_slo_s": 2.0,
    }  # fmt: skip


def test_stepping_gives_the_same_bytes():
    scenario = Scenario(Workload.from_columns(random_columns(1)), POOL, scheduler("slide-batching"))
    whole, stepped = Simulation(scenario, True), Simulation(scenario, True)
    whole.run()
    while stepped.step():
        pass
    for name in ("requests", "outcomes", "engines", "timeline"):
        assert getattr(whole.arrays, name).tobytes() == getattr(stepped.arrays, name).tobytes(), name
    assert whole.loop is WHOLE


def test_what_is_out_at_a_pause_is_not_what_is_under_way():
    simulation = served(random_columns(2), until_s=9.5)
    under_way = simulation.arrays.outcomes["under_way"]
    assert under_way.any()
    out = simulation.result().requests["num_output_tokens"]
    requests = simulation.arrays.requests["num_output_tokens"]
    assert int(np.sum(out)) == int(requests.sum() - under_way.sum())
    assert int(np.sum(out)) == int(simulation.arrays.engines["totals"]["num_output_tokens"].sum())


@pytest.mark.parametrize(("change", "what"), [
    ({"host": HostMemory(10, 0.0, 0.0)}, "host memory"),
    ({"prefix_store": PrefixStore(100, 0.0)}, "a prefix store"),
    ({"speculation": Speculation(2, 0.5)}, "speculation"),
    ({"role": "prefill"}, "the role 'prefill'"),
])  # fmt: skip
def test_what_is_not_simulated_with_it_is_refused(change: dict[str, Any], what: str):
    with pytest.raises(DeploymentError, match=f"async_scheduling is not simulated with {what}; leave out one"):
        dataclasses.replace(POOL, **change)


def test_what_takes_requests_back_or_suspends_batches_is_refused():
    with pytest.raises(DeploymentError, match="requests are taken back from engines"):
        served(random_columns(3), dataclasses.replace(POOL, engines=2), incidents=(Incident(1.0, 0, "fail"),))
    with pytest.raises(DeploymentError, match="flow-prefill suspends batches"):
        served(random_columns(3), policy="flow-prefill")


def test_engines_of_a_fleet_and_a_spec_have_it():
    fleet = dataclasses.replace(POOL, engines=3)
    simulation = served(random_columns(4, 80), fleet, router=router("min-load"))
    assert np.isfinite(simulation.arrays.outcomes["finish_s"]).all()
    assert set(simulation.arrays.requests["engine"].tolist()) == {0, 1, 2}
    assert deployment_digest(fleet) != deployment_digest(dataclasses.replace(fleet, async_scheduling=False))
    spec = ServingSpec().replaced(async_scheduling=True)
    assert spec.fleet.async_scheduling
