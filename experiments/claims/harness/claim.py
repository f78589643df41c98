"""A claim of a paper as a hypothesis, and the registry that finds all of them."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import servegym.experiments.claims
from servegym.experiments.claims.harness.cells import Cell
from servegym.experiments.claims.harness.checks import Check
from servegym.experiments.claims.harness.settings import Setting, Size
from servegym.experiments.errors import ExperimentError

if TYPE_CHECKING:
    import pandas as pd

Cells = Callable[[Setting, Size], Iterable[Cell]]
Measure = Callable[[Cell], dict[str, Any]]
Judge = Callable[["pd.DataFrame"], list[Check]]
Picture = Callable[["pd.DataFrame", Path], None]
Appendix = Callable[["pd.DataFrame", Path], str]


@dataclasses.dataclass(frozen=True)
class Claim:
    """What a paper says, stated so that a measurement can refute it.

    id: as `servegym reproduce` takes it. figure: where the paper shows it. paper: what it says there.
    hypothesis: the same, measurable, margins in numbers. refuted_by: what would show it wrong.
    cells: the runs of a setting. measure: what a run gives, as JSON. judge: the checks of a setting's rows.
    picture: draws the rows of all settings (None: the table says it all). caption: what the picture shows.
    reading: written after the full run, as only `in_short` is too: what it showed, and why as far as checks tell.
    in_short: the reason of the verdict in a line, for the index; empty: the check that fails most, with its numbers.
    families, devices: of its own settings; none: those that all claims have (`settings.FULL`). With `NO_FAMILY` each
        device is one setting, whose cells may be of several families.
    appendix: more to read under the tables, in Markdown, from the rows of all settings; it may write files (of tables
        too long for a page) into a folder beside the page, whose path it is given.
    """

    id: str
    figure: str
    paper: str
    hypothesis: str
    refuted_by: str
    cells: Cells
    measure: Measure
    judge: Judge
    picture: Picture | None = None
    caption: str = ""
    reading: str = ""
    families: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    appendix: Appendix | None = None
    in_short: str = ""

    def sized(self, size: Size) -> Size:
        """The size, in the settings of this claim."""
        return size.of(self.families, self.devices)

    @property
    def measure_digest(self) -> str:
        """Of the code that measures: rows of an edited one are other rows. How they are judged is not in it.

        A module that defines `MEASURED_WITH` names modules there that its functions measure with, which may do so too.
        """
        function = self.measure.func if isinstance(self.measure, functools.partial) else self.measure
        sources = [inspect.getsource(part) for part in (function, *_measured_with(inspect.getmodule(function)))]
        sources += [path.read_text("utf-8") for path in _measuring_files()]
        settings = repr(getattr(self.measure, "keywords", {}))
        return hashlib.sha256("\n".join([*sources, settings]).encode()).hexdigest()[:16]


def _measured_with(module: Any) -> list[Any]:
    """What a module measures with, and what that does, each once."""
    parts: list[Any] = []
    found = list(getattr(module, "MEASURED_WITH", ()))
    while found:
        part = found.pop(0)
        if part not in parts:
            parts.append(part)
            found += getattr(part, "MEASURED_WITH", ())
    return parts


@functools.cache
def _measuring_files() -> tuple[Path, ...]:
    folder = Path(__file__).parent
    return tuple(folder / name for name in ("settings.py", "cells.py", "served.py", "measures.py", "timelines.py"))


_registry: dict[str, Claim] = {}


def claim(
    id: str,
    *,
    figure: str,
    paper: str,
    hypothesis: str,
    refuted_by: str,
    cells: Cells,
    measure: Measure,
    picture: Picture | None = None,
    caption: str = "",
    reading: str = "",
    families: tuple[str, ...] = (),
    devices: tuple[str, ...] = (),
    appendix: Appendix | None = None,
    in_short: str = "",
) -> Callable[[Judge], Judge]:
    """Register the decorated function as the judge of a claim. That is all it takes to add one."""

    def register(judge: Judge) -> Judge:
        if id in _registry and _registry[id].judge.__module__ != judge.__module__:
            raise ExperimentError(f"there is already a claim {id}")
        _registry[id] = Claim(
            id, figure, paper, hypothesis, refuted_by, cells, measure, judge, picture, caption, reading,
            families, devices, appendix, in_short,
        )  # fmt: skip
        return judge

    return register


def claims() -> dict[str, Claim]:
    """All claims by their ids, in the order of figures: as their files sort, numbers by value."""
    for module in pkgutil.iter_modules(servegym.experiments.claims.__path__):
        if not module.ispkg:
            importlib.import_module(f"{servegym.experiments.claims.__name__}.{module.name}")
    return dict(sorted(_registry.items(), key=lambda item: _by_number(item[0])))


def find_claims(ids: Iterable[str]) -> list[Claim]:
    """The claims of some ids, each once; all of them for none. Raises ExperimentError for an unknown id."""
    known = claims()
    wanted = list(dict.fromkeys(ids)) or list(known)
    for id in wanted:
        if id not in known:
            close = difflib.get_close_matches(id, known, n=1)
            meant = f" (did you mean '{close[0]}'?)" if close else ""
            raise ExperimentError(f"unknown claim '{id}'{meant}; there are: {', '.join(known)}")
    return [known[id] for id in wanted]


def _by_number(id: str) -> list[tuple[int, str]]:
    """Key that sorts fig3 before fig13 and fig15b: words as they are, figure numbers by value."""
    return [(int(number[1]) if (number := re.match(r"(?:fig)?(\d+)", part)) else 0, part) for part in id.split("-")]
