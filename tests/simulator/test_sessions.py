"""Arrivals that depend on completions (docs/sessions.md): turns, clients, max_concurrency."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegym.baselines.registry import router_names, scheduler, scheduler_names
from servegym.errors import PredictorError, WorkloadError
from servegym.simulator.features.session_dependencies import SessionDependencies, following_of
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.predictors import Predictor
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.prefixes import Prompts
from servegym.simulator.runs.simulation import Simulation
from tests.seeds import drawn
from tests.simulator.forming import linear
from tests.simulator.whole_runs import finished
from tests.strategies import cluster_scenarios, scenarios, sessions_of

FOREVER_S = 20_000.0


def workload_of(arrival_s, after, think_s=0.0, **columns) -> Workload:
    n = len(after)
    given_columns = {"arrival_s": arrival_s, "prompt_tokens": np.full(n, 4), "output_tokens": np.full(n, 2)} | columns
    return Workload.from_columns(given_columns, turns=SessionDependencies(np.array(after), np.broadcast_to(think_s, n)))


def served(workload: Workload, until_s=FOREVER_S, engines=1, incidents=(), **limits) -> Simulation:
    """A batch takes 1 s, whatever is in it; a request of two tokens 2 s."""
    device = linear(t_c=1.0)
    deployment = Deployment(device, device, 100, engines, 16)
    scenario = Scenario(workload, deployment, scheduler("vllm-v1"), until_s=until_s, incidents=incidents, **limits)
    return finished(scenario)


def arrivals(simulation: Simulation) -> list[float]:
    return simulation.arrays.requests["arrival_s"].tolist()


# By hand


@pytest.mark.nojit
def test_a_turn_comes_when_the_last_has_ended_and_there_was_time_to_think():
    simulation = served(workload_of([0.5, 0, 0], [-1, 0, 1], [9, 0.25, 3.0]))
    assert arrivals(simulation) == [0.5, 2.75, 7.75]
    table = simulation.result().requests
    assert table["ttft_s"].tolist() == [1.0, 1.0, 1.0]
    assert table["session"].tolist() == [0, 0, 0] and table["after"].tolist() == [-1, 0, 1]
    assert table["came_s"].tolist() == table["arrival_s"].tolist()
    np.testing.assert_array_equal(simulation.arrays.requests["first_deadline_s"], table["arrival_s"] + 1.0)


@pytest.mark.nojit
def test_several_may_follow_one():
    simulation = served(workload_of([0, 0, 0, 0], [-1, 0, 0, 1], [0, 1.0, 0.0, 0.0]))
    assert arrivals(simulation) == [0.0, 3.0, 2.0, 5.0]


@pytest.mark.nojit
def test_a_closed_loop_of_one_client_serves_one_after_another():
    workload = Workload.from_columns({"arrival_s": np.zeros(4), "prompt_tokens": 4, "output_tokens": 2})
    for limits in ({"clients": 1}, {"max_concurrency": 1}):
        simulation = served(workload, **limits)
        assert arrivals(simulation) == [0.0, 2.0, 4.0, 6.0]
        assert simulation.result().requests["came_s"].tolist() == [0.0] * 4
    assert arrivals(served(workload, max_concurrency=3)) == [0.0, 0.0, 0.0, 2.0]


@pytest.mark.nojit
def test_a_client_keeps_its_session_and_a_turn_waits_only_for_concurrency():
    # Two sessions of two turns; the second may begin when the first is over, although nothing runs while one thinks.
    workload = workload_of([0, 0, 0, 0], [-1, -1, 0, 1], 10.0)
    assert arrivals(served(workload, clients=1)) == [0.0, 14.0, 12.0, 26.0]
    assert arrivals(served(workload, max_concurrency=1)) == [0.0, 2.0, 12.0, 14.0]
    # What came first is sent first: the turn (at 2) before the session that comes at 3.
    workload = workload_of([0, 0, 3, 0], [-1, -1, -1, 0])
    assert arrivals(served(workload, max_concurrency=1)) == [0.0, 2.0, 6.0, 4.0]


@pytest.mark.nojit
def test_a_turn_follows_when_its_predecessor_finally_finishes():
    incidents = (Incident(1.5, 0, "fail"), Incident(20.0, 0, "return"))
    simulation = served(workload_of([0, 0], [-1, 0]), incidents=incidents)
    assert arrivals(simulation) == [0.0, 21.0]  # its token that was out stays out


@pytest.mark.nojit
def test_what_never_finishes_is_never_followed():
    simulation = served(workload_of([0, 0, 0], [-1, -1, 0]), incidents=(Incident(1.5, 0, "fail"),), max_concurrency=1)
    result = simulation.result()
    assert result.summary["requests"] == 1 and result.summary["finished"] == 0
    assert result.requests["request"].tolist() == [0]


@pytest.mark.nojit
def test_up_to_a_time_only_what_has_arrived_counts():
    result = served(workload_of([0, 1, 0, 0], [-1, -1, 0, 1]), until_s=2.5).result()
    assert result.requests["request"].tolist() == [0, 1, 2]
    assert result.summary["ideal_gain"] == result.requests["ideal_gain"].sum()


# What holds for all


def check_front(simulation: Simulation) -> None:
    scenario, arrays = simulation.scenario, simulation.arrays
    workload, turns = scenario.workload, scenario.workload.turns
    arrival_s, finish_s = arrays.requests["arrival_s"], arrays.outcomes["finish_s"]
    np.testing.assert_array_equal(arrays.requests["num_output_tokens"], workload.table["output_tokens"])
    assert np.isfinite(finish_s).all()
    assert arrays.status[0].front.requests == arrays.status[0].front.sessions == arrays.status[0].front.events == 0
    came_s = workload.table["arrival_s"].copy()
    session = np.arange(len(workload)) if turns is None else turns.session
    if turns is not None:
        follows = turns.after >= 0
        came_s[follows] = finish_s[turns.after[follows]] + turns.think_s[follows]
    assert (arrival_s >= came_s).all()
    if scenario.clients is None and scenario.max_concurrency is None:
        np.testing.assert_array_equal(arrival_s, came_s)
    np.testing.assert_array_equal(arrays.outcomes["ready_s"], arrival_s)
    table = workload.table
    slo_s = np.where(np.isfinite(table["ttlt_slo_s"]), table["ttlt_slo_s"], table["ttft_slo_s"])
    np.testing.assert_array_equal(arrays.requests["first_deadline_s"], arrival_s + slo_s)
    if scenario.max_concurrency is not None:
        assert most_at_once(arrival_s, finish_s) <= scenario.max_concurrency
    if scenario.clients is not None:
        begin_s, end_s = arrival_s[np.unique(session)], np.full(len(workload), -np.inf)
        np.maximum.at(end_s, session, finish_s)
        assert most_at_once(begin_s, end_s[np.unique(session)]) <= scenario.clients


def most_at_once(begin_s: np.ndarray, end_s: np.ndarray) -> int:
    """What ends at an instant has ended before another begins."""
    return max(int(((begin_s <= at_s) & (end_s > at_s)).sum()) for at_s in begin_s)


@pytest.mark.parametrize("name", scheduler_names())
@drawn(40, slow=True)
def test_no_request_arrives_early_under_any_scheduler(name, data):
    scenario = data.draw(sessions_of(scenarios(name)))
    simulation = Simulation(scenario)
    simulation.run()
    check_front(simulation)


@pytest.mark.parametrize("name", router_names())
@drawn(40, slow=True)
def test_no_request_arrives_early_under_any_router(name, data):
    scenario = data.draw(sessions_of(cluster_scenarios(name)))
    simulation = Simulation(scenario)
    simulation.run()
    check_front(simulation)


@pytest.mark.slow
@settings(max_examples=60)
@given(data=st.data())
def test_stepping_gives_the_same_bytes(data):
    scenario = data.draw(sessions_of(cluster_scenarios(data.draw(st.sampled_from(router_names())))))
    whole, stepped = Simulation(scenario, True), Simulation(scenario, True)
    whole.run()
    while stepped.advance_to(7):
        pass
    for name in ("requests", "outcomes", "engines", "timeline"):
        assert getattr(whole.arrays, name).tobytes() == getattr(stepped.arrays, name).tobytes(), name


@pytest.mark.slow
@settings(max_examples=60)
@given(data=st.data())
def test_limits_that_none_meets_change_nothing(data):
    """But the number of a request's session, which session-hash routes by, and where its last request was sent."""
    routers = [name for name in router_names() if name != "session-hash"]
    scenario = data.draw(cluster_scenarios(data.draw(st.sampled_from(routers))))
    scenario = dataclasses.replace(scenario, predictor=None)
    n = len(scenario.workload)
    turns = SessionDependencies(np.full(n, -1), np.zeros(n))
    limited = dataclasses.replace(
        scenario, workload=dataclasses.replace(scenario.workload, turns=turns), clients=n, max_concurrency=n
    )
    runs = [Simulation(one, True) for one in (scenario, limited)]
    for run in runs:
        run.run()
    np.testing.assert_array_equal(runs[1].arrays.requests["session"], np.arange(n))
    for run in runs:
        run.arrays.requests["session"] = run.arrays.requests["session_engine"] = -1
    for name in ("requests", "outcomes", "engines", "timeline"):
        assert getattr(runs[0].arrays, name).tobytes() == getattr(runs[1].arrays, name).tobytes(), name


