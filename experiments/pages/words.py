"""Texts that several pages of studies share."""

from collections.abc import Mapping


def escaped(text: str) -> str:
    """Return a text that may have bars, as a cell of a table."""
    return text.replace("|", r"\|")


def with_versions(versions: Mapping[str, str]) -> str:
    """Return the line of a page about the versions that made it."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())
