"""What must hold in every run, whatever the workload, the deployment, the scheduler and its settings."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import strategies as st

from servegym.baselines.registry import scheduler
from servegym.latency_models.model import LatencyModel
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.gains import Gain
from servegym.simulator.records import types as layout
from servegym.simulator.records.statuses import QUEUE_FULL, TIMELINE_FULL
from servegym.simulator.runs.arrays import FIRST_CAPACITY
from servegym.simulator.runs.simulation import Simulation
from tests.seeds import drawn
from tests.simulator.arrays import as_bytes
from tests.simulator.forming import SECONDS, by_place
from tests.simulator.replay import replay
from tests.simulator.whole_runs import every_scheduler, finished, stepped
from tests.strategies import scenarios

# Everybody is served


@every_scheduler
@drawn(slow=True)
def test_every_request_finishes_with_all_its_tokens(name, data):
    scenario = data.draw(scenarios(name, grouped=True))
    arrays = finished(scenario).arrays
    table = scenario.workload.table
    np.testing.assert_array_equal(arrays.requests["num_output_tokens"], table["output_tokens"])
    assert np.isfinite(arrays.outcomes["finish_s"]).all()
    assert (arrays.outcomes["admitted_s"] >= table["arrival_s"]).all()
    assert (arrays.outcomes["first_token_s"] > arrays.outcomes["admitted_s"]).all()
    np.testing.assert_array_equal(arrays.requests["first_token_s"], arrays.outcomes["first_token_s"])
    assert arrays.status[0].finished == len(table) == arrays.status[0].next_arrival
    assert (arrays.engines["queue_length"] == 0).all() and (arrays.engines["batch_length"] == 0).all()


@every_scheduler
@drawn(40)
def test_the_timeline_obeys_the_rules_and_tokens_are_conserved(name, data):
    scenario = data.draw(scenarios(name, grouped=True))
    simulation = finished(scenario)
    log, table, arrays = replay(simulation), scenario.workload.table, simulation.arrays
    assert all(log.finished)
    # What is computed: the prompt, every token but the last, and again what an eviction threw away.
    assert log.scheduled_tokens == list(table["prompt_tokens"] + table["output_tokens"] - 1 + log.lost_tokens)
    assert log.evictions == list(arrays.outcomes["evictions"])
    assert [len(times) for times in log.emission_s] == list(table["output_tokens"])
    np.testing.assert_array_equal([times[0] for times in log.emission_s], arrays.outcomes["first_token_s"])
    np.testing.assert_array_equal([times[-1] for times in log.emission_s], arrays.outcomes["finish_s"])
    longest = [max(np.diff(times), default=0.0) for times in log.emission_s]
    np.testing.assert_array_equal(longest, arrays.outcomes["longest_tbt_s"])
    for e, engine in enumerate(arrays.engines):
        mine = [batch for batch in log.batches if batch.engine == e]
        assert engine.iterations == len(mine)
        assert engine.scheduled_tokens == sum(batch.tokens for batch in mine)
        assert engine.totals.evictions == sum(log.evictions[e :: len(arrays.engines)])
        assert engine.totals.num_output_tokens == table["output_tokens"][e :: len(arrays.engines)].sum()
        assert engine.busy_s == pytest.approx(sum(batch.end_s - batch.start_s for batch in mine))
    assert arrays.tbt_histogram.sum() == (table["output_tokens"] - 1).sum()


# KV memory


# Limits


# Gain


@every_scheduler
@drawn(slow=True)
def test_gain_recomputed_from_the_times_of_emission(name, data):
    scenario = data.draw(scenarios(name))
    simulation = finished(scenario)
    log, table, outcomes = replay(simulation), scenario.workload.table, simulation.arrays.outcomes
    summary = simulation.result().summary
    w_p = scenario.gain.first_weight
    if w_p is None:
        w_p = table["prompt_tokens"].sum() / table["output_tokens"].sum()
    total = ideal = 0.0
    for r, times in enumerate(log.emission_s):
        row = table[r]
        i = np.arange(len(times))  # from 0
        deadline_s = row.arrival_s + row.ttft_slo_s + i * row.tpot_slo_s
        if np.isfinite(row.ttlt_slo_s):
            deadline_s = np.full(len(times), row.arrival_s + row.ttlt_slo_s)
        worth = row.weight * np.where(i == 0, w_p, scenario.gain.decode_weight)
        on_time = np.array(times) < deadline_s
        np.testing.assert_allclose(log.gains[r], np.where(on_time, worth, 0.0), rtol=1e-12)
        assert outcomes[r].gain == pytest.approx(worth[on_time].sum(), rel=1e-12)
        assert outcomes[r].on_time_tokens == on_time.sum()
        total += worth[on_time].sum()
        ideal += worth.sum()
    assert abs(sum(map(sum, log.gains)) - total) <= 1e-9 * max(ideal, 1)
    assert abs(simulation.arrays.status[0].gain - total) <= 1e-9 * max(ideal, 1)
    assert abs(summary["gain"] - total) <= 1e-9 * max(ideal, 1)
    assert summary["ideal_gain"] == pytest.approx(ideal, rel=1e-12)
    assert 0 <= total <= ideal * (1 + 1e-12)


# The same again


@every_scheduler
@drawn(slow=True)
def test_same_inputs_same_bytes(name, data):
    scenario = data.draw(scenarios(name))
    simulation = finished(scenario)
    first = as_bytes(simulation.arrays)
    assert as_bytes(finished(scenario).arrays) == first
    simulation.reset()
    assert simulation.arrays.status[0].finished == 0
    simulation.run()
    assert as_bytes(simulation.arrays) == first


@every_scheduler
@drawn()
def test_stepping_gives_the_bytes_of_running(name, data):
    scenario = data.draw(scenarios(name, grouped=True))
    ran, walked = finished(scenario), stepped(scenario)
    assert as_bytes(walked.arrays) == as_bytes(ran.arrays)
    some = Simulation(scenario, record_timeline=True)
    for _ in range(data.draw(st.integers(0, 20), label="steps before it runs on")):
        some.step()
    some.run()
    assert as_bytes(some.arrays) == as_bytes(ran.arrays)


@every_scheduler
@drawn(slow=True)
def test_a_timeline_changes_nothing_else(name, data):
    scenario = data.draw(scenarios(name))
    recorded, plain = (as_bytes(finished(scenario, recording).arrays) for recording in (True, False))
    for arrays in (recorded, plain):
        del arrays["timeline"], arrays["status"]
    assert recorded == plain


@pytest.mark.slow
@every_scheduler
@pytest.mark.parametrize("engines", [1, 2])
def test_growing_arrays_leave_no_trace(name, engines):
    """More requests at once than a queue has room for at first, and a timeline of several times its first length."""
    rng = np.random.default_rng(5)
    n = 3 * FIRST_CAPACITY
    workload = Workload.from_columns({
        "arrival_s": np.r_[np.zeros(n - 9), np.linspace(1.0, 20.0, 9)],
        "prompt_tokens": rng.integers(1, 60, n),
        "output_tokens": rng.integers(1, 6, n),
        "priority": rng.integers(0, 3, n),
        "ttft_slo_s": rng.choice([0.5, 5.0, 50.0], n),
    })  # fmt: skip
    model = LatencyModel.from_values(
        "linear", {"a_p": 1e-6, "b_p": 1e-6, "c_p": 1e-3, "a_d": 1e-6, "b_d": 1e-3, "t_c": 2e-3}
    )
    deployment = Deployment(model, model, total_blocks=40, engines=engines, block_tokens=8)
    scenario = Scenario(workload, deployment, scheduler(name), Gain())
    ran, walked = finished(scenario), stepped(scenario)
    assert ran.arrays.queues.shape[1] > FIRST_CAPACITY and len(ran.arrays.timeline) > 4096
    assert as_bytes(walked.arrays) == as_bytes(ran.arrays)
    assert all(replay(ran).finished)
    # The same with arrays that are long enough from the start.
    roomy = Simulation(scenario, record_timeline=True)
    while roomy.arrays.queues.shape[1] < n:
        roomy.make_room(QUEUE_FULL)
    while len(roomy.arrays.timeline) < len(ran.arrays.timeline):
        roomy.make_room(TIMELINE_FULL)
    roomy.run()
    assert as_bytes(roomy.arrays)["timeline"] == as_bytes(ran.arrays)["timeline"]
    assert as_bytes(roomy.arrays)["outcomes"] == as_bytes(ran.arrays)["outcomes"]


@every_scheduler
@drawn(slow=True)
def test_a_truncated_run_is_the_start_of_the_whole(name, data):
    scenario = data.draw(scenarios(name))
    whole = finished(scenario).arrays
    lines = whole.timeline[: whole.status[0].timeline_used]
    at = float(lines["time_s"][data.draw(st.integers(0, len(lines) - 1), label="line")])
    until_s = data.draw(st.sampled_from([at, np.nextafter(at, -np.inf), at + 0.01]), label="until")
    until_s = max(until_s, 0.0)
    simulation = finished(dataclasses.replace(scenario, until_s=until_s))
    part = simulation.arrays
    upto = lines[lines["time_s"] <= until_s]
    assert part.timeline[: part.status[0].timeline_used].tobytes() == upto.tobytes()
    log, summary = replay(simulation), simulation.result().summary
    assert summary["requests"] == (whole.outcomes["ready_s"] <= until_s).sum()
    assert summary["finished"] == sum(log.finished)
    assert summary["tokens_emitted"] == sum(map(len, log.emission_s))
    assert summary["gain"] == pytest.approx(sum(map(sum, log.gains)))


# What a policy cannot know


@every_scheduler
@drawn(40)
def test_hidden_lengths_and_the_device_do_not_change_a_decision(name, data):
    scenario = data.draw(scenarios(name))
    simulation = Simulation(scenario)
    for _ in range(data.draw(st.integers(0, 40), label="decisions before")):
        if not simulation.step():
            break
    if simulation.arrays.status[0].deciding_engine < 0 and not simulation.step():
        return  # all is served
    engine = int(simulation.arrays.status[0].deciding_engine)
    other = simulation.copy()
    unfinished = np.isnan(other.arrays.outcomes["finish_s"])
    emitted = other.arrays.requests["num_output_tokens"]
    more = data.draw(st.lists(st.integers(1, 50), min_size=len(emitted), max_size=len(emitted)), label="lengths")
    other.arrays.outcomes["output_tokens"] = np.where(unfinished, emitted + np.array(more), emitted)
    other.arrays.device[:] *= 1.5
    assert decided(simulation, engine) == decided(other, engine)


def decided(simulation: Simulation, engine: int) -> list[tuple[int, int]]:
    """The batch that the engine whose decision is due forms."""
    simulation.step()
    arrays = simulation.arrays
    entries = arrays.entries[engine, : arrays.engines[engine].last_batch_length]
    return [(int(entry.request), int(entry.tokens)) for entry in entries]


def test_records_that_a_policy_sees_have_no_hidden_field():
    hidden = set(layout.OUTCOME.names)
    assert "output_tokens" in hidden
    # Everybody sees when a first token came out.
    assert hidden & set(layout.REQUEST.names) == {"first_token_s"}
    for seen in (layout.RANK, layout.LIMITS):
        assert not hidden & set(seen.names)
    # An engine counts evictions too, and what was found; its ready_s is when it has started.
    assert hidden & names_of(layout.ENGINE) == {"evictions", "cached_tokens", "ready_s"}


def names_of(record):
    """Names of a record's fields, and of the fields of the records in it."""
    inner = (names_of(kind) for kind, *_ in record.fields.values() if kind.names)
    return set(record.names).union(*inner)


