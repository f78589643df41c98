"""What must hold of every batch and of memory, whatever the workload, the scheduler and its settings."""

import dataclasses

import numpy as np
import pytest
from hypothesis import strategies as st

from servegym.latency_models.model import LatencyModel
from servegym.simulator.features.disturbances import Disturbance
from servegym.simulator.records import types as layout
from servegym.simulator.runs.simulation import Simulation
from tests.seeds import drawn
from tests.simulator.replay import replay
from tests.simulator.replayed_engines import blocks_of
from tests.simulator.replayed_run import Batch, Entry
from tests.simulator.whole_runs import every_scheduler, finished
from tests.strategies import scenarios


@every_scheduler
@drawn(slow=True)
def test_a_batch_takes_what_the_models_say(name, data):
    drawn = data.draw(scenarios(name))
    # As it is without disturbance and correction.
    scenario = dataclasses.replace(drawn, disturbance=Disturbance(), correction=None)
    for batch in replay(finished(scenario)).batches:
        for seconds, model in (
            (batch.end_s - batch.start_s, scenario.deployment.device),
            (batch.estimate_s, scenario.deployment.estimator),
        ):
            assert seconds - batch.moving_s == pytest.approx(linear_s(model, batch), rel=1e-9, abs=1e-9)


def linear_s(model: LatencyModel, batch: Batch) -> float:
    """ProServe, Eq. 4-7, request by request."""
    c = model.coefficients_by_name
    total_s = c["t_c"]
    for entry in batch.entries:
        lq, lkv = entry.tokens, entry.computed
        if entry.decoding:
            total_s += c["a_d"] * lkv + c["b_d"]
        else:
            total_s += c["a_p"] * lq * lq + c["b_p"] * lq * lkv + c["c_p"] * lq
    return total_s


@every_scheduler
@drawn(slow=True)
def test_every_block_is_free_or_in_the_chain_of_one_request(name, data):
    simulation = Simulation(data.draw(scenarios(name, grouped=True)))
    for _ in range(data.draw(st.integers(0, 30), label="decisions")):
        if not simulation.step():
            break
        assert_blocks_add_up(simulation)
    simulation.run()
    assert_blocks_add_up(simulation)
    arrays = simulation.arrays
    assert (arrays.engines["free_blocks"] == arrays.engines["total_blocks"]).all()
    assert (arrays.engines["free_host_blocks"] == arrays.engines["host_blocks"]).all()
    assert (arrays.requests["offloaded_tokens"] == 0).all()
    assert (arrays.engines["running"] == 0).all() and (arrays.requests["blocks"] == 0).all()


