"""Ranks that wait for each other (docs/cluster_rules.md, "Lockstep"); at random: tests/test_cluster_agreement.py."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegym.baselines.registry import router, scheduler
from servegym.errors import DeploymentError
from servegym.evaluation.identity import deployment_digest
from servegym.latency_models.model import LatencyModel
from servegym.scenarios.fleets import deployment_of
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.features.lockstep import delay_ends
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.events import pop, push
from servegym.simulator.records.types import EVENT, EVENT_BATCH_END, EVENT_KV_ARRIVAL, RUN_STATUS
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.whole_runs import finished
from tests.timelines import Iteration, iterations

# A prefill takes a second a token and a decode one second.
BY_TOKEN = LatencyModel.from_values("linear", {"a_p": 0, "b_p": 0, "c_p": 1.0, "a_d": 0, "b_d": 1.0, "t_c": 0.0})
PAIR = Deployment(BY_TOKEN, BY_TOKEN, 100, 2, block_tokens=1, watermark=0.0, lockstep=2)


def served(columns: dict[str, Any], pool: Deployment = PAIR, policy: str = "vllm-v1", **more: Any) -> Simulation:
    """Request i goes to engine i mod n, where no router is named."""
    return finished(Scenario(Workload.from_columns(columns), pool, scheduler(policy), **more))


def spans(simulation: Simulation) -> list[tuple[int, float, float]]:
    return [(i.engine, i.start_s, i.end_s) for i in iterations(simulation.result())]


@pytest.mark.nojit
def test_each_rank_takes_the_time_of_the_slowest() -> None:
    columns = {"arrival_s": 0.0, "prompt_tokens": [4, 1], "output_tokens": [1, 2]}
    together = served(columns)
    assert spans(together) == [(0, 0.0, 4.0), (1, 0.0, 4.0), (1, 4.0, 5.0)]
    assert together.arrays.outcomes["first_token_s"].tolist() == [4.0, 4.0]
    assert together.arrays.engines["busy_s"].tolist() == [4.0, 5.0]
    apart = served(columns, dataclasses.replace(PAIR, lockstep=1))
    assert spans(apart) == [(0, 0.0, 4.0), (1, 0.0, 1.0), (1, 1.0, 2.0)]


@pytest.mark.nojit
def test_what_comes_to_an_idle_rank_waits_for_the_iteration_of_the_others() -> None:
    columns = {"arrival_s": [0.0, 1.5], "prompt_tokens": [4, 1], "output_tokens": 1}
    assert spans(served(columns)) == [(0, 0.0, 4.0), (1, 4.0, 5.0)]


@pytest.mark.nojit
def test_groups_do_not_wait_for_each_other() -> None:
    columns = {"arrival_s": 0.0, "prompt_tokens": [4, 1, 2, 3], "output_tokens": 1}
    four = dataclasses.replace(PAIR, engines=4)
    assert spans(served(columns, four)) == [(0, 0.0, 4.0), (1, 0.0, 4.0), (2, 0.0, 3.0), (3, 0.0, 3.0)]


@pytest.mark.nojit
def test_a_rank_that_fails_leaves_the_others_at_work_or_free() -> None:
    """Engine 0 fails at 1 s. A group that started ends as planned; one that waited for engine 0 starts at once."""
    columns = {"arrival_s": 0.0, "prompt_tokens": [4, 1], "output_tokens": 1}
    at_work = served(columns, incidents=(Incident(1.0, 0, "fail"),))
    assert spans(at_work)[1:] == [(1, 0.0, 4.0), (1, 4.0, 8.0)]
    columns |= {"arrival_s": [0.0, 0.5]}
    free = served(columns, incidents=(Incident(1.0, 0, "fail"),))
    assert spans(free)[1][:2] == (1, 1.0)


@pytest.mark.nojit
def test_with_async_scheduling_what_is_formed_starts_when_the_slowest_has_ended() -> None:
    """Request 2 comes to engine 0 at 1 s, whose next batch is formed by then; request 3 to engine 1, which forms none
    while its group runs an iteration without it."""
    columns = {"arrival_s": [0.0, 1.0, 1.0, 1.0], "prompt_tokens": [4, 2, 1, 1], "output_tokens": [3, 1, 1, 1]}
    simulation = served(columns, dataclasses.replace(PAIR, async_scheduling=True))
    found = [(i.engine, i.start_s, i.end_s, i.batch) for i in iterations(simulation.result())]
    assert found == [
        (0, 0.0, 4.0, [(0, 4)]),
        (0, 4.0, 7.0, [(0, 1)]),
        (1, 4.0, 7.0, [(1, 2), (3, 1)]),
        (0, 7.0, 9.0, [(0, 1), (2, 1)]),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_ends_that_are_put_off_leave_the_events_in_order(seed: int) -> None:
    random = np.random.default_rng(seed)
    events, status = np.zeros(40, EVENT), np.zeros(1, RUN_STATUS)[0]
    times_s = random.integers(0, 12, 30).astype(float)
    kinds = np.where(random.random(30) < 0.2, EVENT_KV_ARRIVAL, EVENT_BATCH_END)
    for index, (time_s, kind) in enumerate(zip(times_s, kinds, strict=True)):
        push(events, status, time_s, kind, index)
    put_off = (kinds == EVENT_BATCH_END) & (np.arange(30) >= 10) & (np.arange(30) < 20)
    delay_ends(events, status.events, 10, 20)
    times_s[put_off] = times_s[put_off].max()
    expected = sorted(zip(times_s, kinds, range(30), strict=True))
    for one in expected:
        assert (events[0].time_s, events[0].kind, events[0].index) == one
        pop(events, status)


@st.composite
def columns_of(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.integers(2, 40))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return {
        "arrival_s": np.sort(random.choice([0.0, 1.0, 2.5, 7.0, 30.0], count)),
        "prompt_tokens": random.integers(1, 60, count),
        "output_tokens": random.choice([1, 2, 7, 20], count),
    }


@settings(max_examples=60)
@given(columns_of(), st.sampled_from([(2, 2), (3, 3), (4, 2), (6, 3)]), st.booleans())
def test_a_group_starts_and_ends_all_its_iterations_together(
    columns: dict[str, Any], sizes: tuple[int, int], ahead: bool
) -> None:
    """And all is served, each token once; stepping gives the same bytes."""
    engines, ranks = sizes
    pool = dataclasses.replace(PAIR, engines=engines, lockstep=ranks, async_scheduling=ahead)
    scenario = Scenario(Workload.from_columns(columns), pool, scheduler("vllm-v1"), router=router("min-load"))
    simulation, stepped = Simulation(scenario, True), Simulation(scenario, True)
    simulation.run()
    while stepped.step():
        pass
    assert simulation.arrays.timeline.tobytes() == stepped.arrays.timeline.tobytes()
    outcomes, requests = simulation.arrays.outcomes, simulation.arrays.requests
    assert np.isfinite(outcomes["finish_s"]).all() and not outcomes["under_way"].any()
    np.testing.assert_array_equal(
        requests["num_output_tokens"], np.broadcast_to(columns["output_tokens"], len(requests))
    )
    by_group: dict[int, list[Iteration]] = {}
    for one in iterations(simulation.result()):
        by_group.setdefault(one.engine // ranks, []).append(one)
    for ran in by_group.values():
        together = {(one.start_s, one.end_s) for one in ran}
        for (_, ended_s), (started_s, _) in itertools.pairwise(sorted(together)):
            assert started_s >= ended_s
        assert len({(one.engine, one.start_s) for one in ran}) == len(ran)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(DeploymentError, match="lockstep is 2; it should divide the number of engines, 3"):
        dataclasses.replace(PAIR, engines=3)
    with pytest.raises(DeploymentError, match="flow-prefill suspends batches, and engines in lockstep end theirs"):
        served({"arrival_s": 0.0, "prompt_tokens": [4, 1], "output_tokens": 1}, policy="flow-prefill")


def test_a_spec_has_it() -> None:
    spec = ServingSpec().replaced(engines=4, lockstep=2)
    assert [pool.lockstep for pool in deployment_of(spec).pools] == [2]
    apart, together = (dataclasses.replace(PAIR, lockstep=ranks) for ranks in (1, 2))
    assert deployment_digest(apart) != deployment_digest(together)
