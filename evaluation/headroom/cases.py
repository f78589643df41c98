"""Cases of a search: a scenario and everything that its result depends on."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from importlib import metadata
from pathlib import Path
from typing import Any

from servegym.baselines import registry
from servegym.evaluation.comparison import Comparison
from servegym.evaluation.headroom.ranking import FORESIGHT
from servegym.evaluation.headroom.search import BASES, SEARCHES, SEED
from servegym.evaluation.identity import (
    code_digests,
    deployment_digest,
    document_digest,
    gain_digests,
    parameters_of,
    versions,
)
from servegym.simulator.compilation.digests import text_digest
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.gains import Gain
from servegym.simulator.runs.slos import attained

SEARCH = ("point.py", "search.py")
OF_KIND = {"scheduler": ("ranking.py", "moves.py"), "router": ("assignment.py", "reassigning.py")}


@dataclasses.dataclass(frozen=True)
class Case:
    """A case of a search. scenario: its policy of the searched kind does not matter. identity: JSON that names the
    case. kind: of the policies that are searched, "scheduler" or "router"."""

    scenario: Scenario
    identity: dict[str, Any]
    kind: str = "scheduler"

    @property
    def file(self) -> str:
        """The name of its ledger."""
        return f"headroom-{document_digest(self.identity, 16)}.jsonl"


def case_of(comparison: Comparison, load: float, seed: int, kind: str = "scheduler") -> Case:
    """The case of a comparison's load and seed, with its policies of the other kinds."""
    candidate = next(iter(comparison.candidates.values()))
    scenario = comparison.scenario(load, seed, candidate)
    others = [policy for role, policy in candidate.roles.items() if role != kind]
    families = [FORESIGHT] if kind == "scheduler" else [registry.router(name) for name in BASES]
    return Case(
        scenario,
        {
            **comparison.settings,
            "trace": comparison.trace_name,
            "device": comparison.profile.name,
            "gain": dataclasses.asdict(comparison.gain),
            "front_end": repr(scenario.front_end),
            "rate_per_s": comparison.rate_of_load[load],
            "seed": seed,
            "search_seed": SEED,
            "others": [policy.to_json() for policy in others],
            "parameters": parameters_of([*families, *others], scenario.deployment),
            "score": score_identity(scenario.gain, kind),
            "workload": scenario.workload.digest,
            "deployment": deployment_digest(scenario.deployment),
            "versions": versions(),
            "code": code_digests([*families, *others], scenario.deployment),
            "search": search_identity(kind),
            "starts": [point.to_json() for point in SEARCHES[kind].starts()],
        },
        kind,
    )


def score_identity(gain: Gain, kind: str) -> dict[str, str | None]:
    """Digests of what makes a score of a run, beside the event loop: the gain of tokens, and what attains an SLO."""
    return gain_digests(gain) | ({"attained": text_digest(attained)} if kind == "router" else {})


@functools.cache
def search_identity(kind: str) -> dict[str, str | None]:
    """The search's source and the version of its library: with others, the same scores give other points."""
    digest = hashlib.sha256()
    for name in (*SEARCH, *OF_KIND[kind]):
        digest.update((Path(__file__).parent / name).read_bytes())
    try:
        cmaes: str | None = metadata.version("cmaes")
    except metadata.PackageNotFoundError:
        cmaes = None
    return {"source": digest.hexdigest()[:16], "cmaes": cmaes}
