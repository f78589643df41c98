"""The folder of a training: its configuration, its progress, and everything needed to resume it.

config.yaml  versions.json     configuration and versions of packages
curve.jsonl  training_curve.png  tensorboard/     progress
checkpoints/STEPS/    the state after STEPS steps; the last two are kept
policy.json  policy.safetensors  summary.json     results
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import pickle
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from servegym import __version__
from servegym.errors import TrainingError
from servegym.replacing import replacing
from servegym.tuners.config import TrainingConfig, load_config, to_text

CONFIG, VERSIONS, CURVE, PICTURE = "config.yaml", "versions.json", "curve.jsonl", "training_curve.png"
POLICY, SUMMARY, TENSORBOARD, CHECKPOINTS = "policy.json", "summary.json", "tensorboard", "checkpoints"
STATE = "state.pkl"
KEPT_CHECKPOINTS = 2
PACKAGES = ("numpy", "numba", "gymnasium", "torch", "stable-baselines3", "sb3-contrib", "cmaes")


def versions() -> dict[str, str]:
    """Versions of the packages that a training uses."""
    found = {"servegym": __version__, "python": platform.python_version(), "machine": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found | {"cores": str(os.cpu_count())}


class RunFolder:
    """A training's folder."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def begin(self, config: TrainingConfig) -> None:
        """Write the configuration. Raises TrainingError if the folder already holds a training."""
        if (self.path / CONFIG).exists():
            raise TrainingError(f"{self.path} has a training; --resume {self.path} continues it")
        self.path.mkdir(parents=True, exist_ok=True)
        write(self.path / VERSIONS, json.dumps(versions(), indent=2) + "\n")
        write(self.path / CONFIG, to_text(config))

    def config(self) -> TrainingConfig:
        """The configuration of the training here. Raises TrainingError if there is none."""
        if not (self.path / CONFIG).is_file():
            raise TrainingError(f"{self.path} has no training to continue (no {CONFIG})")
        return load_config(self.path / CONFIG)

    def checkpoint(self, steps: int, state: Mapping[str, Any], save: Callable[[Path], None]) -> Path:
        """Write a state (pickled) and the files of `save` into a folder, atomically."""
        folder = self.path / CHECKPOINTS
        final = folder / f"{steps:012d}"
        for draft in folder.glob(".*.draft"):  # left by a killed training
            shutil.rmtree(draft, ignore_errors=True)
        with replacing(final) as draft:
            draft.mkdir(parents=True)
            save(draft)
            (draft / STATE).write_bytes(pickle.dumps(dict(state)))
        for old in self._checkpoints()[:-KEPT_CHECKPOINTS]:
            shutil.rmtree(old, ignore_errors=True)
        return final

    def last_checkpoint(self) -> tuple[Path, dict[str, Any]] | None:
        """The last complete checkpoint folder, and its state; None if there is none."""
        found = self._checkpoints()
        return (found[-1], pickle.loads((found[-1] / STATE).read_bytes())) if found else None

    def _checkpoints(self) -> list[Path]:
        folder = self.path / CHECKPOINTS
        return sorted(path for path in folder.glob("*") if path.name.isdigit()) if folder.is_dir() else []

    def write_curve(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the validation results, one JSON object a line."""
        write(self.path / CURVE, "".join(json.dumps(row) + "\n" for row in rows))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        write(self.path / SUMMARY, json.dumps(summary, indent=2) + "\n")

    def summary(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.path / SUMMARY).read_text(encoding="utf-8"))
        return document


def write(path: Path, text: str) -> None:
    """Write a file atomically; if that fails, the old one stays."""
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")
