"""What a picture consists of: figures, bars, and tables. A cell of a table is words, a bar or a deadline."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from servegym.envs.rendering.words import ratio, share
from servegym.simulator.features.front import has_arrived
from servegym.simulator.runs.simulation import Simulation

# Kinds of parts of bars.
DECODES, PREFILLS, MOVING, LATE, FREE, FAILED = "decodes", "prefills", "moving", "late", "free", "failed"
# Tones of words and rows.
PLAIN, STRONG, FAINT, BAD, CHOSEN = "plain", "strong", "faint", "bad", "chosen"


@dataclasses.dataclass(frozen=True)
class Words:
    text: str
    tone: str = PLAIN


@dataclasses.dataclass(frozen=True)
class Bar:
    """parts: (share of the frame, kind) from the left; the rest is free. length: of the frame, as a share
    of its place; None: all of it. tick: a mark at this share of the frame; words: written into it."""

    parts: list[tuple[float, str]]
    length: float | None = None
    tick: float | None = None
    words: str = ""


@dataclasses.dataclass(frozen=True)
class Due:
    """Time to a deadline as a bar, to the right of the middle if it can be met, else to the left."""

    remain_s: float


@dataclasses.dataclass(frozen=True)
class Column:
    """pixels and columns: its width in a picture and in a text (0: it is left out)."""

    title: str
    pixels: int
    columns: int
    right: bool = False


@dataclasses.dataclass(frozen=True)
class Row:
    """marked: with an arrow in front. note: what a tile of the row says beside its first cell."""

    cells: list[Words | Bar | Due]
    tone: str = PLAIN
    marked: bool = False
    note: Words = Words("")


@dataclasses.dataclass(frozen=True)
class Table:
    """row: makes row k of `count`. first: rows that are shown in any case. late: bool[count], of requests.
    lines: rows in a picture, each at most `tall` pixels high; tiles: more of them are drawn as tiles.
    most: rows in a text. empty: what is written if there are none."""

    title: str
    columns: list[Column]
    count: int
    row: Callable[[int], Row]
    lines: int
    most: int
    tall: int = 17
    tiles: bool = False
    first: tuple[int, ...] = ()
    late: np.ndarray | None = None
    empty: str = "none"

    def cut(self, most: int) -> tuple[list[int], str]:
        """The rows for which there is room, and in words how many there are beside them."""
        if self.count <= most:
            return list(range(self.count)), "" if self.count else self.empty
        first = list(self.first[:most])
        shown = sorted(first + [k for k in range(most + len(first)) if k not in first][: most - len(first)])
        more = f"+ {self.count - len(shown):,} more"
        if self.late is not None:
            more += f", {int(self.late.sum() - self.late[shown].sum()):,} of them late"
        return shown, more


@dataclasses.dataclass(frozen=True)
class Scene:
    """figures: (title, figure, whether it is bad news). meters: (words, remark of a picture, width in a picture, bar).
    deadlines: a title and float64[...], times to deadlines. bands: tables side by side, below one another.
    legend: what parts of bars stand for."""

    name: str
    now_s: float
    progress: str
    decision: str
    action: str
    figures: list[tuple[str, str, bool]]
    meters: list[tuple[str, str, int, Bar]]
    deadlines: tuple[str, np.ndarray]
    bands: list[list[Table]]
    legend: list[tuple[str, str]]
    remark: str


def tdg_ratio(simulation: Simulation) -> float:
    """Gain so far / ideal gain of all requests of the episode, as in `info`; nan: there is none to gain."""
    arriving = ~(simulation.arrays.outcomes["ready_s"] > simulation.scenario.until_s)
    ideal = simulation.scenario.gain.ideal(simulation.scenario.workload)[arriving].sum()
    return float(simulation.arrays.status[0].gain / ideal) if ideal > 0 else np.nan


def scene(
    simulation: Simulation, name: str, action: str, figures: list[tuple[str, str, bool]], **parts: object
) -> Scene:
    """A scene with what all have: time, progress, the next decision, and the gain so far in front of other figures."""
    arrays, status = simulation.arrays, simulation.arrays.status[0]
    arrived = has_arrived(arrays)
    tokens = int(arrays.requests["num_output_tokens"][arrived].sum())
    on_time = arrays.outcomes["on_time_tokens"][arrived].sum() / tokens if tokens else np.nan
    return Scene(
        name=name,
        now_s=float(status.now_s),
        progress=f"{arrived.sum():,} requests have come, {status.finished:,} are finished, {tokens:,} tokens out",
        decision=decision_of(simulation),
        action=action,
        figures=[
            ("TDG ratio of the episode so far", ratio(tdg_ratio(simulation)), False),
            ("gain so far", f"{status.gain:,.0f}", False),
            ("tokens out that were in time", share(on_time), False),
            *figures,
        ],
        **parts,  # type: ignore[arg-type]
    )


def ran_s(simulation: Simulation, e: int) -> float:
    """How long the running batch of an engine has run, with what it ran before it was suspended."""
    engine = simulation.arrays.engines[e]
    before_s = simulation.arrays.state.tasks[e, engine.running_task].executed_s if engine.running_task >= 0 else 0.0
    return float(simulation.arrays.status[0].now_s - engine.batch_start_s + before_s)


def decision_of(simulation: Simulation) -> str:
    """What is to be decided next, in words."""
    status = simulation.arrays.status[0]
    if simulation.ended:
        return "the episode is over"
    if status.deciding_request >= 0:
        return f"to decide: where request {status.deciding_request} goes"
    if status.deciding_check:
        return "to decide: tiers of the engines"
    if status.deciding_engine >= 0:
        running = simulation.arrays.engines[status.deciding_engine].batch_length > 0
        what = "whether to suspend the batch" if running else "next batch"
        return f"to decide: {what} of engine {status.deciding_engine}"
    return "nothing has happened yet"
