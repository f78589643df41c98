"""An artifact's JSON document: read up to a size limit, and checked by its JSON Schema."""

from __future__ import annotations

import functools
import importlib.resources
import json
from pathlib import Path
from typing import Any

from servegym.baselines.artifact.artifact import ArtifactError
from servegym.parsing import schema_problem

VERSION, SCHEMA = 2, "artifact.schema.json"
LARGEST_BYTES = 2**23


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
    if problem := schema_problem(document, schema(), SCHEMA):
        raise ArtifactError(f"{where}: {problem}")


@functools.cache
def schema() -> Any:
    """Return the JSON Schema of artifacts."""
    return json.loads(importlib.resources.files(__package__).joinpath(SCHEMA).read_text(encoding="utf-8"))
