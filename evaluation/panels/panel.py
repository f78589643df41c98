"""A panel: the cases policies are judged on, written down once in a YAML file so that all are judged on the same."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servegym.errors import ExperimentError, SpecError
from servegym.evaluation.candidates import ROUTER
from servegym.evaluation.shipped_files import load_mapping
from servegym.scenarios.demand import Demand
from servegym.scenarios.parts import Policies
from servegym.scenarios.ranges import listed
from servegym.scenarios.spec import PARTS, ServingSpec
from servegym.scenarios.values import fixed

PANELS = Path(__file__).parent / "shipped"
CHANGED = "-changed"
FIRST_SEED = 1_000_000  # training draws from seeds below it
LARGEST_SEED = 2**63 - 1
GONE_THROUGH = ("trace", "device", "load")  # fields of which a panel may have several
SERVED = ServingSpec(Demand(requests=2000), policies=Policies(router=ROUTER))  # where a panel does not say
ENDING = re.compile(r"(\.[a-z]\w*)+$")  # of a file: in a100-qwen1.5-7b there is none
OWN = ("name", "description", "seeds", "first_seed")


class PanelError(ExperimentError):
    """An unknown or invalid panel."""


@dataclasses.dataclass(frozen=True)
class Panel:
    """Every trace x device x load of a spec is a cell; each cell has `seeds` seeds that no other cell has.

    spec: with the policies of those kinds that are not judged. seeds: of each cell; they are numbered on from
    `first_seed` through the cells in order.

    Raises PanelError for a spec without a load, with several values of anything but trace, device and load, and for
    lists that repeat; names are looked up later.
    """

    name: str
    spec: ServingSpec
    description: str = ""
    seeds: int = 5
    first_seed: int = FIRST_SEED

    def __post_init__(self) -> None:
        for name in self.spec.varied:
            if name not in GONE_THROUGH:
                fixed(name, self.spec[name])
        if self.spec.demand.clients is not None:
            raise PanelError(
                f"panel {self.name}: clients are given, and a panel has loads; compare serves closed loops"
            )
        for what in GONE_THROUGH:
            values = listed(self.spec[what], what)
            if not values:
                raise PanelError(f"panel {self.name}: {what} is missing; it should have at least one")
            names = [ENDING.sub("", Path(value).name) if isinstance(value, str) else value for value in values]
            repeated = [name for name in names if names.count(name) > 1]
            if repeated:
                raise PanelError(f"panel {self.name}: {what} names {repeated[0]} twice")
        for what, low in (("seeds", 1), ("first_seed", 0)):
            number = getattr(self, what)
            if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= LARGEST_SEED:
                right = f"it should be a whole number of {low} or more"
                raise PanelError(f"panel {self.name}: {what} is {number!r}; {right}")

    @property
    def traces(self) -> tuple[str, ...]:
        return listed(self.spec.demand.trace)

    @property
    def devices(self) -> tuple[str, ...]:
        return listed(self.spec.fleet.device)

    @property
    def loads(self) -> tuple[float, ...]:
        return listed(self.spec.demand.load)

    @property
    def requests(self) -> int:
        return int(fixed("requests", self.spec.demand.requests))

    @property
    def slo(self) -> str:
        return str(fixed("slo", self.spec.demand.slo))

    @property
    def cells(self) -> int:
        return len(self.traces) * len(self.devices) * len(self.loads)

    def replaced(self, words: Mapping[str, Any], **own: Any) -> Panel:
        """This panel with other fields of its spec, seeds or first_seed, and a name that says so.

        None: as it is.
        """
        spec = self.spec.with_overrides({name: value for name, value in words.items() if value is not None})
        others = {name: value for name, value in own.items() if value is not None and value != getattr(self, name)}
        if spec == self.spec and not others:
            return self
        name = self.name if self.name.endswith(CHANGED) else self.name + CHANGED
        return dataclasses.replace(self, **{"name": name, "description": "", "spec": spec, **others})

    def to_json(self) -> dict[str, Any]:
        """The document of this panel, flat; `parse_panel` gives it back."""
        several = {name: list(listed(self.spec[name])) for name in GONE_THROUGH}
        return {name: getattr(self, name) for name in OWN} | self.spec.overrides() | several


def load_panel(name: str | Path) -> Panel:
    """A panel by its name, or from the path of a YAML file. Raises PanelError, SpecError."""
    document, path = load_mapping(name, PANELS, "panel", "trace, device and load", PanelError)
    return parse_panel({"name": path.stem, **document}, path.name)


def parse_panel(document: Mapping[str, Any], where: str) -> Panel:
    """A panel from its YAML: fields of a spec, description, seeds and first_seed. where: named in errors.

    Raises PanelError, SpecError.
    """
    document = flat(document)
    if missing := [name for name in GONE_THROUGH if name not in document]:
        raise PanelError(f"{where}: {missing[0]} is missing; a panel has trace, device and load")
    own = {key: value for key, value in document.items() if key in OWN}
    for key in ("name", "description"):
        if key in own:
            if not isinstance(own[key], str):
                raise PanelError(f"{where}: {key} has {own[key]!r}; it should be text")
            own[key] = " ".join(own[key].split())
    try:
        spec = SERVED.with_overrides({key: value for key, value in document.items() if key not in OWN})
        return Panel(spec=spec, **own)
    except (SpecError, PanelError) as error:
        raise type(error)(f"{where}: {error}") from None


def flat(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document with all fields at the top level."""
    found: dict[str, Any] = {}
    for key, value in document.items():
        found |= value if key in PARTS and isinstance(value, Mapping) else {str(key): value}
    return found