def test_an_engine_record_does_not_tell_how_long_its_iteration_takes():
    workload = Workload.from_columns({"arrival_s": [0.0, 0.0], "prompt_tokens": [4, 4], "output_tokens": [2, 2]})
    estimator = LatencyModel.from_values("linear", dict.fromkeys(("a_p", "b_p", "c_p", "a_d", "b_d", "t_c"), 1.0))
    shown = []
    for constant_s in (1.0, 2.0):
        deployment = Deployment(estimator.plus_constant(constant_s), estimator, total_blocks=9, block_tokens=1)
        simulation = Simulation(Scenario(workload, deployment, scheduler("edf"), until_s=0.5))
        simulation.run()  # pauses in the first iteration
        shown.append(simulation.arrays.engines.tobytes())
    assert shown[0] == shown[1]


def test_what_is_admitted_and_evicted_while_one_batch_forms_is_replayed():
    # Request 1 decodes to the end of memory; request 0, which goes first, takes a block again and loses it at once.
    workload = Workload.from_columns(
        {"arrival_s": [0, 0], "prompt_tokens": [4, 4], "output_tokens": [3, 5], "priority": [2, 1]}
    )
    policy = by_place(by_priority=True, chunk_tokens=1, reserve_context=0)
    log = replay(finished(Scenario(workload, Deployment(SECONDS, SECONDS, 8, block_tokens=1, watermark=0.0), policy)))
    in_vain = [
        after for before, after in itertools.pairwise(log.batches) if 0 in after.evicted and 0 not in before.requests
    ]
    assert in_vain
