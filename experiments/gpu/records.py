"""What runs leave behind: a file of JSON lines, one a run, flushed when it has ended; and time that runs out."""

import base64
import io
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

RUNS = "runs.jsonl"


class Budget:
    """The time that is left, in seconds, of a limit that began when this was made."""

    def __init__(self, limit_s: float):
        self._until_s = time.monotonic() + limit_s

    @property
    def left_s(self) -> float:
        return self._until_s - time.monotonic()


class Lines:
    """FOLDER/runs.jsonl. Runs that it has, finished, are not run again.

    surroundings: goes into each line: the machine, versions, whether it is a rehearsal.
    """

    def __init__(self, folder: Path, budget: Budget, surroundings: Mapping[str, Any]):
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.budget, self.surroundings = folder / RUNS, budget, dict(surroundings)
        self.found = {line["run"]: line for line in read_lines(self.path) if line["done"]}

    def attempt(self, name: str, least_s: float, run: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """Run it unless it is there, or less than `least_s` is left. Returns its line; None where there is none.

        A run that fails leaves a line with its error, and the next one goes on.
        """
        if name in self.found:
            return self.found[name]
        if self.budget.left_s < least_s:
            print(f"{name}: not begun, {self.budget.left_s:.0f} s are left", file=sys.stderr, flush=True)
            return None
        begin_s = time.monotonic()
        try:
            result: dict[str, Any] = {"done": True, **run()}
        except Exception as error:  # vLLM's own, of many types: what else there is to measure goes on
            result = {"done": False, "error": str(error)[:500], "at": where(error)}
        line = {"run": name, "wall_s": round(time.monotonic() - begin_s, 3), **self.surroundings, **result}
        self._write(line)
        if not line["done"]:
            return None
        self.found[name] = line
        return line

    def _write(self, line: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        said = {name: value for name, value in line.items() if name not in ("arrays", "at", *self.surroundings)}
        print(json.dumps(said), file=sys.stderr, flush=True)


def where(error: BaseException) -> str:
    """The end of the traceback of what an error came from."""
    while error.__cause__ is not None:
        error = error.__cause__
    return "".join(traceback.format_exception(error, chain=False))[-3000:]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file; none where it is not there. One that was cut off when time ran out is left out."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def runs_of(folder: Path, shape: str | None = None) -> Iterator[dict[str, Any]]:
    """The finished runs of FOLDER/runs.jsonl, each with the engine of the start before it.

    shape: only the runs of this shape of the script `shapes`; None: only those of the other scripts. Both have the same
    traces and policies.
    """
    engine: Any = None
    for line in read_lines(folder / RUNS):
        if line.get("shape") == shape:
            engine = line.get("engine", engine)
            if line["done"]:
                yield {**line, "engine": engine}


def coded(arrays: Mapping[str, np.ndarray]) -> str:
    """Arrays as text, for a line."""
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return base64.b64encode(file.getvalue()).decode()


def decoded(text: str) -> dict[str, np.ndarray]:
    """What `coded` was given."""
    with np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}
