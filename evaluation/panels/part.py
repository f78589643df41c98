"""A part of an evaluation: a comparison on one trace and device, whose cells have seeds of their own."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any

from servegym.evaluation.candidates import Candidate
from servegym.evaluation.comparison import Comparison
from servegym.evaluation.panels.panel import Panel
from servegym.scenarios.spec import ServingSpec


@dataclasses.dataclass(frozen=True)
class Part(Comparison):
    """A `Comparison` in which each load has seeds that no other has: its runs are independent of theirs.

    (The seeds of `Comparison` give every load the same requests, and an interval over cells would count them twice.)

    seeds: of each load. first_seed: of the first load; they are numbered on through the loads in order.
    entrants: what is compared, by the label it has in tables: of `Evaluation.candidates`.
    """

    first_seed: int = 0
    entrants: Mapping[str, Candidate] = dataclasses.field(default_factory=dict)

    @property
    def candidates(self) -> dict[str, Candidate]:
        return dict(self.entrants)

    def asked_seeds(self, point: float) -> range:
        first = self.first_seed + self.points.index(point) * self.seeds
        return range(first, first + self.seeds)

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        entrants = {
            label: {role: policy.to_json() for role, policy in candidate.roles.items()}
            for label, candidate in self.entrants.items()
        }
        return {**super().identity, "entrants": entrants}


def parts_of(panel: Panel, spec: ServingSpec, entrants: Mapping[str, Candidate]) -> list[Part]:
    """One part for each trace and device of a panel, in its order. spec: the panel's, with what is judged."""
    parts: list[Part] = []
    for trace in panel.traces:
        for device in panel.devices:
            first_seed = panel.first_seed + len(parts) * len(panel.loads) * panel.seeds
            parts.append(Part(spec.replaced(trace=trace, device=device), panel.seeds, first_seed, entrants))
    return parts


def notes_of(parts: Iterable[Part]) -> list[str]:
    """Notes: repairs to traces, changes by a recipe for a device, and limits of the intervals."""
    notes: dict[str, None] = {}
    for part in parts:
        of_trace, of_slos = (part.provenance.get(name, ()) for name in ("notes", "slo_notes"))
        notes |= dict.fromkeys(f"{part.trace_name}: {note}" for note in (*of_trace, *part.repeats.notes))
        notes |= dict.fromkeys(f"{part.trace_name} on {part.profile.name}: {note}" for note in of_slos)
    return list(notes)
