"""Reading a run's timeline back as iterations, to compare it with another simulator's or an engine's log."""

from collections import namedtuple
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from servegym.simulator.records.types import TIMELINE, TIMELINE_KINDS
from servegym.simulator.runs.results import Result

Line = namedtuple("Line", TIMELINE.names or ())


@dataclass
class Iteration:
    engine: int
    start_s: float
    end_s: float = np.inf
    batch: list[tuple[int, int]] = field(default_factory=list)  # (request, tokens) in batch order
    evicted: list[int] = field(default_factory=list)  # while the batch was formed, in order
    used_blocks: int = -1


def lines(result: Result) -> list[Any]:
    """The timeline's lines, as tuples of Python's numbers: to read a field of a record takes thirty times as long."""
    arrays = result.arrays
    return [Line(*line) for line in arrays.timeline[: arrays.status[0].timeline_used].tolist()]


def iterations(result: Result) -> list[Iteration]:
    """The iterations of a run recorded with its timeline, in order of their start, then of their engine."""
    evicted: dict[int, list[int]] = {}
    running: dict[int, Iteration] = {}
    everything = []
    for line in lines(result):
        kind, engine = TIMELINE_KINDS[line.kind], int(line.engine)
        if kind == "evicted":
            evicted.setdefault(engine, []).append(int(line.request))
        elif kind == "batch_start":
            running[engine] = Iteration(engine, float(line.time_s), evicted=evicted.pop(engine, []))
            everything.append(running[engine])
        elif kind == "scheduled":
            running[engine].batch.append((int(line.request), int(line.tokens)))
        elif kind == "batch_end":
            running[engine].end_s = float(line.time_s)
            running[engine].used_blocks = int(line.tokens)
    return everything
