"""Reading a run's timeline back as iterations, to compare it with another simulator's or an engine's log."""

from collections import namedtuple
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from servegym.simulator.records.types import TIMELINE, TIMELINE_KINDS
from servegym.simulator.runs.results import Result

Line = namedtuple("Line", TIMELINE.names or ())


END_ALL = ("failed", "off", "recalled")  # after these nothing of what has been started at the engine ends


@dataclass
class Iteration:
    engine: int
    start_s: float
    end_s: float = np.inf  # inf: it has not ended
    batch: list[tuple[int, int]] = field(default_factory=list)  # (request, tokens) in batch order
    evicted: list[int] = field(default_factory=list)  # while the batch was formed, in order
    used_blocks: int = -1
    saved: list[int] = field(default_factory=list, compare=False)  # tokens of each that was evicted
    loaded: list[tuple[int, int]] = field(default_factory=list, compare=False)


def lines(result: Result) -> list[Any]:
    """The timeline's lines, as tuples of Python's numbers: to read a field of a record takes thirty times as long."""
    arrays = result.arrays
    return [Line(*line) for line in arrays.timeline[: arrays.status[0].timeline_used].tolist()]


def iterations(result: Result) -> list[Iteration]:
    """Of a run recorded with its timeline, in order of their start, then of their engine."""
    forming: dict[int, Iteration] = {}
    running: dict[int, Iteration] = {}
    suspended: dict[int, list[Iteration]] = {}
    everything = []
    for line in lines(result):
        kind, engine, request = TIMELINE_KINDS[line.kind], int(line.engine), int(line.request)
        if kind in ("evicted", "loaded"):
            one = forming.setdefault(engine, Iteration(engine, 0.0))
            if kind == "evicted":
                one.evicted.append(request)
                one.saved.append(int(line.tokens))
            else:
                one.loaded.append((request, int(line.tokens)))
        elif kind == "batch_start":
            running[engine] = forming.pop(engine, Iteration(engine, 0.0))
            running[engine].start_s = float(line.time_s)
            everything.append(running[engine])
        elif kind == "scheduled":
            running[engine].batch.append((request, int(line.tokens)))
        elif kind == "suspended":
            suspended.setdefault(engine, []).append(running.pop(engine))
        elif kind == "resumed":
            running[engine] = next(i for i in suspended[engine] if i.batch[0][0] == request)
            suspended[engine].remove(running[engine])
        elif kind == "batch_end":
            running[engine].end_s = float(line.time_s)
            running[engine].used_blocks = int(line.tokens)
        elif kind in END_ALL:
            running.pop(engine, None)
            forming.pop(engine, None)
            suspended[engine] = []
    return everything
