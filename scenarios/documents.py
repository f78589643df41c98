"""Specs as files: reads presets, YAML and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servegym.errors import SpecError, unknown_name
from servegym.scenarios import values
from servegym.scenarios.presets import PRESETS
from servegym.scenarios.spec import LEAVES, PARTS, ServingSpec


def load_spec(path: str | Path) -> ServingSpec:
    """Load the spec of a preset, by name, or of a file; missing fields have their defaults. Raises SpecError."""
    return ServingSpec.from_json(load_words(path))


def of_preset(name: str) -> dict[str, Any]:
    """Return the fields of a preset. A single load profile is not in a tuple, so that it equals the default."""
    fields = dict(PRESETS[name].overrides)
    profiles = values.profiles_of(fields.get("load_profile", ()))
    return fields | ({"load_profile": profiles[0]} if len(profiles) == 1 else {})


def load_words(path: str | Path) -> dict[str, Any]:
    """Load the fields of a preset, or of a YAML or JSON file, by their names without parts. Raises SpecError."""
    from servegym.yaml_parsing import parse_yaml  # imports yaml

    if str(path) in PRESETS:
        return of_preset(str(path))
    path = Path(path)
    if not path.suffix and not path.exists():
        raise SpecError(f"{unknown_name('preset', str(path), PRESETS)}, or the path of a file")
    try:
        document = parse_yaml(path.read_text(encoding="utf-8"))  # JSON is YAML too
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}") from None
    except ValueError as error:  # of the text, or of its characters
        raise SpecError(f"{path.name} is no YAML: {error}") from None
    if not isinstance(document, Mapping):
        raise SpecError(f"{path.name} should be keys with values: {', '.join([*PARTS, 'gain'])}")
    try:
        found = values.read({str(key): value for key, value in document.items()}, LEAVES, PARTS)
        if found.get("pools") == () and not found.keys() & {"engines", "prefill", "decode"}:
            raise SpecError("pools is an empty list; it should have one pool or more, or be left out")
        ServingSpec().with_overrides(found)
    except SpecError as error:
        raise SpecError(f"{path.name}: {error}") from None
    return found
