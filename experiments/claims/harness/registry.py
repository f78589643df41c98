"""A claim of a paper as a hypothesis, and the registry that finds all of them."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd

import experiments.claims
from experiments.claims.harness.cells import Cell
from experiments.claims.harness.checks import Check
from experiments.claims.harness.measuring_code import code_digest
from experiments.claims.harness.prose import Prose, prose_of
from experiments.claims.harness.settings import FULL, Setting, Size, stand_in
from servegym.errors import ExperimentError, unknown_name
from servegym.latency_models.profile import load_profile

Cells = Callable[[Setting, Size], Iterable[Cell]]
Measure = Callable[[Cell], dict[str, Any]]
Judge = Callable[["pd.DataFrame"], list[Check]]
Picture = Callable[["pd.DataFrame", Path], None]
Appendix = Callable[["pd.DataFrame", Path], str]


@dataclasses.dataclass(frozen=True)
class Claim:
    """What a paper says, stated so that a measurement can refute it.

    id: as `servegym reproduce` takes it. prose: what it says in words.
    cells: the runs of a setting. measure: what a run gives, as JSON. judge: the checks of a setting's rows.
    picture: draws the rows of all settings (None: the table says it all).
    families, devices: of its own settings; none: those that all claims have (`settings.FULL`). With `NO_FAMILY` each
        device is one setting, whose cells may be of several families.
    appendix: more to read under the tables, in Markdown, from the rows of all settings; it may write files (of tables
        too long for a page) into a folder beside the page, whose path it is given.
    """

    id: str
    prose: Prose
    cells: Cells
    measure: Measure
    judge: Judge
    picture: Picture | None = None
    families: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    appendix: Appendix | None = None

    def sized(self, size: Size) -> Size:
        """The size, in the settings of this claim."""
        return size.of(self.families, self.devices)

    def on(self, device: str, instead_of: str | None = None) -> Claim:
        """This claim on another device, by the rules of the one it stands in for (None: of the claim's first), without
        its other settings. Raises ExperimentError where it has none on that, ProfileError for a device there is not."""
        own = self.devices or FULL.devices
        replaced = own[0] if instead_of is None else instead_of
        if replaced not in own:
            raise ExperimentError(f"{self.id} has no setting on {replaced} to run instead; it has {', '.join(own)}")
        load_profile(device)
        return dataclasses.replace(self, devices=(stand_in(device, replaced),))

    @property
    def measure_digest(self) -> str:
        """Of the code that measures: rows of an edited one are other rows. How they are judged is not in it."""
        return code_digest(self.measure)


_registry: dict[str, Claim] = {}


def claim(
    id: str,
    *,
    cells: Cells,
    measure: Measure,
    picture: Picture | None = None,
    families: tuple[str, ...] = (),
    devices: tuple[str, ...] = (),
    appendix: Appendix | None = None,
) -> Callable[[Judge], Judge]:
    """Register the decorated function as the judge of a claim, whose words are in the Markdown file of its name.

    That is all it takes to add one. Raises ExperimentError for an id there is already, and as `prose_of` does.
    """

    def register(judge: Judge) -> Judge:
        if id in _registry and _registry[id].judge.__module__ != judge.__module__:
            raise ExperimentError(f"there is already a claim {id}")
        _registry[id] = Claim(id, prose_of(id), cells, measure, judge, picture, families, devices, appendix)
        return judge

    return register


def claims() -> dict[str, Claim]:
    """All claims by their ids, in the order of figures: as their files sort, numbers by value."""
    for module in pkgutil.iter_modules(experiments.claims.__path__):
        if not module.ispkg:
            importlib.import_module(f"{experiments.claims.__name__}.{module.name}")
    return dict(sorted(_registry.items(), key=lambda item: _by_number(item[0])))


def find_claims(ids: Iterable[str]) -> list[Claim]:
    """The claims of some ids, each once; all of them for none. Raises ExperimentError for an unknown id."""
    known = claims()
    wanted = list(dict.fromkeys(ids)) or list(known)
    for id in wanted:
        if id not in known:
            raise ExperimentError(unknown_name("claim", id, known))
    return [known[id] for id in wanted]


def _by_number(id: str) -> list[tuple[int, str]]:
    """Key that sorts fig3 before fig13 and fig15b: words as they are, figure numbers by value."""
    return [(int(number[1]) if (number := re.match(r"(?:fig)?(\d+)", part)) else 0, part) for part in id.split("-")]
