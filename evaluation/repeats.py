"""How the runs of one scenario differ, and so what an interval over them covers; and the windows of a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from servegym.scenarios.spec import ServingSpec
from servegym.scenarios.values import fixed
from servegym.simulator.inputs.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

COLUMN = "interval_over"  # of tables and documents: one of these
SEEDS, WINDOWS, BLOCKS = "seeds of generated traffic", "windows of the file", "bootstrap blocks of the file"
ARRIVALS, PRIORITIES, ENGINES = "drawn arrivals only", "invented priorities only", "noise of the engines only"
SAME, ONE = "nothing: the same run for every seed", "nothing: one run"  # there is no interval
NOT_SAID = {
    ARRIVALS: "The requests are the same in every run, so it says nothing about others.",
    PRIORITIES: "Requests and arrivals are the same in every run, so it says nothing about other traffic.",
    ENGINES: "Requests and arrivals are the same in every run, so it says nothing about other traffic.",
    SAME: "There is one run, the same for every seed, so nothing says how other traffic would be served.",
}


class Repeats(NamedTuple):
    """over: how runs differ, one of the texts above. runs: of each scenario; seeds: asked for. of_file: of a trace."""

    over: str
    runs: int
    seeds: int
    of_file: bool = False

    def times(self, what: str) -> str:
        """How often what is served is run, for a title."""
        if self.over == SAME:
            return f"{what}, one run, the same for every seed"
        one = {WINDOWS: "window", BLOCKS: "resample"}.get(self.over, "seed")
        return f"{what} x {self.runs} {one}{'s' * (self.runs > 1)}{' of the file' * (one != 'seed')}"

    @property
    def legend(self) -> str:
        """What ± means below a table of means."""
        if self.over in (SAME, ONE):
            return "one run, so no interval"
        return f"± 95 % interval over {self.over} (Student's t; differences paired by run)"

    @property
    def notes(self) -> list[str]:
        """What the interval does not say, and what would."""
        notes = [NOT_SAID[self.over]] if self.over in NOT_SAID else []
        if self.over == WINDOWS and self.runs < self.seeds:
            notes = [f"The file has room for {self.runs} windows that do not overlap, not for {self.seeds}."]
        more = "--resample draws other traffic from the file's own time."
        return [" ".join([*notes, more])] if notes and self.of_file else notes


def times_of(several: Iterable[Repeats], what: str) -> str:
    """How often what is served is run, for a title, where scenarios may differ in that."""
    kinds = list(dict.fromkeys(several))
    return kinds[0].times(what) if len(kinds) == 1 else f"{what} x up to {max(one.runs for one in kinds)} seeds"


def over_of(table: pd.DataFrame) -> str:
    """What the intervals of a table are over; of runs that do not say, seeds."""
    return ", ".join(dict.fromkeys(table[COLUMN])) if COLUMN in table else "seeds"


def repeats_of(spec: ServingSpec, workloads: Sequence[Workload], *, seeds: int, of_file: bool, windows: int) -> Repeats:
    """How runs with these workloads differ. workloads: of all seeds. windows: of the file that they are of, if any."""
    over = ONE
    if len(workloads) > 1:
        over = _difference(spec, workloads, of_file, windows)
    return Repeats(over, 1 if over == SAME else len(workloads), seeds, of_file)


def _difference(spec: ServingSpec, workloads: Sequence[Workload], of_file: bool, windows: int) -> str:
    if len({workload.digest for workload in workloads}) == 1:
        return ENGINES if _has_noise(spec) else SAME
    if not of_file:
        return SEEDS
    if spec.demand.resample:
        return BLOCKS
    if windows > 1:
        return WINDOWS
    first, *others = (workload.table["arrival_s"] for workload in workloads)
    return PRIORITIES if all(np.array_equal(first, other, equal_nan=True) for other in others) else ARRIVALS


def _has_noise(spec: ServingSpec) -> bool:
    """Whether the seed draws what engines do."""
    of = spec.imperfection
    return of.noise_seed is None and (fixed("noise", of.noise) > 0 or spec.fleet.speculation is not None)


def windows_of(length: int, size: int, seeds: int) -> tuple[int, ...]:
    """Where windows of a file begin, that do not overlap and lie evenly over it: one a seed, or as many as there is
    room for, at least one. length: requests of the file; size: of a window."""
    count = max(1, min(seeds, length // size))
    return tuple(np.linspace(0, length - size, count).astype(int).tolist()) if count > 1 else (0,)
