"""YAML files that come with the package, known by their names, and a user's own of the same kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from servegym.errors import ServegymError, unknown_name


def names_in(folder: Path) -> list[str]:
    """Names of the files that come with the package, sorted."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def load_mapping(
    name: str | Path, folder: Path, kind: str, keys: str, error: type[ServegymError]
) -> tuple[dict[str, Any], Path]:
    """What is in a file of the folder, by its name, or in that of a path; and the file.

    kind, keys: what the file is and has to have, as errors say it. Raises `error` for a file that is not there, is no
    YAML, or is no mapping.
    """
    from servegym.yaml_parsing import parse_yaml  # imports yaml

    names = names_in(folder)
    path = folder / f"{name}.yaml" if str(name) in names else Path(name)
    if not path.is_file() and path.suffix in (".yaml", ".yml"):
        raise error(f"there is no file {path}; it should be a YAML file with {keys}, or a {kind} by name")
    if not path.is_file():
        raise error(unknown_name(kind, str(name), names) + ", or name a YAML file")
    try:
        document = parse_yaml(path.read_text(encoding="utf-8"))
    except ValueError as wrong:  # of the text, or of its characters
        raise error(f"{path.name} is no YAML: {wrong}") from None
    if not isinstance(document, dict):
        raise error(f"{path.name} should be a mapping with {keys}")
    return document, path
