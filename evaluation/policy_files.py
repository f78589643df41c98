"""Imports Python files with a user's policies, which register themselves; in other processes from their text."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.machinery
import importlib.util
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import CodeType

from servegym.errors import PolicyError
from servegym.replacing import replacing

FOLDER = "policies"  # in the cache folder, next to the kernels compiled from these files


class _Source(importlib.machinery.SourceFileLoader):
    """Loads a file from its text, never from bytecode.

    Python takes bytecode for current where the file's size and the second of its last change are the same, and a search
    changes one number of a file within a second.
    """

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def load_policy_files(paths: Iterable[Path] | None, option: str = "--load-policies ") -> None:
    """Import each file once. Raises PolicyError for one that is missing or raises, with the line at fault.

    option: by which the files were named, as errors begin; "": by none.
    """
    for path in dict.fromkeys(path.resolve() for path in paths or ()):
        if not path.is_file():
            raise PolicyError(f"{option}{path.name}: there is no such file in {path.parent}")
        # Known under a name, a policy can be pickled; the name is no one else's.
        name = f"servegym_policies_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path, loader=_Source(name, str(path)))
        if path.suffix != ".py" or spec is None or spec.loader is None:
            raise PolicyError(f"{option}{path.name}: a file of policies ends in .py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            what = error.msg if isinstance(error, SyntaxError) else error
            where = f"{option}{path.name}{_line(error, path)}"
            raise PolicyError(f"{where}: {type(error).__name__}: {what}") from error


@dataclasses.dataclass(frozen=True)
class PolicyFiles:
    """Files of policies as their texts, so as to load them where the files are not: texts[i] of paths[i]."""

    paths: tuple[Path, ...]
    texts: tuple[str, ...]

    @staticmethod
    def read(paths: Iterable[Path] | None) -> PolicyFiles:
        found = tuple(dict.fromkeys(path.resolve() for path in paths or ()))
        return PolicyFiles(found, tuple(path.read_text(encoding="utf-8") for path in found))

    def load(self) -> None:
        """Import each: the file itself where it is there and has this text, or a copy. Raises PolicyError."""
        load_policy_files([_there(path, text) for path, text in zip(self.paths, self.texts, strict=True)])


def _there(path: Path, text: str) -> Path:
    """A file of that name and text."""
    with_text = [path, _copy_of(path, text)]
    for there in with_text:
        if there.is_file() and there.read_text(encoding="utf-8") == text:
            return there
    copy = with_text[-1]
    copy.parent.mkdir(parents=True, exist_ok=True)
    with replacing(copy) as draft:  # other processes of the node do the same
        draft.write_text(text, encoding="utf-8")
    return copy


def _copy_of(path: Path, text: str) -> Path:
    from servegym.simulator.compilation.cache import cache_root

    return cache_root() / FOLDER / hashlib.sha256(text.encode()).hexdigest()[:20] / path.name


def _line(error: BaseException, path: Path) -> str:
    """The last line of the file that an error passed through, as text; empty if there is none."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f", line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f", line {lines[-1]}" if lines else ""
