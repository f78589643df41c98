"""A panel: the cases policies are judged on, written down once in a YAML file so that all are judged on the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servegym.experiments.contenders import ROUTER
from servegym.experiments.errors import ExperimentError
from servegym.experiments.load import parse_load
from servegym.experiments.shipped_files import load_mapping, names_in

PANELS = Path(__file__).parent / "panels"
CHANGED = "-changed"
FIRST_SEED = 1_000_000  # training draws from seeds below it
LARGEST_SEED = 2**63 - 1


class PanelError(ExperimentError):
    """A panel that is missing, or does not say what it should."""


@dataclasses.dataclass(frozen=True)
class Panel:
    """Every trace x device x load is a cell; each cell has `seeds` seeds that no other cell has.

    traces, devices, slo, arrivals: as `build_workload` and `load_profile` take them. loads: relative to saturation.
    requests: of each run. seeds: of each cell; they are numbered on from `first_seed` through the cells in order.
    engines, prefill, decode, decode_scheduler: what serves, as `Engines` takes them.
    scheduler, router, scaler: "name:key=value,..." of those that are not judged.

    Raises PanelError for lists that are empty or repeat, and numbers out of range; names are looked up later.
    """

    name: str
    traces: tuple[str, ...]
    devices: tuple[str, ...]
    loads: tuple[float, ...]
    description: str = ""
    slo: str = "proserve"
    arrivals: str | None = None
    requests: int = 2000
    seeds: int = 5
    first_seed: int = FIRST_SEED
    engines: int = 1
    prefill: int = 0
    decode: int = 0
    decode_scheduler: str | None = None
    scheduler: str = "slide-batching"
    router: str = ROUTER
    scaler: str | None = None

    def __post_init__(self) -> None:
        for what in ("traces", "devices", "loads"):
            values = getattr(self, what)
            if not values:
                raise PanelError(f"panel {self.name}: {what} is empty; it should name at least one")
            names = [Path(value).stem if isinstance(value, str) else value for value in values]
            repeated = [name for name in names if names.count(name) > 1]
            if repeated:
                raise PanelError(f"panel {self.name}: {what} names {repeated[0]} twice")
        for what, low in (("requests", 1), ("seeds", 1), ("first_seed", 0), ("engines", 1)):
            number = getattr(self, what)
            if not low <= number <= LARGEST_SEED:
                raise PanelError(f"panel {self.name}: {what} is {number}; it should be {low} or more")

    @property
    def cells(self) -> int:
        return len(self.traces) * len(self.devices) * len(self.loads)

    def replaced(self, **changes: Any) -> Panel:
        """This panel with other values, and a name that says so; those that are None stay as they are."""
        others = {name: value for name, value in changes.items() if value is not None and value != getattr(self, name)}
        if not others:
            return self
        name = self.name if self.name.endswith(CHANGED) else self.name + CHANGED
        return dataclasses.replace(self, **{"name": name, "description": "", **others})

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def panel_names() -> list[str]:
    """Panels that come with the package."""
    return names_in(PANELS)


def load_panel(name: str | Path) -> Panel:
    """A panel by its name in `panel_names()`, or from the path of a YAML file. Raises PanelError."""
    document, path = load_mapping(name, PANELS, "panel", "traces, devices and loads", PanelError)
    return parse_panel({"name": path.stem, **document}, path.name)


def parse_panel(document: Mapping[str, Any], where: str) -> Panel:
    """A panel from its YAML. where: named in errors. Raises PanelError."""
    fields = {field.name: field for field in dataclasses.fields(Panel)}
    unknown = [str(key) for key in document if key not in fields]
    if unknown:
        raise PanelError(f"{where}: unknown key {unknown[0]!r}; a panel has {', '.join(fields)}")
    missing = [name for name in ("traces", "devices", "loads") if name not in document]
    if missing:
        raise PanelError(f"{where}: {missing[0]} is missing; a panel has traces, devices and loads")
    return Panel(**{key: _value(key, fields[key].type, value, where) for key, value in document.items()})


def _value(key: str, kind: Any, value: Any, where: str) -> Any:
    """A value as its field has it. kind: the field's annotation, which is text."""
    if key == "loads":
        return tuple(parse_load(str(load)) for load in _listed(key, value, where))
    if kind.startswith("tuple"):
        return tuple(_text(key, item, where) for item in _listed(key, value, where))
    if kind == "int":
        if isinstance(value, bool) or not isinstance(value, int):
            raise PanelError(f"{where}: {key} is {value!r}; it should be a whole number")
        return value
    if value is None and "None" in kind:
        return None
    return _text(key, value, where)


def _listed(key: str, value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise PanelError(f"{where}: {key} is {value!r}; it should be a list")
    return value


def _text(key: str, value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise PanelError(f"{where}: {key} has {value!r}; it should be text")
    return " ".join(value.split())
