"""An artifact's JSON document: read up to a size limit, and checked by its JSON Schema."""

from __future__ import annotations

import functools
import importlib.resources
import itertools
import json
import math
from pathlib import Path
from typing import Any

from servegym.baselines.artifact.artifact import ArtifactError

VERSION, SCHEMA = 2, "artifact.schema.json"
LARGEST_BYTES = 2**23
LARGEST_INTEGER = 2**63  # the limit of other JSON readers
LONGEST_MESSAGE = 400
MOST_ERRORS = 100  # the error to report is the best of these


def read_document(path: Path) -> dict[str, Any]:
    """Return the document in a file. Names in it are not looked up. Raises ArtifactError."""
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
        document: Any = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{where}: not a JSON document ({error}); it may have been cut off") from None
    version = document.get("schema", VERSION) if isinstance(document, dict) else VERSION
    if version != VERSION:
        raise ArtifactError(f"{where}: written in format {version!r:.40}; this version reads {VERSION}")
    check_document(document, where)
    return dict(document)


def check_document(document: Any, where: str) -> None:
    """Raise ArtifactError unless the document follows the schema and its numbers are finite."""
    import jsonschema

    _check_numbers(document, where)
    try:
        errors = itertools.islice(_validator().iter_errors(document), MOST_ERRORS)
        error = jsonschema.exceptions.best_match(errors)
    except RecursionError:
        raise ArtifactError(f"{where}: it is nested too deep") from None
    if error is not None:
        at = ".".join(str(part) for part in error.absolute_path)
        message = f"{at:.99}: {error.message}" if at else error.message
        if len(message) > LONGEST_MESSAGE:
            message = f"{message[: LONGEST_MESSAGE - 3]}..."
        raise ArtifactError(f"{where}: {message} (see {SCHEMA})")


@functools.cache
def _validator() -> Any:
    import jsonschema

    text = importlib.resources.files(__package__).joinpath(SCHEMA).read_text(encoding="utf-8")
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
