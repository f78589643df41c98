"""Specs as files: reads and writes YAML and JSON, and makes their JSON Schema.

python -m servegym.scenarios.documents     rewrites docs/spec.schema.json and the tables of docs/spec.md
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from servegym.errors import SpecError, unknown_name
from servegym.parsing import parse_yaml
from servegym.scenarios import fields, values
from servegym.scenarios.presets import PRESETS
from servegym.scenarios.spec import LEAVES, PARTS, ServingSpec
from servegym.simulator.features.front_end import FrontEnd
from servegym.simulator.features.speculation import MOST_DRAFTS, Speculation

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
WHOLE_NUMBER: Schema = {"type": "integer"}
OBJECT: Schema = {"type": "object"}
POOL = {
    "type": "object",
    "properties": {
        "device": {"type": ["string", "null"]}, "engines": WHOLE_NUMBER | {"minimum": 1},
        "role": {"enum": ["both", "prefill", "decode"]}, "scheduler": {"type": ["string", "null"]},
        "tier": {"type": ["integer", "null"], "minimum": 0},
    },
    "additionalProperties": False,
}  # fmt: skip
INCIDENT = {
    "type": "object",
    "properties": {
        "time_s": {"type": "number", "minimum": 0}, "engine": WHOLE_NUMBER | {"minimum": 0},
        "kind": {"enum": ["fail", "return", "drain"]},
    },
    "required": ["time_s", "engine", "kind"],
    "additionalProperties": False,
}  # fmt: skip


def load_spec(path: str | Path) -> ServingSpec:
    """Load the spec of a preset, by name, or of a file; missing fields have their defaults. Raises SpecError."""
    return ServingSpec.from_json(load_words(path))


def of_preset(name: str) -> dict[str, Any]:
    """The fields of a preset. A single load profile is not in a tuple of several, so that it equals the default."""
    said = dict(PRESETS[name].overrides)
    profiles = values.profiles_of(said.get("load_profile", ()))
    return said | ({"load_profile": profiles[0]} if len(profiles) == 1 else {})


def load_words(path: str | Path) -> dict[str, Any]:
    """Load the fields of a preset, or of a YAML or JSON file, by their names without parts. Raises SpecError."""
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


def to_yaml(spec: ServingSpec) -> str:
    """Write the fields that differ from their defaults as YAML, which `load_spec` reads back."""
    default = ServingSpec().to_json()
    document = {
        key: {name: value for name, value in part.items() if value != default[key][name]}
        if isinstance(part, dict) and key in PARTS
        else part
        for key, part in spec.to_json().items()
        if part != default[key]
    }
    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a spec's file. A field is under its part or at the top level."""
    properties: dict[str, Any] = {}
    for part, kind in PARTS.items():
        inside = {name: {"$ref": f"#/$defs/{name}"} for name, (of, _) in LEAVES.items() if of == part}
        summary = " ".join((kind.__doc__ or "").split())
        properties[part] = {
            "type": "object", "description": summary, "properties": inside, "additionalProperties": False,
        }  # fmt: skip
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ServingSpec",
        "description": "The requests, engines and policies of a run. A field is under its part or at the top level.",
        "type": "object",
        "properties": properties | {name: {"$ref": f"#/$defs/{name}"} for name in LEAVES},
        "additionalProperties": False,
        "$defs": {name: _schema_of(name, option) for name, (_, option) in LEAVES.items()},
    }


def _schema_of(name: str, option: fields.Option) -> dict[str, Any]:
    default = values.plain(ServingSpec()[name])
    made: dict[str, Any] = {"description": option.help, "default": default}
    if option.unit:
        made["x-unit"] = option.unit
    if default is None:
        return made | {"anyOf": [*_kinds(option), {"type": "null"}]}
    kinds = _kinds(option)
    return made | (kinds[0] if len(kinds) == 1 else {"anyOf": kinds})


