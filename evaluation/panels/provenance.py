"""The training cases of a learned policy, and whether a case is new to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from servegym.baselines.registry import LEARNED, learned_path
from servegym.errors import ExperimentError
from servegym.traces.loading import trace_names

SEEN, UNKNOWN, NEW_SEEDS, NEW_DEVICE = "seen", "unknown", "new seeds", "new seeds and device"
NEW_TRACE, NEW_TRACE_AND_DEVICE = "new trace", "new trace and device"
HELD_OUT = (NEW_SEEDS, NEW_DEVICE, NEW_TRACE, NEW_TRACE_AND_DEVICE)


class ProvenanceError(ExperimentError):
    """A learned policy without known training cases, or one that was trained on a case of the evaluation."""


@dataclasses.dataclass(frozen=True)
class TrainedOn:
    """traces, devices: names. loads: relative to saturation. seeds: (first, last) of each range, both included."""

    traces: tuple[str, ...]
    devices: tuple[str, ...]
    loads: tuple[float, ...]
    seeds: tuple[tuple[int, int], ...]

    @classmethod
    def from_json(cls, document: Any, where: str) -> TrainedOn:
        """From the `trained_on` of an artifact's provenance. where: named in errors. Raises ProvenanceError.

        traces, devices: names. loads: numbers, or {"low": 0.3, "high": 1.6}. seeds: whole numbers, and ranges
        {"first": 0, "last": 999999}. All in a list or alone.
        """
        if not isinstance(document, Mapping):
            raise ProvenanceError(
                f"{where}: trained_on is {document!r}; it should have traces, devices, loads and seeds"
            )
        found: dict[str, Any] = {}
        for key in ("traces", "devices", "loads", "seeds"):
            if key not in document:
                raise ProvenanceError(
                    f"{where}: trained_on has no {key}; it should have traces, devices, loads and seeds"
                )
            value = document[key]
            found[key] = list(value) if isinstance(value, list | tuple) else [value]
        loads = [end for load in found["loads"] for end in (load.values() if isinstance(load, Mapping) else [load])]
        try:
            return cls(
                tuple(Path(str(trace)).name for trace in found["traces"]),
                tuple(map(str, found["devices"])),
                tuple(map(float, loads)),
                tuple(map(_range, found["seeds"])),
            )
        except (TypeError, ValueError, KeyError):
            raise ProvenanceError(
                f"{where}: trained_on should have names of traces and devices, loads that are numbers, and seeds that "
                'are whole numbers or {"first": 0, "last": 999999}'
            ) from None

    def novelty(self, trace: str, devices: Iterable[str], seeds: Iterable[int]) -> str:
        """What is new to the policy in a cell: one of `HELD_OUT`, or `SEEN`. devices: of the engines.

        Of a family other seeds are other requests. Of a file they are another stretch, which stretches that were
        trained on may overlap: a file that was trained on is seen, whatever the seeds.
        """
        new_device = not set(devices) <= set(self.devices)
        if Path(trace).name not in self.traces:
            return NEW_TRACE_AND_DEVICE if new_device else NEW_TRACE
        if trace not in trace_names() or any(first <= seed <= last for seed in seeds for first, last in self.seeds):
            return SEEN
        return NEW_DEVICE if new_device else NEW_SEEDS


def artifact_path(text: str) -> Path | None:
    """The file of a policy that is named "learned:PATH" or "learned:NAME"; None for one that was not learned."""
    return learned_path(text) if text.startswith(LEARNED) else None


def trained_on(provenance: Mapping[str, Any], path: Path) -> TrainedOn | None:
    """What a policy was trained on; None where its provenance does not say. Raises ProvenanceError for nonsense."""
    document = provenance.get("trained_on")
    return None if document is None else TrainedOn.from_json(document, str(path))


def _range(value: Any) -> tuple[int, int]:
    first, last = (value["first"], value["last"]) if isinstance(value, Mapping) else (value, value)
    if int(first) != first or int(last) != last:
        raise ValueError
    return int(first), int(last)
