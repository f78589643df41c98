"""The parts of a picture: figures, meters and tables. A cell of a table is a text, a bar or a deadline."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from servegym.envs.rendering.words import ratio, share
from servegym.simulator.features.front import has_arrived
from servegym.simulator.runs.simulation import Simulation

# Kinds of a bar's parts.
DECODES, PREFILLS, MOVING, LATE, FREE, FAILED = "decodes", "prefills", "moving", "late", "free", "failed"
# Tones of texts and rows.
PLAIN, STRONG, FAINT, BAD, CHOSEN = "plain", "strong", "faint", "bad", "chosen"


@dataclasses.dataclass(frozen=True)
class Words:
    text: str
    tone: str = PLAIN


@dataclasses.dataclass(frozen=True)
class Bar:
    """A bar in a frame. parts: (share of the frame, kind) from the left; the rest is free. length: of the frame, as a
    share of its cell; None: the whole cell. tick: a mark at this share of the frame. words: a text in the bar."""

    parts: list[tuple[float, str]]
    length: float | None = None
    tick: float | None = None
    words: str = ""


@dataclasses.dataclass(frozen=True)
class Due:
    """Time to a deadline in seconds, drawn as a bar to the right of the middle, or to the left if it is missed."""

    remain_s: float


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table. pixels, columns: its width in a picture and in a text (0: left out). right: aligned so."""

    title: str
    pixels: int
    columns: int
    right: bool = False


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table. marked: with an arrow in front. note: the text beside the first cell in a tile."""

    cells: list[Words | Bar | Due]
    tone: str = PLAIN
    marked: bool = False
    note: Words = Words("")


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of `count` rows. row: makes row k. first: rows that are always shown. late: bool[count], for requests.
    lines: most rows in a picture, each at most `tall` pixels high; tiles: a longer table is drawn as tiles.
    most: most rows in a text. empty: text in place of rows if there are none."""

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
        """Choose at most `most` rows to show. Returns them, and a text that counts the others."""
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
    """Everything that a picture shows. figures: (title, figure, whether it is bad). meters: (words, remark in a
    picture, width in a picture, bar). deadlines: a title and float64[...], times to deadlines in seconds. bands: rows
    of tables side by side. legend: (kind, meaning) of the parts of bars."""

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
    """Gain so far / ideal gain of all requests of the episode, as in `info`; nan if the ideal gain is 0."""
    arriving = ~(simulation.arrays.outcomes["ready_s"] > simulation.scenario.until_s)
    ideal = simulation.scenario.gain.ideal(simulation.scenario.workload)[arriving].sum()
    return float(simulation.arrays.status[0].gain / ideal) if ideal > 0 else np.nan


def scene(
    simulation: Simulation, name: str, action: str, figures: list[tuple[str, str, bool]], **parts: object
) -> Scene:
    """Make a scene, filling in what all have in common: time, progress, next decision, and the figures of the gain."""
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
    """Seconds that the running batch of an engine has run, with its time before a suspension."""
    engine = simulation.arrays.engines[e]
    before_s = simulation.arrays.state.tasks[e, engine.running_task].executed_s if engine.running_task >= 0 else 0.0
    return float(simulation.arrays.status[0].now_s - engine.batch_start_s + before_s)


def decision_of(simulation: Simulation) -> str:
    """Describe the next decision."""
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