def assert_blocks_add_up(simulation: Simulation) -> None:
    arrays = simulation.arrays
    for e, engine in enumerate(arrays.engines):
        mine = arrays.requests[e :: len(arrays.engines)]
        running = mine[mine["blocks"] > 0]
        kept = mine["offloaded_tokens"]
        assert (kept[mine["blocks"] > 0] == 0).all(), "a running request has kept nothing elsewhere"
        assert engine.host_blocks - engine.free_host_blocks == (-(-kept // engine.block_tokens)).sum()
        assert engine.running == len(running)
        for request in running:
            if engine.batch_length == 0 and not engine.kv_groups.on:  # in between batches: of what it has computed
                assert request.blocks == -(-request.computed_tokens // engine.block_tokens)
        assert engine.free_blocks + running["blocks"].sum() == engine.total_blocks, "a block is lost, or is given twice"
        assert engine.totals.peak_blocks <= engine.total_blocks


@every_scheduler
@drawn(slow=True)
def test_the_mean_use_of_memory_is_the_integral_over_the_timeline(name, data):
    scenario = data.draw(scenarios(name, grouped=True))
    simulation = finished(scenario)
    arrays = simulation.arrays
    lines = arrays.timeline[: arrays.status[0].timeline_used]
    deployment, span_s = scenario.deployment, float(arrays.status[0].now_s)
    for e, engine in enumerate(simulation.result().engines.itertuples()):
        # In use while a batch runs: after its evictions and chunks, until its end says what is left.
        held: dict[int, int] = {}
        computed: dict[int, int] = {}
        block_s, since_s, peak, running = 0.0, 0.0, 0, []
        for line in lines[lines["engine"] == e]:
            block_s += sum(held.values()) * (line.time_s - since_s)
            since_s = line.time_s
            if line.kind == layout.EVICTED:
                held.pop(line.request, None)
                computed.pop(line.request, None)
            elif line.kind == layout.LOADED:
                computed[line.request] = line.tokens
            elif line.kind == layout.SCHEDULED:
                before = computed.get(line.request, 0)
                computed[line.request] = before + line.tokens
                held[line.request] = blocks_of(deployment, before, line.tokens)
                running.append(line.request)
                peak = max(peak, sum(held.values()))
            elif line.kind == layout.FINISH:
                del held[line.request], computed[line.request]
        assert engine.kv_use_mean == pytest.approx(block_s / span_s / deployment.total_blocks)
        # A request admitted and evicted while one batch is formed counts for the peak, and is in no batch.
        assert peak / deployment.total_blocks <= engine.kv_use_peak <= 1


@every_scheduler
@drawn(40, slow=True)
def test_batches_keep_to_the_limits_their_scheduler_sets(name, data):
    scenario = data.draw(scenarios(name))
    simulation = Simulation(scenario, record_timeline=True)
    limits = []
    more = simulation.step()
    while more:
        started = simulation.arrays.engines["iterations"].sum()
        more = simulation.step()  # forms one batch, resumes one or holds a round, and goes on to the next decision
        if simulation.arrays.engines["iterations"].sum() > started:
            limits.append(simulation.arrays.limits[0].copy())
    batches = replay(simulation).batches
    assert len(batches) == len(limits)
    running_before = {}
    for batch, limit in zip(batches, limits, strict=True):
        alone = len(batch.entries) == 1
        # Whole prompts, and what takes memory for progress, are computed whole, whatever the budgets.
        whole = alone and batch.tokens == batch.entries[0].left and (bool(limit.whole_prompts) or bool(batch.evicted))
        assert len(batch.entries) <= max(limit.sequence_budget, 1)
        assert batch.running <= max(limit.max_num_seqs, running_before.get(batch.engine, 0), 1)
        if not whole:
            assert batch.tokens <= limit.max_num_batched_tokens or (alone and batch.tokens == 1)
        if limit.untimed_decodes or limit.untimed_prefill_tokens:
            if scenario.correction is None and not whole:
                assert_timed_part_fits(limit, batch, scenario.deployment.estimator)
        elif batch.estimate_s - batch.moving_s > limit.time_budget_s * (1 + 1e-12):
            assert alone, "only progress takes more time than there is"
            assert batch.tokens == 1 or whole
        if limit.phase == layout.PHASE_FIRST_DECIDES:
            assert len({entry.decoding for entry in batch.entries}) == 1
        for entry in batch.entries:
            assert_chunk_keeps_to(limit, entry, batch, alone, whole)
        running_before[batch.engine] = batch.running


def assert_timed_part_fits(limit: np.record, batch: Batch, estimator: LatencyModel) -> None:
    """What is in the batch when the last request that needs time joins it keeps to the time budget."""
    prefill_tokens, timed = 0, 0
    for place, entry in enumerate(batch.entries):
        prefill_tokens += 0 if entry.decoding else entry.tokens
        needs_time = not limit.untimed_decodes if entry.decoding else prefill_tokens > limit.untimed_prefill_tokens
        timed = place + 1 if needs_time else timed
    if timed == 0 or (len(batch.entries) == 1 and batch.tokens == 1):
        return
    estimate_s = linear_s(estimator, dataclasses.replace(batch, entries=batch.entries[:timed]))
    assert estimate_s <= limit.time_budget_s * (1 + 1e-9)


def assert_chunk_keeps_to(limit: np.record, entry: Entry, batch: Batch, alone: bool, whole: bool) -> None:
    if entry.decoding:
        assert entry.tokens == 1
    elif limit.whole_prompts or whole:
        assert entry.tokens == entry.left
    else:
        assert entry.tokens <= limit.chunk_tokens
        if entry.tokens < min(entry.left, limit.smallest_chunk_tokens) and not alone:
            assert batch.tokens == limit.max_num_batched_tokens, (
                "cut below the smallest chunk, and not by the token budget"
            )
