"""Iterations, phases and urgency, read back from runs: against slower readings and the simulator's own sums."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from servegym.baselines.registry import scheduler, scheduler_names
from servegym.errors import ExperimentError
from servegym.evaluation.reports.iterations import iterations
from servegym.evaluation.reports.phases import phases
from servegym.evaluation.reports.urgency import urgency
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation
from tests import timelines
from tests.evaluation.reports.runs import by_hand, cramped
from tests.seeds import slow_but

# Between them: chunks, whole prompts, evictions, batches that are suspended, host memory.
FAST = [("vllm-v1", 1), ("vllm-v1", 3), ("distserve", 3), ("flow-prefill", 1), ("fastserve-mlfq", 1), ("semantic", 3)]
RUNS = slow_but(FAST, [(name, engines) for name in scheduler_names() for engines in (1, 3)])


@pytest.fixture(scope="module", params=RUNS, ids=str)
def run(request: pytest.FixtureRequest) -> Result:
    return cramped(*request.param)


def read_slowly(result: Result) -> tuple[list[tuple], list[tuple]]:
    """Batches as (prefill requests, decode requests, prefill tokens), and phases, line by line."""
    prompt = result.scenario.workload.table["prompt_tokens"]
    emitted, computed = np.zeros(len(prompt), int), np.zeros(len(prompt), int)
    doing: dict[int, tuple[str, float]] = {}
    batches: list[list[int]] = []
    spans: list[tuple] = []

    def begin(r: int, phase: str | None, time_s: float) -> None:
        before = doing.pop(r, None)
        if before is not None and before[0] == phase:
            doing[r] = before
            return
        if before is not None and before[1] < time_s:
            spans.append((r, before[0], before[1], time_s))
        if phase is not None:
            doing[r] = phase, time_s

    for line in result.timeline.itertuples():
        r = line.request
        if line.kind == "arrival":
            begin(r, "waiting", line.time_s)
        elif line.kind == "batch_start":
            batches.append([0, 0, 0])
        elif line.kind == "scheduled":
            decoding = bool(emitted[r] > 0 and prompt[r] + emitted[r] - computed[r] == 1)
            batches[-1][decoding] += 1
            batches[-1][2] += 0 if decoding else line.tokens
            computed[r] += line.tokens
            if doing[r][0] == "waiting":
                begin(r, "prefill", line.time_s)
        elif line.kind == "found":
            computed[r] = line.tokens
        elif line.kind == "evicted":
            computed[r] = 0
            begin(r, "waiting", line.time_s)
        elif line.kind == "token":
            emitted[r] += 1
            begin(r, "decode", line.time_s)
        elif line.kind == "finish":
            begin(r, None, line.time_s)
    return [tuple(batch) for batch in batches], sorted(spans)


def test_batches_are_what_a_slow_reading_finds(run: Result) -> None:
    table = iterations(run)
    found = list(table[["prefill_requests", "decode_requests", "prefill_tokens"]].itertuples(index=False, name=None))
    assert found == read_slowly(run)[0]
    assert (table["decode_tokens"] == table["decode_requests"]).all()
    slow = timelines.iterations(run)
    assert table["start_s"].tolist() == [each.start_s for each in slow]
    assert table["end_s"].tolist() == [each.end_s for each in slow]
    assert table["evicted"].tolist() == [len(each.evicted) for each in slow]


def test_phases_are_what_a_slow_reading_finds(run: Result) -> None:
    table = phases(run)
    found = table[["request", "phase", "start_s", "end_s"]].itertuples(index=False, name=None)
    assert sorted(found) == read_slowly(run)[1]
    lasted_s = (table["end_s"] - table["start_s"]).groupby(table["request"]).sum()
    np.testing.assert_allclose(lasted_s, run.requests["ttlt_s"], rtol=1e-9)


def test_kv_blocks_are_the_simulators_own(run: Result) -> None:
    table = iterations(run)
    block_seconds = (table["kv_blocks"] * (table["end_s"] - table["start_s"])).groupby(table["engine"]).sum()
    mean_use = block_seconds / (60 * run.summary["span_s"])
    np.testing.assert_allclose(mean_use, run.engines["kv_use_mean"], rtol=1e-9)
    # A request admitted and evicted while one batch is formed counts for the peak, and runs in no iteration.
    assert (table["kv_blocks"].groupby(table["engine"]).max() <= run.engines["peak_blocks"]).all()


def test_a_run_by_hand() -> None:
    columns = ["start_s", "end_s", "kv_blocks", "queued", "prefill_tokens", "decode_tokens"]
    assert iterations(by_hand())[columns].to_numpy().tolist() == [
        [1, 6, 4, 1, 4, 0], [6, 8, 5, 1, 0, 1], [8, 10, 6, 1, 0, 1],
    ]  # fmt: skip
    assert phases(by_hand()).to_numpy().tolist() == [[0, 0, "prefill", 1, 6], [0, 0, "decode", 6, 10]]


def test_a_run_that_stopped_in_the_middle() -> None:
    result = cramped(until_s=2.0)
    table = iterations(result)
    assert table["ended"].tolist() == [True] * (len(table) - 1) + [False]
    engine = result.arrays.engines[0]
    assert table["kv_blocks"].iloc[-1] == engine.total_blocks - engine.free_blocks > 0
    assert phases(result)["end_s"].max() == result.summary["span_s"] <= 2.0


SLIDE = scheduler("slide-batching")


@pytest.mark.parametrize("engines", [1, 3])
@pytest.mark.parametrize("settings", [{}, {"load": "c"}, {"variant": "xllm"}], ids=str)
def test_every_queued_request_is_urgent_or_normal(settings: dict[str, str], engines: int) -> None:
    result = cramped(SLIDE.with_settings(**settings), engines)
    counts, table = urgency(result), iterations(result)
    assert (counts["urgent"] + counts["normal"] == table["queued"]).all()
    assert engines == 3 or (counts["urgent"].sum() > 0 and counts["normal"].sum() > 0)  # three have it easy
    pd.testing.assert_frame_equal(counts[["engine", "start_s", "end_s"]], table[["engine", "start_s", "end_s"]])


@pytest.mark.parametrize(("ablation", "none"), [("only-density", "normal"), ("only-deadline", "urgent")])
def test_an_ablation_has_one_kind_only(ablation: str, none: str) -> None:
    assert urgency(cramped(SLIDE.with_settings(ablation=ablation)))[none].sum() == 0


def test_urgency_of_part_of_a_run() -> None:
    result = cramped(SLIDE, until_s=2.0)
    assert len(urgency(result)) == result.summary["iterations"]


def test_urgency_is_refused_where_there_is_none_or_it_cannot_be_had_again() -> None:
    with pytest.raises(ExperimentError, match="edf does not distinguish urgent"):
        urgency(cramped("edf"))
    simulation = Simulation(cramped(SLIDE).scenario, record_timeline=True)
    simulation.arrays.parameters[0, 4] = 1  # as a controller would: only-deadline
    with pytest.raises(ExperimentError, match="decides otherwise"):
        urgency(simulation.run())


def test_looking_changes_nothing() -> None:
    result = cramped(SLIDE)
    before = result.arrays.outcomes.tobytes()
    urgency(result)
    assert result.arrays.outcomes.tobytes() == before
    assert dataclasses.asdict(result.scenario.gain) == dataclasses.asdict(cramped(SLIDE).scenario.gain)
