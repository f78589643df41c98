"""An artifact's JSON document: read up to a size limit, checked by its JSON Schema, converted to the newest version."""

from __future__ import annotations

import functools
import importlib.resources
import itertools
import json
import math
from pathlib import Path
from typing import Any

from servegym.baselines import load
from servegym.baselines.artifact.artifact import ArtifactError
from servegym.baselines.artifact.entries import written_parameters
from servegym.errors import PolicyError
from servegym.simulator.policies.policy import get_policy

VERSION = 2
SCHEMAS = {1: "artifact-1.schema.json", VERSION: "artifact.schema.json"}
LARGEST_BYTES = 2**23
LARGEST_INTEGER = 2**63  # the limit of other JSON readers
LONGEST_MESSAGE = 400
MOST_ERRORS = 100  # the error to report is the best of these


# Documents of version 1 omit parameters at their defaults; these defaults have changed since.
ETA_THEN = {"fact": "min_tpot_slo_s", "factor": 0.65}
DEFAULTS_THEN: dict[str, dict[str, Any]] = {
    "slide-batching": {"eta": ETA_THEN, "hopeless": "exclude", "deadlines": "slo", "step_tokens": 0},
    "fairbatching": {"eta": ETA_THEN},
    "gorouting": {"eta": ETA_THEN},
}


def read_document(path: Path) -> dict[str, Any]:
    """Return the document in a file, in the newest version. Names in it are not looked up. Raises ArtifactError."""
    try:
        with path.open("rb") as stream:
            data = stream.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise ArtifactError(f"{path}: {error.strerror or error}; it should be the .json file of a policy") from None
    except ValueError as error:
        raise ArtifactError(f"{str(path)!r}: no name of a file ({error})") from None
    if len(data) > LARGEST_BYTES:
        raise ArtifactError(f"{path}: more than {LARGEST_BYTES:,} bytes; an artifact has some thousands")
    return parse_document(data, str(path))


def parse_document(data: bytes, where: str) -> dict[str, Any]:
    """Parse the bytes of a file as `read_document` does. where: named in errors."""
    try:
        document = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{where}: not a JSON document ({error}); it may have been cut off") from None
    version = document.get("schema", VERSION) if isinstance(document, dict) else VERSION
    if isinstance(version, bool) or not isinstance(version, int | float) or version not in SCHEMAS:
        readable = " and ".join(map(str, SCHEMAS))
        raise ArtifactError(f"{where}: written in format {version!r:.40}; this version reads {readable}")
    check_document(document, where, int(version))
    return document if version == VERSION else _from_first_version(document, where)


def check_document(document: Any, where: str, version: int = VERSION) -> None:
    """Raise ArtifactError unless the document follows the schema of its version and its numbers are finite."""
    import jsonschema

    _check_numbers(document, where)
    try:
        errors = itertools.islice(_validator(version).iter_errors(document), MOST_ERRORS)
        error = jsonschema.exceptions.best_match(errors)
    except RecursionError:
        raise ArtifactError(f"{where}: it is nested too deep") from None
    if error is not None:
        at = ".".join(str(part) for part in error.absolute_path)
        message = f"{at:.99}: {error.message}" if at else error.message
        if len(message) > LONGEST_MESSAGE:
            message = f"{message[: LONGEST_MESSAGE - 3]}..."
        raise ArtifactError(f"{where}: {message} (see {SCHEMAS[version]})")


@functools.cache
def _validator(version: int) -> Any:
    import jsonschema

    text = importlib.resources.files(__package__).joinpath(SCHEMAS[version]).read_text(encoding="utf-8")
    return jsonschema.Draft202012Validator(json.loads(text))


def _check_numbers(document: Any, where: str) -> None:
    left: list[tuple[str, Any]] = [("", document)]
    while left:
        at, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{at}.{key}" if at else str(key), item) for key, item in value.items()]
        elif isinstance(value, list | tuple):
            left += [(f"{at}[{index}]", item) for index, item in enumerate(value)]
        elif isinstance(value, float) and not math.isfinite(value):
            raise ArtifactError(f"{where}: {at:.99} is {value}; it should be a finite number")
        elif isinstance(value, int) and abs(value) >= LARGEST_INTEGER:
            raise ArtifactError(f"{where}: {at:.99} is a whole number of {value.bit_length()} bits; 63 are the most")


def _from_first_version(document: dict[str, Any], where: str) -> dict[str, Any]:
    """Convert a document of version 1, which has one policy and only its settings, to version 2.

    A missing setting has the default of that time: today's, except for `DEFAULTS_THEN`.
    """
    heuristic, base = document["kind"] == "heuristic", document["base"]
    parts = {key: document[key] for key in ("observation", "network", "weights")}
    if wrong := [key for key, part in parts.items() if (part is None) != heuristic]:
        there = "should not be there" if heuristic else "is missing"
        raise ArtifactError(f"{where}: {wrong[0]} of a {document['kind']} {there}")
    load()
    try:
        parameters = written_parameters(get_policy(base["kind"], base["name"]).with_settings(**base["settings"]))
    except PolicyError as error:
        raise ArtifactError(f"{where}: base: {error}") from None
    then = DEFAULTS_THEN.get(base["name"], {})
    parameters |= {name: value for name, value in then.items() if name not in base["settings"]}
    learned = None if heuristic else {"way": document["kind"], "controls": document["controls"], **parts}
    entry = {"kind": base["kind"], "name": base["name"], "parameters": parameters, "learned": learned}
    return {
        "schema": VERSION, "policies": {base["kind"]: entry}, "estimator": None, "workload": None,
        "provenance": document["provenance"],
    }  # fmt: skip
