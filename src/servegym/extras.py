"""Extras of the package (`train`, `tune`, ...): the command that installs one, and the error that names it."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path

from servegym.errors import ServegymError


def clone_root() -> Path | None:
    """Return the root of the clone that this package is imported from, if it is one."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "experiments" / "__main__.py").is_file() else None


def install_command(extra: str) -> str:
    """Return the command that installs an extra.

    In a clone it takes the versions of constraints.txt: without them `torch` may bring gigabytes of CUDA. Beside an
    installed wheel pip finds servegym there, and installs what is missing.
    """
    root = clone_root()
    if root is None:
        return f"pip install 'servegym[{extra}]'"
    there = "" if Path.cwd() == root else f"cd {shlex.quote(str(root))} && "
    return f"{there}pip install -c constraints.txt -e '.[{extra}]'"


@contextlib.contextmanager
def needs(what: str, extra: str) -> Iterator[None]:
    """Convert a missing package inside the with block to an error that says what to install; for a module of servegym,
    the import error is raised again."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "servegym").partition(".")[0]
        if package == "servegym":
            raise
        raise ServegymError(
            f"{what} needs packages that are not installed ({package}): {install_command(extra)}"
        ) from None
