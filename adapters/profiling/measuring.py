"""Measures the batches of a design into a table that `servegym calibrate` reads; it can be resumed.

A `Meter` runs the batches: an engine in this process, one behind an endpoint, or the operators of a model.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import servegym
from servegym.adapters.profiling.design import Batch, Space, design
from servegym.errors import ProfilingError
from servegym.latency_models.measured_batches import DURATION
from servegym.simulator.records.types import BATCH_SUMS

Progress = Callable[[int, int], None]  # (batches measured, batches in all)
BATCHES, RECORD = "batches.csv", "profile.json"


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The measurement of a batch.

    batch: BATCH array[1] of what ran, the mean over repeats. seconds: float64[repeats]. parts: further columns.
    """

    batch: np.ndarray
    seconds: np.ndarray
    parts: dict[str, float] = dataclasses.field(default_factory=dict)


class Meter(Protocol):
    """Measures batches of a space."""

    space: Space

    def facts(self) -> dict[str, Any]:
        """Return versions, device, dtype, clock and memory, for the record beside the table."""

    def warm_up(self) -> None:
        """Do whatever would slow the first measurement, such as allocating memory."""

    def measure(self, batch: Batch, repeats: int) -> Measurement | None:
        """Run the batch `repeats` times and measure it; None: the engine could not be made to form it."""

    def close(self) -> None:
        """Release its resources."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """The number of batches to measure and of repeats of each, and the seed of the design."""

    batches: int = 60
    repeats: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batches", "repeats"):
            if getattr(self, name) < 1:
                raise ProfilingError(f"{name} is {getattr(self, name)}; it should be 1 or more")


def measure(meter: Meter, plan: Plan, folder: Path, progress: Progress | None = None) -> Path:
    """Measure the batches of the plan; returns the table, FOLDER/batches.csv.

    A row has the BATCH_SUMS of the batch that ran, `duration_s` (the median of the repeats), `fastest_s`, `slowest_s`,
    `repeats` and `scene`, its place in the design, and is written as soon as it is measured. If the folder has rows of
    the same plan and engine already, only the others are measured. FOLDER/profile.json records plan and engine. Raises
    ProfilingError for a folder with rows of another plan or engine.
    """
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "plan": dataclasses.asdict(plan),
        "space": dataclasses.asdict(meter.space),
        "facts": meter.facts(),
        "versions": {"servegym": servegym.__version__, "python": platform.python_version()},
    }
    table = folder / BATCHES
    done = scenes_of(table, folder / RECORD, record)
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    batches = design(meter.space, plan.batches, plan.seed)
    if len(done) < len(batches):
        meter.warm_up()
    for scene, batch in enumerate(batches):
        if scene not in done:
            measured = meter.measure(batch, plan.repeats)
            if measured is not None:
                append(table, scene, measured)
        if progress is not None:
            progress(scene + 1, len(batches))
    if not table.exists():
        raise ProfilingError(f"{folder}: none of {len(batches)} designed batches could be measured")
    return table


def scenes_of(table: Path, record_path: Path, record: dict[str, Any]) -> set[int]:
    """Return the places in the design that the table has. Raises ProfilingError if its record differs from `record`."""
    if not table.exists():
        return set()
    try:
        before = json.loads(record_path.read_text(encoding="utf-8"))
        with table.open(encoding="utf-8", newline="") as lines:
            scenes = {int(row["scene"]) for row in csv.DictReader(lines)}
        before["plan"].pop("batches")  # a shorter design is the first part of a longer one
    except (OSError, ValueError, KeyError, TypeError):
        raise ProfilingError(
            f"{table} exists without a profile.json that can be continued; name another folder"
        ) from None
    now = json.loads(json.dumps(record))
    now["plan"].pop("batches")
    if differing := [name for name in now if before.get(name) != now[name]]:
        raise ProfilingError(f"{table} was measured with another {', '.join(differing)}; name another folder")
    return scenes


def append(table: Path, scene: int, measured: Measurement) -> None:
    """Append a row to the table, after the header if the table is new."""
    row: dict[str, Any] = {
        "scene": scene,
        DURATION: float(np.median(measured.seconds)),
        "fastest_s": float(measured.seconds.min()),
        "slowest_s": float(measured.seconds.max()),
        "repeats": len(measured.seconds),
        **{name: float(measured.batch[name][0]) for name in BATCH_SUMS},
        **measured.parts,
    }
    new = not table.exists()
    with table.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        if new:
            writer.writeheader()
        writer.writerow({name: f"{value:.9g}" if isinstance(value, float) else value for name, value in row.items()})
