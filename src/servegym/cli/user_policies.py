"""Policies of a user's own: a Python file, imported for what it registers."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from servegym.simulator.errors import PolicyError


def load_policy_files(paths: Iterable[Path] | None) -> None:
    """Import each file once. Raises PolicyError for one that is missing or raises, with the line at fault."""
    for path in dict.fromkeys(path.resolve() for path in paths or ()):
        if not path.is_file():
            raise PolicyError(f"--load-policies {path.name}: there is no such file in {path.parent}")
        # Known under a name, a policy can be pickled; the name is no one else's.
        name = f"servegym_policies_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise PolicyError(f"--load-policies {path.name}: a file of policies ends in .py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            what = error.msg if isinstance(error, SyntaxError) else error
            where = f"--load-policies {path.name}{_line(error, path)}"
            raise PolicyError(f"{where}: {type(error).__name__}: {what}") from error


def _line(error: BaseException, path: Path) -> str:
    """The last line of the file that an error passed through, as text; empty where there was none."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f", line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f", line {lines[-1]}" if lines else ""
