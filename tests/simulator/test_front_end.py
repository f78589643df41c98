"""Front ends (docs/feature_rules.md): what clients see, beside what engines do."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegym.baselines.registry import router_names, scheduler, scheduler_names
from servegym.errors import DeploymentError, PredictorError
from servegym.simulator.features.front_end import FrontEnd, front_end_of
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.predictors import Predictor
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.gains import Gain
from servegym.simulator.records.types import TIMELINE_KINDS
from servegym.simulator.runs.simulation import Simulation
from tests.seeds import drawn
from tests.simulator.forming import linear
from tests.simulator.whole_runs import finished
from tests.strategies import cluster_scenarios, scenarios, sessions_of, ticks

ARRAYS = ("requests", "outcomes", "engines", "timeline", "tbt_histogram")
NEAR_S = 1e-9


def served(columns: dict, front_end: FrontEnd, **more) -> Simulation:
    """A batch takes 1 s, whatever is in it."""
    device = linear(t_c=1.0)
    workload = Workload.from_columns(columns, turns=more.pop("turns", None))
    scenario = Scenario(workload, Deployment(device, device, 100), scheduler("vllm-v1"), front_end=front_end, **more)
    return finished(scenario)


# By hand


@pytest.mark.nojit
def test_what_the_client_and_what_the_engine_sees():
    columns = {"arrival_s": [1.0], "prompt_tokens": 4, "output_tokens": 3, "ttft_slo_s": 4.0, "tpot_slo_s": 1.5}
    result = served(columns, FrontEnd(2.0, 0.25, 0.125, 0.375), gain=Gain(first_weight=1.0)).result()
    (row,) = result.requests.to_dict("records")
    # Ready at 1 + 2 + 1; tokens come out at 5, 6 and 7.
    assert [row[name] for name in ("arrival_s", "ready_s", "first_token_s", "finish_s")] == [1.0, 4.0, 5.5, 7.5]
    assert [row[name] for name in ("ttft_s", "tpot_s", "ttlt_s")] == [4.5, 1.0, 6.5]
    assert [row[name] for name in ("engine_first_token_s", "engine_finish_s")] == [5.0, 7.0]
    assert [row[name] for name in ("engine_ttft_s", "engine_tpot_s", "engine_ttlt_s")] == [1.0, 1.0, 3.0]
    # Deadlines 5, 6.5 (at which it is too late) and 8, at the client.
    assert (row["gain"], row["attained"], row["violated"], row["engine_attained"]) == (1.0, False, True, True)
    summary = result.summary
    assert (summary["slo_attainment"], summary["engine_slo_attainment"]) == (0.0, 1.0)
    assert (summary["ttft_s"]["p50"], summary["engine_ttft_s"]["p50"]) == (4.5, 1.0)


@pytest.mark.nojit
def test_a_policy_sees_deadlines_by_which_tokens_have_to_set_out():
    columns = {"arrival_s": [1.0, 1.0], "prompt_tokens": 4, "output_tokens": 1, "ttft_slo_s": 4.0}
    columns["ttlt_slo_s"] = [np.inf, 9.0]
    requests = served(columns, FrontEnd(0.0, 0.0, 0.25, 0.5)).arrays.requests
    assert requests["arrival_s"].tolist() == [0.25, 0.25]
    assert requests["first_deadline_s"].tolist() == [4.25, 9.25]


@pytest.mark.nojit
def test_one_process_streams_one_token_after_another():
    columns = {"arrival_s": np.zeros(3), "prompt_tokens": 4, "output_tokens": 2}
    result = served(columns, FrontEnd(streamed_s_per_token=0.75, one_process=True)).result()
    # Three tokens come out at 1, and three at 2; each keeps the process busy for 0.75 s.
    assert result.requests["first_token_s"].tolist() == [1.75, 2.5, 3.25]
    assert result.requests["finish_s"].tolist() == [4.0, 4.75, 5.5]
    assert result.requests["engine_finish_s"].tolist() == [2.0] * 3


@pytest.mark.nojit
def test_the_next_turn_is_sent_when_the_client_has_the_last():
    columns = {"arrival_s": np.zeros(2), "prompt_tokens": 4, "output_tokens": 1}
    front_end = FrontEnd(1.0, back_s=2.0)
    result = served(columns, front_end, turns=SessionDependencies(np.array([-1, 0]), np.array([0, 0.5]))).result()
    assert result.requests["came_s"].tolist() == result.requests["arrival_s"].tolist() == [0.0, 4.5]
    assert result.summary["span_s"] == 6.5
    for limits in ({"clients": 1}, {"max_concurrency": 1}):
        assert served(columns, front_end, **limits).result().requests["arrival_s"].tolist() == [0.0, 4.0]


@pytest.mark.nojit
def test_what_is_ready_at_one_instant_comes_as_it_was_sent():
    # Two at a time, batches of 1 s from 1 on: request 0 ends at 2, 1 and 2 (sent at 2) at 5. By then request 4 has
    # come, at 3, and request 3, at 4: both are sent at 5 and ready at 6.
    columns = {"arrival_s": [0, 0, 0.5, 4.0, 0], "prompt_tokens": 4, "output_tokens": [1, 4, 2, 1, 1]}
    turns = SessionDependencies(np.array([-1, -1, -1, -1, 0]), np.full(5, 1.0))
    simulation = served(columns, FrontEnd(1.0), turns=turns, max_concurrency=2)
    timeline = simulation.result().timeline
    came = timeline[timeline["kind"] == "arrival"]
    assert came["request"].tolist() == [0, 1, 2, 4, 3] and came["time_s"].tolist() == [1.0, 1.0, 3.0, 6.0, 6.0]


# What holds for all

seconds = st.one_of(st.just(0.0), ticks, st.floats(0, 3))
front_ends = st.builds(FrontEnd, seconds, st.one_of(st.just(0.0), st.floats(0, 0.1)), seconds, seconds, st.booleans())


@st.composite
def behind(draw: st.DrawFn, drawn: st.SearchStrategy[Scenario]) -> Scenario:
    """Scenarios with a front end; some with sessions and closed loops."""
    scenario, front_end = draw(st.one_of(drawn, sessions_of(drawn))), draw(front_ends)
    predictor = scenario.predictor
    if predictor is not None and predictor.takes_time:
        predictor = None
    return dataclasses.replace(scenario, front_end=front_end, predictor=predictor)


def any_scenario(data) -> Scenario:
    return data.draw(behind(cluster_scenarios(data.draw(st.sampled_from(router_names())))))


def check_clients(simulation: Simulation) -> None:
    scenario, result = simulation.scenario, simulation.result()
    front_end, table = scenario.front_end, result.requests
    assert len(table) == len(scenario.workload) == result.summary["finished"]
    assert result.summary["gain"] <= result.summary["ideal_gain"] * (1 + NEAR_S)
    assert (table["gain"] <= table["ideal_gain"] * (1 + NEAR_S)).all()
    if not front_end.takes_time:
        assert not [name for name in table if name.startswith("engine_")]
        return
    in_s = front_end.request_s + front_end.prompt_s_per_token * table["prompt_tokens"]
    ways = {
        "in": (table["ready_s"] - table["arrival_s"], in_s),
        "back, first": (table["first_token_s"] - table["engine_first_token_s"], front_end.way_back_s),
        "back, last": (table["finish_s"] - table["engine_finish_s"], front_end.way_back_s),
    }
    for name, (took_s, least_s) in ways.items():
        assert (took_s >= least_s - NEAR_S).all(), name
        if not front_end.one_process:
            np.testing.assert_allclose(took_s, least_s, rtol=0, atol=NEAR_S, err_msg=name)
    assert (table["ttlt_s"] >= table["engine_ttlt_s"] - NEAR_S).all()
    assert (table["engine_ttft_s"] >= -NEAR_S).all()
    if scenario.arrivals_depend:
        check_front(scenario, table)


def check_front(scenario: Scenario, table) -> None:
    """A request is in flight until the client has its last token."""
    arrival_s, finish_s, turns = table["arrival_s"].to_numpy(), table["finish_s"].to_numpy(), scenario.workload.turns
    assert (arrival_s >= table["came_s"] - NEAR_S).all()
    if turns is not None:
        follows = turns.after >= 0
        assert (arrival_s[follows] >= finish_s[turns.after[follows]] + turns.think_s[follows] - NEAR_S).all()
    if scenario.max_concurrency is not None:
        assert most_at_once(arrival_s, finish_s) <= scenario.max_concurrency
    if scenario.clients is not None:
        session = np.arange(len(table)) if turns is None else turns.session
        begin_s, end_s = arrival_s[np.unique(session)], np.full(len(table), -np.inf)
        np.maximum.at(end_s, session, finish_s)
        assert most_at_once(begin_s, end_s[np.unique(session)]) <= scenario.clients


def most_at_once(begin_s: np.ndarray, end_s: np.ndarray) -> int:
    return max(int(((begin_s <= at_s) & (end_s > at_s + NEAR_S)).sum()) for at_s in begin_s)


@pytest.mark.parametrize("name", scheduler_names())
@drawn(20, slow=True)
def test_clients_get_what_engines_make_under_any_scheduler(name, data):
    simulation = Simulation(data.draw(behind(scenarios(name))))
    simulation.run()
    check_clients(simulation)


@pytest.mark.parametrize("name", router_names())
@drawn(20, slow=True)
def test_clients_get_what_engines_make_under_any_router(name, data):
    simulation = Simulation(data.draw(behind(cluster_scenarios(name))))
    simulation.run()
    check_clients(simulation)


@pytest.mark.slow
@settings(max_examples=60)
@given(data=st.data())
def test_one_that_takes_no_time_changes_no_byte(data):
    scenario = dataclasses.replace(any_scenario(data), front_end=FrontEnd(one_process=data.draw(st.booleans())))
    runs = [Simulation(one, True) for one in (scenario, dataclasses.replace(scenario, front_end=None))]
    tables = [run.run().requests for run in runs]
    for name in (*ARRAYS, "status"):
        assert getattr(runs[0].arrays, name).tobytes() == getattr(runs[1].arrays, name).tobytes(), name
    assert list(tables[0]) == list(tables[1])


@pytest.mark.slow
@settings(max_examples=60)
@given(data=st.data())
def test_stepping_gives_the_same_bytes(data):
    scenario = any_scenario(data)
    whole, stepped = Simulation(scenario, True), Simulation(scenario, True)
    whole.run()
    while stepped.advance_to(7):
        pass
    for name in ARRAYS:
        assert getattr(whole.arrays, name).tobytes() == getattr(stepped.arrays, name).tobytes(), name


@settings(max_examples=60)
@given(data=st.data())
def test_a_policy_sees_what_is_ready(data):
    scenario = data.draw(behind(scenarios(data.draw(st.sampled_from(scheduler_names())))))
    simulation = Simulation(scenario)
    for _ in range(data.draw(st.integers(0, 30))):
        if not simulation.step():
            return
        status, arrays = simulation.arrays.status[0], simulation.arrays
        queue = arrays.queues[status.deciding_engine, : arrays.engines[status.deciding_engine].queue_length]
        assert (arrays.outcomes["ready_s"][queue] <= status.now_s).all()


@settings(max_examples=60)
@given(data=st.data())
def test_gain_is_what_arrives_in_time_at_the_client(data):
    """By the timeline of the engines, each token the way back later."""
    scenario = any_scenario(data)
    front_end = dataclasses.replace(scenario.front_end, one_process=False)
    scenario = dataclasses.replace(scenario, gain=Gain(first_weight=1.0), front_end=front_end)
    simulation = Simulation(scenario, True)
    table = simulation.run().requests
    on_time, emitted = np.zeros(len(table), "i8"), np.zeros(len(table), "i8")
    events = simulation.arrays.timeline[: simulation.arrays.status[0].timeline_used]
    for line in events[events["kind"] == TIMELINE_KINDS.index("token")]:
        r = line["request"]
        row = table.loc[r]
        slo_s = row["ttft_slo_s"] + emitted[r] * row["tpot_slo_s"]
        due_s = row["arrival_s"] + (row["ttlt_slo_s"] if np.isfinite(row["ttlt_slo_s"]) else slo_s)
        late_s = line["time_s"] + front_end.way_back_s - due_s
        assert abs(late_s) < NEAR_S or (line["value"] > 0) == (late_s < 0)
        on_time[r] += line["value"] > 0
        emitted[r] += 1
    np.testing.assert_array_equal(on_time, table["on_time_tokens"])


# What is refused


@pytest.mark.parametrize("name", ["request_s", "prompt_s_per_token", "streamed_s_per_token", "back_s"])
@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf, 1e13, "much", True, None])
def test_bad_numbers_are_one_line(name, value):
    with pytest.raises(DeploymentError, match=f"front end: {name} is .*; it should be a time from 0 to 1e") as error:
        FrontEnd(**{name: value})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("given", "message"), [
    ("request_s", "'request_s' should be key=value, the key one of request_s, prompt_s_per_token"),
    ("speed=1", "'speed=1' should be key=value"),
    ("back_s=soon", "back_s is 'soon'; it should be a number"),
    ("one_process=1", "one_process is '1'; it should be yes or no"),
    ("back_s=-1", "back_s is -1.0; it should be a time from 0"),
    ("back_s=nan", "back_s is nan"),
    ({"speed": 1}, "unknown 'speed'; it has request_s"),
    ({"one_process": 1}, "one_process is 1; it should be true or false"),
])  # fmt: skip
def test_bad_texts_are_one_line(given, message):
    with pytest.raises(DeploymentError, match=message) as error:
        front_end_of(given)
    assert "\n" not in str(error.value)


def test_as_a_text():
    assert front_end_of("request_s=0.5, back_s=1e-3,one_process=yes") == FrontEnd(0.5, back_s=1e-3, one_process=True)
    assert front_end_of("none") == front_end_of("") == front_end_of({}) == FrontEnd()


def test_a_predictor_that_takes_time_has_to_know_what_comes():
    columns = {"arrival_s": [0.0], "prompt_tokens": 1, "output_tokens": 1}
    with pytest.raises(PredictorError, match="those behind a front end are not"):
        served(columns, FrontEnd(1.0), predictor=Predictor(latency_s=0.1))
    served(columns, FrontEnd(back_s=1.0), predictor=Predictor(latency_s=0.1, urgency_levels=2))
