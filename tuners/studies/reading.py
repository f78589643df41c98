"""Reads a tuning from its YAML file and from command-line options."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from servegym.errors import ServegymError, TuningError
from servegym.evaluation.panels.panel import Panel, flat, load_panel, parse_panel
from servegym.evaluation.shipped_files import load_mapping, names_in
from servegym.tuners.search.choosing import Range
from servegym.tuners.search.space import ROLES
from servegym.tuners.studies.config import FIRST_SEEDS, PANELS, StudyConfig, TuningConfig

STUDIES = Path(__file__).parent / "shipped"
DEFAULT = "default"


def tuning_names() -> list[str]:
    """List the tunings that come with the package."""
    return names_in(STUDIES)


def load_tuning(name: str | Path) -> TuningConfig:
    """Read a tuning by its name in `tuning_names()`, or from the path of a YAML file. Raises TuningError."""
    document, path = load_mapping(name, STUDIES, "tuning", "panel and studies", TuningError)
    return parse_tuning(document, path.stem)


def parse_tuning(document: Mapping[str, Any], name: str) -> TuningConfig:
    """Parse a tuning's YAML document. name: of the tuning; named in errors. Raises TuningError."""
    known = [field.name for field in dataclasses.fields(TuningConfig)]
    unknown = [str(key) for key in document if key not in known]
    if unknown:
        raise TuningError(f"{name}: unknown key {unknown[0]!r}; a tuning has {', '.join(known)}")
    for key in ("panel", "studies"):
        if key not in document:
            raise TuningError(f"{name}: {key} is missing; a tuning has panel and studies")
    values = {"name": name} | {
        key: parse(key, document[key], name) for key, parse in PARSERS.items() if key in document
    }
    tuned = _panel_document(document["panel"], name, "panel")
    for which in PANELS:
        own = _panel_document(document.get(which) or {}, name, which)
        values[which] = panel_of({**_inherited(tuned, own), **own}, which, name)
    return TuningConfig(**values)


def _panel_document(given: Any, name: str, which: str) -> dict[str, Any]:
    """Read the document of a panel: a mapping, or the name or file of a panel for evaluations."""
    if isinstance(given, str):
        try:
            return load_panel(given).to_json()
        except ServegymError as error:
            raise TuningError(f"{name}: {which}: {error}") from None
    return flat(_mapping(which, given, name))


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


def _studies(key: str, given: Any, where: str) -> dict[str, StudyConfig]:
    return {str(name): _study(one, f"{where}: study {name}") for name, one in _mapping(key, given, where).items()}


def _study(document: Any, where: str) -> StudyConfig:
    given = _mapping(where, document or {}, "")
    known = (*ROLES, "tune")
    unknown = [str(key) for key in given if key not in known]
    if unknown:
        raise TuningError(f"{where}: unknown key {unknown[0]!r}; a study has {', '.join(known)}")
    texts = {role: _text(role, given[role], where) for role in ROLES if given.get(role) is not None}
    tune = given.get("tune") or {}
    if isinstance(tune, list):
        tune = dict.fromkeys(_texts("tune", tune, where))
    ranges = {str(key): _range(value, f"{where}: {key}") for key, value in _mapping("tune", tune, where).items()}
    return StudyConfig(**texts, tune=ranges)


def _range(given: Any, where: str) -> Range:
    """null: all that the policy declares; [words]: of these; {low, high, log, choices, tie}."""
    if given is None:
        return Range()
    if isinstance(given, list):
        return Range(choices=tuple(_texts("choices", given, where)))
    document = _mapping("a range", given, where)
    known = ("low", "high", "log", "choices", "tie")
    unknown = [str(key) for key in document if key not in known]
    if unknown:
        raise TuningError(f"{where}: unknown key {unknown[0]!r}; a range has {', '.join(known)}")
    log = document.get("log")
    if log is not None and not isinstance(log, bool):
        raise TuningError(f"{where}: log is {log!r}; it should be true or false")
    low, high = (None if document.get(key) is None else _number(key, document[key], where) for key in ("low", "high"))
    return Range(
        low,
        high,
        log,
        choices=tuple(_texts("choices", document.get("choices") or [], where)),
        tie=tuple(_texts("tie", document.get("tie") or [], where)),
    )


def parse_tune(texts: list[str]) -> dict[str, Range]:
    """Parse --tune: "NAME" or "NAME=LOW..HIGH" or "NAME=WORD|WORD", several with commas between them."""
    ranges: dict[str, Range] = {}
    for text in (part.strip() for given in texts for part in given.split(",")):
        name, equals, asked = text.partition("=")
        if not name or (equals and not asked):
            raise TuningError(f"--tune {text!r}: it should be NAME, NAME=LOW..HIGH or NAME=WORD|WORD")
        if ".." in asked:
            low, _, high = asked.partition("..")
            ranges[name] = Range(_number("low", low, f"--tune {text}"), _number("high", high, f"--tune {text}"))
        else:
            ranges[name] = Range(choices=tuple(asked.split("|")) if equals else ())
    return ranges


def _mapping(key: str, given: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise TuningError(f"{where}: {key} is {given!r}; it should be keys with values".removeprefix(": "))
    return given


def _texts(key: str, given: Any, where: str) -> list[str]:
    if not isinstance(given, list):
        raise TuningError(f"{where}: {key} is {given!r}; it should be a list")
    return [_text(key, item, where) for item in given]


def _text(key: str, given: Any, where: str) -> str:
    if not isinstance(given, str):
        raise TuningError(f"{where}: {key} is {given!r}; it should be text")
    return " ".join(given.split())


def _number(key: str, given: Any, where: str) -> float:
    try:
        if isinstance(given, bool):
            raise ValueError
        return float(given)  # a text too: YAML takes 3e-4 for one
    except (TypeError, ValueError):
        raise TuningError(f"{where}: {key} is {given!r}; it should be a number") from None


def _whole(key: str, given: Any, where: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise TuningError(f"{where}: {key} is {given!r}; it should be a whole number")
    return given


def _constraints(key: str, given: Any, where: str) -> dict[str, float]:
    return {str(name): _number(f"{key}.{name}", value, where) for name, value in _mapping(key, given, where).items()}


PARSERS: dict[str, Callable[[str, Any, str], Any]] = {  # of keys of a file that are no panels
    **dict.fromkeys(("name", "description", "sampler", "pruner"), _text),
    **dict.fromkeys(("trials", "top_k", "seed", "group", "slices"), _whole),
    "objectives": lambda key, given, where: tuple(_texts(key, given, where)),
    "constraints": _constraints,
    "studies": _studies,
}