@settings(max_examples=60)
@given(data=st.data())
def test_a_policy_does_not_see_what_has_not_arrived(data):
    """What is in a queue has arrived."""
    scenario = data.draw(sessions_of(scenarios(data.draw(st.sampled_from(scheduler_names())))))
    simulation = Simulation(scenario)
    for _ in range(data.draw(st.integers(0, 30))):
        if not simulation.step():
            return
        status, requests = simulation.arrays.status[0], simulation.arrays.requests
        e = status.deciding_engine
        queue = simulation.arrays.queues[e, : simulation.arrays.engines[e].queue_length]
        assert np.isfinite(requests["arrival_s"][queue]).all()
        assert (requests["arrival_s"][queue] <= status.now_s).all()


# Which request follows which


@pytest.mark.parametrize(("after", "think_s", "message"), [
    ([-1, 5], [0, 0], "request 1: it follows request 5; there are 0 to 1"),
    ([-1, -2], [0, 0], "request 1: it follows request -2"),
    ([1, 0], [0, 0], "it follows itself through other requests"),
    ([-1, 1], [0, 0], "it follows itself"),
    ([-1, 2, 3, 1], [0, 0, 0, 0], "it follows itself"),
    ([-1, 0], [0, -1], "request 1: think_s is -1; it should be a time from 0"),
    ([-1, 0], [0, np.nan], "think_s is nan"),
    ([-1, 0], [0, np.inf], "think_s is inf"),
    ([-1, 0], [0], "they should be alike"),
    ([-1, 0.5], [0, 0], "whole numbers"),
])  # fmt: skip
def test_bad_turns_are_one_line(after, think_s, message):
    with pytest.raises(WorkloadError, match=message) as error:
        SessionDependencies(np.array(after), np.array(think_s, float))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("limit", ["clients", "max_concurrency"])
