"""Reading the timeline of a cluster's run back as the reference simulator's log, and comparing the two."""

from typing import Any

import numpy as np
import pytest

from servegym.simulator.records.types import TIMELINE_KINDS
from servegym.simulator.runs.results import Result
from tests.reference import simulator as reference
from tests.timelines import iterations, lines

MOVES = (
    "arrival", "departed", "received", "recalled", "held", "suspended", "resumed", "failed", "returned", "drained",
    "moved", "off", "started", "refused", "role",
)  # fmt: skip


def moves(result: Result) -> list[reference.Move]:
    """Of a run recorded with its timeline, in the order they happened."""
    found = []
    for line in lines(result):
        kind = TIMELINE_KINDS[line.kind]
        if kind in MOVES:
            blocks = int(line.tokens) if kind == "departed" else 0
            found.append(reference.Move(kind, float(line.time_s), int(line.request), int(line.engine), blocks))
    return found


def compare(result: Result, log: reference.Log, exact: bool) -> None:
    """All that happened; `exact`: times are equal, and so is the order of what falls on one instant."""

    def same(ours: Any, theirs: Any) -> bool:
        return ours == theirs if exact else ours == pytest.approx(theirs, abs=1e-9, nan_ok=True)

    def parts(those: list[reference.Move]) -> list[tuple]:
        return [(m.kind, m.request, m.engine, m.blocks) for m in those]

    got = moves(result)
    if exact:
        assert parts(got) == parts(log.moves)
        assert [m.time_s for m in got] == [m.time_s for m in log.moves]
    for request in range(-1, len(log.gains)):  # its way through the cluster
        for engine in range(len(log.busy_s)) if request < 0 else [None]:
            ours = [m for m in got if m.request == request and engine in (None, m.engine)]
            theirs = [m for m in log.moves if m.request == request and engine in (None, m.engine)]
            assert parts(ours) == parts(theirs), (request, engine)
            assert same([m.time_s for m in ours], [m.time_s for m in theirs]), (request, engine)
    compare_iterations(result, log, exact, same)
    compare_counts(result, log)


def compare_iterations(result: Result, log: reference.Log, exact: bool, same: Any) -> None:
    """Engine by engine: two that end iterations within a rounding error of each other have no common order."""
    blocks, ran = result.arrays.engines["total_blocks"], iterations(result)
    for engine in range(len(log.busy_s)):
        ours_here = [i for i in ran if i.engine == engine]
        theirs_here = [i for i in log.iterations if i.engine == engine]
        for ours, theirs in zip(ours_here, theirs_here, strict=False):
            where = f"engine {engine} at {theirs.start_s}"
            assert ours.batch == theirs.batch, where
            assert ours.evicted == theirs.evicted, where
            assert (ours.saved, ours.loaded) == (theirs.saved, theirs.loaded), where
            assert same(ours.start_s, theirs.start_s), where
            if theirs.free_blocks_at_end is not None:
                assert ours.used_blocks == blocks[engine] - theirs.free_blocks_at_end, where
                assert same(ours.end_s, theirs.end_s), where
            else:
                assert ours.end_s == np.inf, where
        assert len(ours_here) == len(theirs_here)
    if exact:
        assert [(i.engine, i.batch) for i in ran] == [(i.engine, i.batch) for i in log.iterations]


def compare_counts(result: Result, log: reference.Log) -> None:
    outcomes, rows = result.arrays.outcomes, result.arrays.engines
    assert engine_finish_s(result) == pytest.approx(np.array(log.finish_s, dtype=float), abs=1e-9, nan_ok=True)
    assert outcomes["refused_s"] == pytest.approx(np.array(log.refused_s, dtype=float), abs=1e-9, nan_ok=True)
    compare_clients(result, log)
    assert outcomes["gain"] == pytest.approx(np.array(log.gains), abs=1e-9)
    compare_caches(result, log)
    compare_adapters(result, log)
    assert outcomes["reroutes"].tolist() == log.reroutes
    assert result.summary["evictions"] == log.evictions
    assert rows["rounds"].tolist() == [engine.rounds for engine in log.engines]
    totals = rows["totals"]
    for field in ("suspensions", "failures", "recalled", "lost_tokens"):
        assert totals[field].tolist() == [getattr(engine, field) for engine in log.engines], field
    blocking = [engine.blocking_s for engine in log.engines]
    assert totals["blocking_s"] == pytest.approx(np.array([sum(times) for times in blocking]), abs=1e-9)
    assert totals["longest_blocking_s"] == pytest.approx(
        np.array([max(times, default=0) for times in blocking]), abs=1e-9
    )
    if not any(a is None and b is None for a, b in zip(log.finish_s, log.refused_s, strict=True)):
        # Else what runs at the end is counted in part.
        assert rows["busy_s"] == pytest.approx(np.array(log.busy_s), abs=1e-9)
        now_s = result.arrays.status[0].now_s
        since_s = totals["serving_since_s"]
        in_service_s = totals["service_s"] + np.where(np.isnan(since_s), 0.0, now_s - since_s)
        assert in_service_s == pytest.approx(np.array([engine.service_s for engine in log.engines]), abs=1e-9)


def compare_caches(result: Result, log: reference.Log) -> None:
    """What was found, and where."""
    assert result.arrays.outcomes["cached_tokens"].tolist() == log.cached_tokens
    for engine, theirs in zip(result.arrays.engines, log.engines, strict=True):
        assert (engine.cache.on == 1) == (theirs.memory is not None)
        if theirs.memory is not None:
            for field in ("admitted_tokens", "cached_tokens", "regained_tokens", "overwritten_blocks"):
                assert engine.totals[field] == getattr(theirs.memory, field), field


def compare_adapters(result: Result, log: reference.Log) -> None:
    """How often each engine loaded and activated LoRA adapters, and that what it has is what it has by the rules."""
    numbers = np.unique(np.r_[0, result.scenario.workload.table["adapter"]])
    for engine, rows, theirs in zip(result.arrays.engines, result.arrays.adapters, log.engines, strict=True):
        if theirs.adapters is None:
            assert engine.adapters.max_loras == 0
            continue
        assert (engine.adapters.loads, engine.adapters.activations) == (
            theirs.adapters.loads,
            theirs.adapters.activations,
        )
        for field, there in (("host_use", theirs.adapters.in_host), ("device_use", theirs.adapters.in_device)):
            by_use = np.argsort(rows[field])
            assert numbers[by_use[rows[field][by_use] > 0]].tolist() == there, field


def engine_finish_s(result: Result) -> np.ndarray:
    """float64[requests]: when the last token of each came out of its engine; nan: it has not."""
    outcomes = result.arrays.outcomes
    return np.where(np.isfinite(outcomes["finish_s"]), outcomes["last_token_s"], np.nan)


def compare_clients(result: Result, log: reference.Log) -> None:
    """When requests were ready, clients had their first and last tokens, and what was computed for their sessions."""
    table = result.requests
    which = table.get("request", table.index)
    for row, r in zip(table.itertuples(), which, strict=True):
        tokens, nan = log.client_s[r], float("nan")
        done = log.finish_s[r] is not None
        theirs = [log.ready_s[r] or 0.0, tokens[0] if tokens else nan, tokens[-1] if done else nan]
        assert [row.ready_s, row.first_token_s, row.finish_s] == pytest.approx(theirs, abs=1e-9, nan_ok=True)
        assert result.arrays.requests[r].session_tokens == log.session_tokens[r]
