"""What must hold whatever happens to engines: they fail, return, are drained, moved, closed, and suspend prefills."""

import contextlib
import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from servegym.baselines.registry import router_names
from servegym.errors import PolicyError
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.records.types import DRAINED, ROLE_DECODE
from servegym.simulator.runs.simulation import Simulation
from tests.seeds import drawn
from tests.simulator.incident_strategies import incident_scenarios
from tests.simulator.random_policies import RANDOM_ROUTER
from tests.simulator.replay import replay
from tests.simulator.replayed_run import Replay
from tests.simulator.test_cluster_properties import assert_blocks_add_up, assert_the_same_again
from tests.simulator.whole_runs import finished

every_router = pytest.mark.parametrize("name", [*router_names(), RANDOM_ROUTER.name])


def assert_counts_are_those_of(log: Replay, simulation: Simulation) -> None:
    """What engines and requests counted is what the timeline says."""
    arrays, outcomes = simulation.arrays, simulation.arrays.outcomes
    assert log.evictions == list(outcomes["evictions"])
    assert log.reroutes == list(outcomes["reroutes"])
    assert log.cached_tokens == list(outcomes["cached_tokens"])
    for e, engine in enumerate(arrays.engines):
        mine = [batch for batch in log.batches if batch.engine == e]
        assert engine.iterations == len(mine)
        assert engine.scheduled_tokens == sum(batch.tokens for batch in mine)
        assert (engine.totals.num_output_tokens, engine.totals.evictions) == (log.emitted_at[e], log.evictions_at[e])
        assert (engine.totals.failures, engine.totals.recalled) == (log.failures_at[e], log.recalled_at[e])
        assert engine.totals.lost_tokens == log.lost_at[e]
        assert engine.busy_s == pytest.approx(log.busy_at[e])
        broken_off = log.failures_at[e] + log.moves_at[e]  # before the boundary
        assert engine.totals.suspensions <= log.suspensions_at[e] + int(engine.preemption.suspending) + broken_off
        assert 0 <= engine.totals.longest_blocking_s <= engine.totals.blocking_s + 1e-9
    assert_in_service(log, simulation)


def assert_in_service(log: Replay, simulation: Simulation) -> None:
    """An engine is in service while it is up and, where a scaler is asked, in a tier; drained ones up to some time."""
    result = simulation.result()
    lines = simulation.arrays.timeline[: simulation.arrays.status[0].timeline_used]
    drained = set(lines["engine"][lines["kind"] == DRAINED].tolist())
    span_s = float(simulation.arrays.status[0].now_s)
    tail_s = span_s - (float(lines["time_s"][-1]) if len(lines) else 0.0)
    for e, service_s in enumerate(result.engines["service_s"]):
        most_s = (log.up_at if simulation.scenario.check_interval_s == 0 else log.in_tier_at)[e]
        least_s = 0.0 if e in drained else most_s
        assert least_s - 1e-9 <= service_s <= most_s + tail_s + 1e-9
    assert result.summary["cost_engine_s"] == pytest.approx(result.engines["service_s"].sum())


def assert_tokens_are_conserved(log: Replay, scenario: Scenario) -> None:
    """What is computed, found or read from prefix stores: the prompt, every token but the last, again what was lost,
    and chunks of iterations that were lost."""
    table = scenario.workload.table
    computed = np.array(log.scheduled_tokens) + log.borrowed_tokens + log.found_tokens
    needed = table["prompt_tokens"] + table["output_tokens"] - 1 + log.lost_tokens + log.unfinished_tokens
    done = np.array(log.finished)
    np.testing.assert_array_equal(computed[done], needed[done])


# Everybody is served


def assert_every_request_was_served(simulation: Simulation, scenario: Scenario) -> Replay:
    """Once, with its tokens conserved, and all memory free again at the end. Returns the replayed timeline."""
    log, arrays = replay(simulation), simulation.arrays
    assert all(log.finished) and arrays.status[0].finished == len(scenario.workload)
    assert_tokens_are_conserved(log, scenario)
    assert_counts_are_those_of(log, simulation)
    assert_blocks_add_up(simulation)
    engines = arrays.engines
    assert (engines["free_blocks"] == engines["total_blocks"]).all()
    assert (engines["free_host_blocks"] == engines["host_blocks"]).all()
    assert arrays.status[0].router.held == 0 and (simulation.router_state.known.tiers["waiting"] == 0).all()
    return log


