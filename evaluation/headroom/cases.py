"""Cases of a search: a scenario and everything that its result depends on."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from importlib import metadata
from pathlib import Path
from typing import Any

from servegym.evaluation.comparison import Comparison
from servegym.evaluation.headroom.ranking import FORESIGHT
from servegym.evaluation.headroom.search import SEED
from servegym.evaluation.identity import code_digests, deployment_digest, document_digest, versions
from servegym.simulator.inputs.scenario import Scenario

SEARCH = ("ranking.py", "point.py", "moves.py", "search.py")


@dataclasses.dataclass(frozen=True)
class Case:
    """A case of a search. scenario: its scheduler does not matter. identity: JSON that names the case."""

    scenario: Scenario
    identity: dict[str, Any]

    @property
    def file(self) -> str:
        """The name of its ledger."""
        return f"headroom-{document_digest(self.identity, 16)}.jsonl"


def case_of(comparison: Comparison, load: float, seed: int) -> Case:
    """The case of a comparison's load and seed, with its router and scaler."""
    candidate = next(iter(comparison.candidates.values()))
    scenario = comparison.scenario(load, seed, candidate)
    others = [policy for policy in (candidate.router, candidate.scaler) if policy is not None]
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
            "workload": scenario.workload.digest,
            "deployment": deployment_digest(scenario.deployment),
            "versions": versions(),
            "code": code_digests([FORESIGHT, *others], scenario.deployment),
            "search": _search_identity(),
        },
    )


@functools.cache
def _search_identity() -> dict[str, str | None]:
    """The search's source and the version of its library: with others, the same gains give other points."""
    digest = hashlib.sha256()
    for name in SEARCH:
        digest.update((Path(__file__).parent / name).read_bytes())
    try:
        cmaes: str | None = metadata.version("cmaes")
    except metadata.PackageNotFoundError:
        cmaes = None
    return {"source": digest.hexdigest()[:16], "cmaes": cmaes}