@pytest.mark.parametrize("most", [0, -1, 1.5])
def test_bad_limits_are_one_line(limit, most):
    workload = Workload.from_columns({"arrival_s": [0.0], "prompt_tokens": [1], "output_tokens": [1]})
    with pytest.raises(WorkloadError, match=f"{limit} is {most}; it should be a whole number of 1 or more"):
        served(workload, **{limit: most})


def test_a_predictor_that_takes_time_has_to_know_what_comes():
    workload = workload_of([0, 0], [-1, 0])
    with pytest.raises(PredictorError, match="arrivals that are known beforehand"):
        served(workload, predictor=Predictor(latency_s=0.1))
    assert arrivals(served(workload, predictor=Predictor(urgency_levels=2))) == [0.0, 2.0]


def test_a_workload_has_its_turns_last():
    prompts = Prompts(1, np.array([0, 3, 5, 6]), np.array([7, 7, 7, 8, 8, 9]))
    columns = {"arrival_s": [9.0, 2.0, 1.0], "prompt_tokens": [1, 2, 3], "output_tokens": 1}
    workload = Workload.from_columns(columns, turns=SessionDependencies(np.array([2, -1, -1]), np.array([0.5, 0, 0])))
    assert workload.table["prompt_tokens"].tolist() == [3, 2, 1]
    assert workload.turns.after.tolist() == [-1, -1, 0] and workload.known == 2
    assert np.isnan(workload.table["arrival_s"][2]) and workload.rate_per_s == 1.5
    later = dataclasses.replace(workload, prefixes=prompts).replace(arrival_s=[3.0, 1.0, 0.0])
    assert later.table["prompt_tokens"].tolist() == [2, 3, 1] and later.turns.after.tolist() == [-1, -1, 1]
    assert np.diff(later.prefixes.offsets).tolist() == [2, 3, 1]
    assert (
        workload.digest
        != dataclasses.replace(workload, turns=SessionDependencies(workload.turns.after, np.ones(3))).digest
    )
    with pytest.raises(WorkloadError, match="the last of the table"):
        Workload(workload.table[::-1].copy(), turns=SessionDependencies(np.array([1, -1, -1]), np.zeros(3)))
    with pytest.raises(WorkloadError, match="turns of 2 requests; it has 3"):
        Workload(workload.table, turns=SessionDependencies(np.array([-1, -1]), np.zeros(2)))
    with pytest.raises(WorkloadError, match="should be NaN"):
        Workload(_timed(workload), turns=workload.turns)


def _timed(workload: Workload) -> np.ndarray:
    table = workload.table.copy()
    table["arrival_s"] = 5.0
    return table


@given(st.lists(st.integers(0, 10), max_size=20), st.randoms())
def test_followers_are_linked_in_order(links, random):
    after = np.array([-1] + [min(link, i) if link < 8 else -1 for i, link in enumerate(links)])
    turns = SessionDependencies(after, np.zeros(len(after)))
    rows = following_of(turns)
    for r in range(len(after)):
        found, at = [], rows[r]["first"]
        while at >= 0:
            found.append(int(at))
            at = rows[at]["next"]
        assert found == np.flatnonzero(after == r).tolist()
        first = r
        while after[first] >= 0:
            first = after[first]
        assert rows[r]["session"] == first
    assert rows["unfinished"].sum() == len(after)
    keep = np.array([random.random() < 0.7 for _ in after])
    kept = turns.whole(keep)
    assert all(kept[r] == (keep[r] and (after[r] < 0 or kept[after[r]])) for r in range(len(after)))
    assert len(turns.take(np.flatnonzero(kept))) == kept.sum()