@every_router
@drawn(15, slow=True)
def test_every_request_is_served_once_all_engines_are_back(name, data):
    scenario = data.draw(incident_scenarios(name))
    simulation = finished(scenario)
    log = assert_every_request_was_served(simulation, scenario)
    table, arrays = scenario.workload.table, simulation.arrays
    np.testing.assert_array_equal(arrays.requests["num_output_tokens"], table["output_tokens"])
    assert [len(times) for times in log.emission_s] == list(table["output_tokens"])
    np.testing.assert_array_equal([times[0] for times in log.emission_s], arrays.outcomes["first_token_s"])
    np.testing.assert_array_equal([times[-1] for times in log.emission_s], arrays.outcomes["finish_s"])
    engines = arrays.engines
    assert (engines["suspended"] == 0).all() and (arrays.state.tasks["length"] == 0).all()
    assert (arrays.requests["task"] == -1).all()
    summary = simulation.result().summary
    assert summary["gain"] == pytest.approx(sum(map(sum, log.gains)))
    assert summary["gain"] <= summary["ideal_gain"] * (1 + 1e-12)


def finished_if_engines_are_left(scenario: Scenario) -> Simulation:
    """`finished`; scenarios with requests that nothing will ever serve are no examples."""
    with unserved_are_rejected():
        return finished(scenario)


@contextlib.contextmanager
def unserved_are_rejected() -> Iterator[None]:
    """The decode engines are gone for good (see test_incidents.py), or the scaler opens no engine."""
    try:
        yield
    except PolicyError as error:
        refusals = ("blocks hold KV that no decode engine takes", "has opened no engine that takes them")
        assert any(refusal in str(error) for refusal in refusals)
        reject()


@every_router
@drawn(15, slow=True)
def test_where_engines_stay_away_none_is_in_two_places_or_in_none(name, data):
    scenario = data.draw(incident_scenarios(name, all_return=False))
    simulation = finished_if_engines_are_left(scenario)
    log = replay(simulation)
    assert simulation.arrays.status[0].finished == sum(log.finished)
    assert_tokens_are_conserved(log, scenario)
    assert_counts_are_those_of(log, simulation)
    assert_each_is_in_one_place(simulation)


@every_router
@drawn(15)
def test_at_every_decision_every_request_is_in_one_place_and_blocks_add_up(name, data):
    simulation = Simulation(data.draw(incident_scenarios(name, all_return=False)))
    for _ in range(data.draw(st.integers(1, 40), label="decisions")):
        with unserved_are_rejected():
            if not simulation.step():
                break
        assert_each_is_in_one_place(simulation)
        assert_blocks_add_up(simulation)
        assert_tasks_add_up(simulation)


def assert_each_is_in_one_place(simulation: Simulation) -> None:
    """An unfinished request is in a queue, in line for a decode engine, on a link, or in line to be sent again."""
    arrays, router_state = simulation.arrays, simulation.router_state
    places: list[int] = []
    for e, engine in enumerate(arrays.engines):
        queue = arrays.queues[e, : engine.queue_length].tolist()
        assert all(arrays.requests["engine"][queue] == e)
        to_come = chain(router_state.coming[e], arrays.outcomes["next_in_queue"])
        to_come += [int(engine.transfers.receiving)][: int(engine.transfers.receiving >= 0)]
        assert all(arrays.outcomes["source"][to_come] >= 0)
        places += queue + to_come
    held = [r for line in router_state.known.tiers for r in chain(line, arrays.outcomes["next_in_queue"])]
    assert all(arrays.requests["engine"][held] == -1)
    has_come = np.arange(len(arrays.requests)) < arrays.status[0].next_arrival
    assert sorted(places + held) == np.flatnonzero(has_come & np.isnan(arrays.outcomes["finish_s"])).tolist()


