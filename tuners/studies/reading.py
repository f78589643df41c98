"""Reads a tuning from its YAML file and from command-line options."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servegym.errors import ServegymError, TuningError
from servegym.evaluation.panels.panel import Panel, flat, load_panel, parse_panel
from servegym.evaluation.shipped_files import load_mapping
from servegym.tuners.config import from_plain
from servegym.tuners.search.choosing import Range
from servegym.tuners.studies.config import FIRST_SEEDS, PANELS, TuningConfig

STUDIES = Path(__file__).parent / "shipped"
DEFAULT = "default"


def load_tuning(name: str | Path) -> TuningConfig:
    """Read a tuning by its name, or from the path of a YAML file. Raises TuningError."""
    document, path = load_mapping(name, STUDIES, "tuning", "panel and studies", TuningError)
    return parse_tuning(document, path.stem)


def parse_tuning(document: Mapping[str, Any], name: str) -> TuningConfig:
    """Parse a tuning's YAML document. name: of the tuning; named in errors. Raises TuningError."""
    kinds = typing.get_type_hints(TuningConfig)
    if unknown := [str(key) for key in document if key not in kinds]:
        raise TuningError(f"{name}: unknown key {unknown[0]!r}; a tuning has {', '.join(kinds)}")
    for key in ("panel", "studies"):
        if key not in document:
            raise TuningError(f"{name}: {key} is missing; a tuning has panel and studies")
    plain = {key: value for key, value in document.items() if key not in PANELS}
    if isinstance(plain["studies"], Mapping):
        plain["studies"] = {key: _with_ranges(study) for key, study in plain["studies"].items()}
    try:
        values = {key: from_plain(kinds[key], value, key, TuningError) for key, value in plain.items()}
    except TuningError as error:
        raise TuningError(f"{name}: {error}") from None
    if "description" in values:
        values["description"] = " ".join(values["description"].split())
    tuned = _panel_document(document["panel"], name, "panel")
    for which in PANELS:
        own = _panel_document(document.get(which) or {}, name, which)
        values[which] = panel_of({**_inherited(tuned, own), **own}, which, name)
    return TuningConfig(**{"name": name, **values})


def _with_ranges(study: Any) -> Any:
    """Write the short forms of a study as keys with values: no range: null; words of a parameter: a list."""
    study = study or {}
    if not isinstance(study, Mapping):
        return study
    tune = study.get("tune") or {}
    tune = dict.fromkeys(tune) if isinstance(tune, list) else tune
    if isinstance(tune, Mapping):
        tune = {key: {"choices": given} if isinstance(given, list) else given or {} for key, given in tune.items()}
    return {**study, "tune": tune}


def _panel_document(given: Any, name: str, which: str) -> dict[str, Any]:
    """Read the document of a panel: a mapping, or the name or file of a panel for evaluations."""
    if isinstance(given, str):
        try:
            return load_panel(given).to_json()
        except ServegymError as error:
            raise TuningError(f"{name}: {which}: {error}") from None
    if not isinstance(given, Mapping):
        raise TuningError(f"{name}: {which} is {given!r}; it should be keys with values")
    return flat(given)


def _inherited(tuned: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Take the keys of the panel that validation and test share with it: all but seeds and description."""
    dropped = {"first_seed", "description", "name"} | ({"seeds"} if "seeds" in own else set())
    return {key: value for key, value in tuned.items() if key not in dropped}


def panel_of(document: Mapping[str, Any], which: str, name: str) -> Panel:
    """Make one of the panels of a tuning. Raises TuningError."""
    document = {"first_seed": FIRST_SEEDS[which], **document, "name": which}
    try:
        return parse_panel(document, f"{name}: {which}")
    except ServegymError as error:
        raise TuningError(str(error)) from None


def parse_tune(texts: list[str]) -> dict[str, Range]:
    """Parse --tune: "NAME" or "NAME=LOW..HIGH" or "NAME=WORD|WORD", several with commas between them."""
    ranges: dict[str, Range] = {}
    for text in (part.strip() for given in texts for part in given.split(",")):
        name, equals, asked = text.partition("=")
        if not name or (equals and not asked):
            raise TuningError(f"--tune {text!r}: it should be NAME, NAME=LOW..HIGH or NAME=WORD|WORD")
        if ".." in asked:
            low, _, high = asked.partition("..")
            ends = zip(("low", "high"), (low, high), strict=True)
            ranges[name] = Range(*(from_plain(float, end, f"--tune {text}: {key}", TuningError) for key, end in ends))
        else:
            ranges[name] = Range(choices=tuple(asked.split("|")) if equals else ())
    return ranges
