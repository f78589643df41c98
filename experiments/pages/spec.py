"""Write the JSON Schema of specs, docs/spec.schema.json, and the tables of docs/spec.md, from the fields of a spec.

python -m experiments.pages.spec docs
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from experiments.pages.words import escaped
from servegym.evaluation.markdown import narrow_header, row
from servegym.scenarios import fields, values
from servegym.scenarios.spec import LEAVES, PARTS, ServingSpec
from servegym.simulator.features.front_end import FrontEnd
from servegym.simulator.features.speculation import MOST_DRAFTS, Speculation

BEGIN, END = "<!-- fields: written by experiments.pages.spec -->", "<!-- end of fields -->"
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


def schema() -> dict[str, Any]:
    """Make the JSON Schema (2020-12) of a spec's file, in which a field is under its part or at the top level."""
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
    """List the schemas of the values that a field can have."""
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
    """Make the schema of `front_end` as a mapping."""
    properties: dict[str, Schema] = {}
    for field in dataclasses.fields(FrontEnd):
        kind: Schema = {"type": "boolean"} if field.default is False else {"type": "number", "minimum": 0}
        unit = {"x-unit": field.metadata["unit"]} if field.metadata["unit"] else {}
        properties[field.name] = {"description": field.metadata["help"], "default": field.default} | unit | kind
    return {"type": "object", "properties": properties, "additionalProperties": False}


def speculation_schema() -> Schema:
    """Make the schema of `speculation` as a mapping."""
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
    """Make the Markdown tables of the fields of each part, then of the numbers of fields whose value is a mapping."""
    lines: list[str] = []
    for part, kind in [*PARTS.items(), ("", ServingSpec)]:
        lines += [f"### {kind.__name__ if part else 'Gain'}", "", *narrow_header("field", "option", "default", "what")]
        for name, (of, option) in LEAVES.items():
            if of == part:
                default = option.shown or f"`{values.plain(ServingSpec()[name])}`"
                flag = f"`--{option.name or name.replace('_', '-')}`" if option.kind != fields.POOLS else ""
                lines.append(row(f"`{name}`", flag, default, escaped(option.help)))
        lines.append("")
    return "\n".join([*lines, numbers_table(Speculation), numbers_table(FrontEnd)])


def numbers_table(kind: type) -> str:
    """Make the Markdown table of the numbers of a field whose value is a mapping."""
    lines = [f"### {kind.__name__}", "", *narrow_header("number", "unit", "default", "what")]
    for field in dataclasses.fields(kind):
        one = field.default
        default = "needed" if one is None else "no" if one is False else f"{one:g}"
        lines.append(row(f"`{field.name}`", field.metadata["unit"], default, field.metadata["help"]))
    return "\n".join([*lines, ""])


def write(folder: Path) -> None:
    """Write the schema, and the tables of spec.md between their markers."""
    (folder / "spec.schema.json").write_text(json.dumps(schema(), indent=1) + "\n", encoding="utf-8")
    page = folder / "spec.md"
    head, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(f"{head}{BEGIN}\n{tables()}{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