def chain(line: np.record, next_in_queue: np.ndarray) -> list[int]:
    """The requests of a line, in order."""
    requests, at = [], int(line.first)
    for _ in range(line.waiting):
        requests.append(at)
        at = int(next_in_queue[at])
    return requests


def assert_tasks_add_up(simulation: Simulation) -> None:
    arrays = simulation.arrays
    for e, engine in enumerate(arrays.engines):
        tasks = arrays.state.tasks[e]
        slots = np.flatnonzero(tasks["length"])
        queue = arrays.queues[e, : engine.queue_length]
        of_task = arrays.requests["task"][queue]
        assert [np.sum(of_task == slot) for slot in slots] == list(tasks["length"][slots])
        assert np.isin(of_task, [-1, *slots]).all()
        assert engine.suspended == len(slots) - (engine.running_task >= 0)
        assert all(arrays.requests["task"][tasks["leader"][slots]] == slots)


@every_router
@drawn(15, slow=True)
def test_with_no_delay_the_router_knows_what_is_so(name, data):
    scenario = data.draw(incident_scenarios(name, all_return=False))
    cluster = dataclasses.replace(scenario.deployment, signal_delay_s=0.0)
    if cluster.engines == 1:
        return  # nothing is kept for one engine
    simulation = Simulation(dataclasses.replace(scenario, deployment=cluster))
    for _ in range(data.draw(st.integers(0, 40), label="decisions")):
        with unserved_are_rejected():
            if not simulation.step():
                break
        arrays, known = simulation.arrays, simulation.router_state.known
        for e, (snapshot, engine) in enumerate(zip(known.snapshots, arrays.engines, strict=True)):
            assert (snapshot.up, snapshot.tier, snapshot.closed) == (
                engine.up,
                engine.tier,
                max(engine.closed, engine.drained, engine.off, snapshot.changing),
            )
            here = np.flatnonzero((arrays.requests["engine"] == e) & np.isnan(arrays.outcomes["finish_s"]))
            sent = arrays.outcomes["sent_tokens"]
            with_token = arrays.requests["num_output_tokens"][here] > sent[here]  # since it was sent there
            record, running = known.prefilling[e, : snapshot.prefills], known.decoding[e, : snapshot.decodes]
            assert sorted(record) == ([] if snapshot.role == ROLE_DECODE else list(here[~with_token]))
            assert sorted(running) == list(here[with_token])
            assert snapshot.prefill_tokens == (arrays.requests["prompt_tokens"] + sent)[record].sum()
            assert snapshot.requests == len(here)


# The same again


@every_router
@drawn(15, slow=True)
def test_same_inputs_same_bytes_and_stepping_is_running(name, data):
    scenario = data.draw(incident_scenarios(name, all_return=data.draw(st.booleans())))
    simulation = finished_if_engines_are_left(scenario)
    assert_the_same_again(simulation, scenario, data)


@every_router
@drawn(15, slow=True)
def test_a_truncated_run_is_the_start_of_the_whole(name, data):
    scenario = data.draw(incident_scenarios(name))
    whole = finished(scenario).arrays
    lines = whole.timeline[: whole.status[0].timeline_used]
    at = float(lines["time_s"][data.draw(st.integers(0, len(lines) - 1), label="line")])
    simulation = finished(dataclasses.replace(scenario, until_s=at))
    part = simulation.arrays
    assert part.timeline[: part.status[0].timeline_used].tobytes() == lines[lines["time_s"] <= at].tobytes()
    log = replay(simulation)
    assert_counts_are_those_of(log, simulation)
    assert_each_is_in_one_place(simulation)
    assert simulation.result().summary["tokens_emitted"] == sum(map(len, log.emission_s))


@pytest.mark.slow
@settings(max_examples=60)
@given(data=st.data())
def test_one_engine_that_fails_serves_all_when_it_returns(data):
    scenario = data.draw(incident_scenarios(RANDOM_ROUTER.name, engines=1))
    simulation = finished(scenario)
    log = replay(simulation)
    assert all(log.finished)
    assert_tokens_are_conserved(log, scenario)
    assert_counts_are_those_of(log, simulation)
    assert (simulation.arrays.engines["free_blocks"] == simulation.arrays.engines["total_blocks"]).all()
