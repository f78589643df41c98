"""Record what servegym does in some hundred small cases; compare it with a recording.

    python -m experiments.behaviour record before.json     # on the commit before
    python -m experiments.behaviour compare before.json    # on the one after: which cases differ

For changes that are to change nothing. Exit status 1: something differs. Recordings are for one machine and one set of
packages: processors and libraries differ in the last digits.
"""

import argparse
import itertools
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import numba
import numpy as np

from experiments.behaviour.cases import Case, cases
from servegym.errors import ExperimentError, ServegymError

SHOWN = 40  # cases that differ, by name


def recorded(chosen: dict[str, Case]) -> dict[str, str]:
    """The digest of each case, or the error that it ends in: that is behaviour too."""
    found = {}
    for number, (name, case) in enumerate(chosen.items(), 1):
        if sys.stderr.isatty():
            print(f"\r{number} of {len(chosen)} {name[:80]:80}", end="", file=sys.stderr, flush=True)
        try:
            found[name] = case()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return found


def machine() -> dict[str, str]:
    """What digests depend on besides the code."""
    return {
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
    }


def read(path: Path) -> dict[str, dict[str, str]]:
    """A recording. Raises ExperimentError for a file that is none."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ExperimentError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(document, dict) or set(document) != {"machine", "cases"}:
        raise ExperimentError(f"{path}: it should be what `record` has written")
    return document


def differing(before: dict[str, str], after: dict[str, str]) -> dict[str, str]:
    """Of each case that is not the same in both, what has become of it."""
    found = {}
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            found[name] = "is no more"
        elif name not in before:
            found[name] = "is new"
        elif before[name] != after[name]:
            found[name] = f"was {before[name]}, is {after[name]}"
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.behaviour", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("what", choices=("record", "compare", "list"))
    parser.add_argument("file", type=Path, nargs="?", help="of the recording; to be written, or to compare with")
    parser.add_argument("--only", default="", metavar="TEXT", help="the cases with this in their names")
    given = parser.parse_args(arguments)
    chosen = {name: case for name, case in cases().items() if given.only in name}
    if given.what == "list":
        print("\n".join(chosen))
        return 0
    try:
        if given.file is None:
            raise ExperimentError(f"{given.what} what? Name the FILE.json of the recording")
        if not chosen:
            raise ExperimentError(f"--only {given.only}: no case has that in its name; `list` shows them")
        before = read(given.file) if given.what == "compare" else None
        after = recorded(chosen)
        if before is None:
            document = {"machine": machine(), "cases": after}
            given.file.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", "utf-8")
            print(f"{len(after)} cases recorded in {given.file}")
            return 0
    except (ServegymError, OSError) as error:
        print(f"behaviour: {error}", file=sys.stderr)
        return 2
    if before["machine"] != machine():
        print(f"recorded elsewhere: {before['machine']}; this is {machine()}", file=sys.stderr)
    differences = differing({name: was for name, was in before["cases"].items() if given.only in name}, after)
    for name, what in itertools.islice(differences.items(), SHOWN):
        print(f"{name}: {what}")
    if len(differences) > SHOWN:
        print(f"... and {len(differences) - SHOWN} more")
    print(f"{len(differences)} of {len(after)} cases differ")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