def _kinds(option: fields.Option) -> list[dict[str, Any]]:
    """Schemas of the values that a field can have."""
    kind = option.kind
    if kind in fields.NUMERIC:
        one: dict[str, Any] = {"type": "integer" if kind == fields.WHOLE else "number"}
        for key, bound in (("minimum", option.least), ("exclusiveMinimum", option.above), ("maximum", option.most)):
            if bound is not None and abs(bound) != float("inf"):
                one[key] = bound
        end = {"type": "number", "exclusiveMinimum": 0}
        span = {
            "type": "object", "properties": {"low": end, "high": end}, "required": ["low", "high"],
            "additionalProperties": False,
        }  # fmt: skip
        names: list[Schema] = [{"enum": ["light", "medium", "high", "overload"]}] if kind == fields.LOAD else []
        names += [{"const": "inf"}] if option.most == float("inf") else []
        several = {"type": "array", "items": {"anyOf": [one, *names]} if names else one, "minItems": 1}
        return [one, *names, several, span]
    several_texts: Schema = {"type": "array", "items": TEXT, "minItems": 1}
    pair: Schema = {"type": "array", "prefixItems": [{"type": "number"}] * 2, "minItems": 2, "maxItems": 2}
    profile: Schema = {"type": "array", "items": pair, "minItems": 1}
    kinds: dict[str, list[Schema]] = {
        fields.NAME: [TEXT, several_texts],
        fields.POLICY: [TEXT, several_texts],
        fields.CHOICE: [{"enum": list(option.choices)}],
        fields.GAIN: [TEXT, OBJECT],
        fields.PREDICTOR: [TEXT, OBJECT],
        fields.FLAG: [{"type": "boolean"}],
        fields.CORRECTION: [{"type": "boolean"}, OBJECT],
        fields.FRONT_END: [TEXT, front_end_schema()],
        fields.SPECULATION: [TEXT, speculation_schema()],
        fields.INCIDENTS: [{"type": "array", "items": {"anyOf": [TEXT, INCIDENT]}}],
        fields.LOAD_PROFILE: [TEXT, profile, {"type": "array", "items": profile, "minItems": 1}],
        fields.POOLS: [{"type": "array", "items": POOL}],
        fields.COLUMNS: [
            TEXT,
            {"type": "object", "additionalProperties": TEXT},
            {"type": "array", "items": {"type": "array", "items": TEXT, "minItems": 2, "maxItems": 2}},
        ],
        fields.WINDOW: [{"enum": ["seed", "first"]}, WHOLE_NUMBER | {"minimum": 0}],
    }
    return kinds[kind]


def front_end_schema() -> Schema:
    """Schema of `front_end` as a mapping."""
    properties: dict[str, Schema] = {}
    for field in dataclasses.fields(FrontEnd):
        kind: Schema = {"type": "boolean"} if field.default is False else {"type": "number", "minimum": 0}
        unit = {"x-unit": field.metadata["unit"]} if field.metadata["unit"] else {}
        properties[field.name] = {"description": field.metadata["help"], "default": field.default} | unit | kind
    return {"type": "object", "properties": properties, "additionalProperties": False}


def speculation_schema() -> Schema:
    """Schema of `speculation` as a mapping."""
    rate: Schema = {"type": "number", "minimum": 0, "maximum": 1}
    kinds: dict[str, Schema] = {
        "k": {"type": "integer", "minimum": 1, "maximum": MOST_DRAFTS},
        "acceptance": {"anyOf": [rate, {"type": "array", "items": rate, "minItems": 1}]},
        "draft_s": {"type": "number", "minimum": 0, "default": 0.0},
        "draft_s_per_request": {"type": "number", "minimum": 0, "default": 0.0},
        "free_verification": {"type": "boolean", "default": False},
    }
    properties = {
        field.name: {"description": field.metadata["help"]} | kinds[field.name]
        for field in dataclasses.fields(Speculation)
    }
    return {
        "type": "object", "properties": properties, "required": ["k", "acceptance"], "additionalProperties": False,
    }  # fmt: skip


def tables() -> str:
    """Markdown: the fields of each part, with defaults and options; then the numbers of parts that are mappings."""
    lines: list[str] = []
    for part, kind in [*PARTS.items(), ("", ServingSpec)]:
        lines += [
            f"### {kind.__name__ if part else 'Gain'}",
            "",
            "| field | option | default | what |",
            "|---|---|---|---|",
        ]
        for name, (of, option) in LEAVES.items():
            if of == part:
                default = option.shown or f"`{values.plain(ServingSpec()[name])}`"
                said = f"`--{option.name or name.replace('_', '-')}`" if option.kind != fields.POOLS else ""
                text = option.help.replace("|", "\\|")
                lines.append(f"| `{name}` | {said} | {default} | {text} |")
        lines.append("")
    return "\n".join([*lines, numbers_table(Speculation), numbers_table(FrontEnd)])


def numbers_table(kind: type) -> str:
    """Markdown: the numbers of a field whose value is a mapping."""
    lines = [f"### {kind.__name__}", "", "| number | unit | default | what |", "|---|---|---|---|"]
    for field in dataclasses.fields(kind):
        one = field.default
        default = "needed" if one is None else "no" if one is False else f"{one:g}"
        lines.append(f"| `{field.name}` | {field.metadata['unit']} | {default} | {field.metadata['help']} |")
    return "\n".join([*lines, ""])


def write(folder: Path) -> None:
    """Write the schema, and the tables of spec.md between their markers."""
    (folder / "spec.schema.json").write_text(json.dumps(schema(), indent=1) + "\n", encoding="utf-8")
    page = folder / "spec.md"
    head, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(f"{head}{BEGIN}\n{tables()}{END}{rest.partition(END)[2]}", encoding="utf-8")


BEGIN, END = "<!-- fields: written by servegym.scenarios.documents -->", "<!-- end of fields -->"

if __name__ == "__main__":
    write(Path(__file__).resolve().parent.parent / "docs")
