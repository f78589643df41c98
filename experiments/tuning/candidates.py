"""Candidates of a study on a panel: run once each, kept in a ledger, so that a stopped tuning goes on where it was."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servegym.experiments.evaluation.panel import Panel
from servegym.experiments.identity import versions
from servegym.experiments.ledger import Ledger, Row
from servegym.experiments.tuning.instances import Job, instances_of, run_job
from servegym.experiments.tuning.objectives import FIGURES
from servegym.experiments.tuning.search import Search
from servegym.tuners.running import Runner
from servegym.tuners.search.space import Settings

if TYPE_CHECKING:
    import pandas as pd

DEFAULTS, WINNER, SCHEDULE = "defaults", "winner", "schedule"
Progress = Callable[[str, int, int], None]  # (what, done, in all)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """label: "defaults", or "trial 37". settings: of the policies, by role; None: as the policies are named."""

    label: str
    settings: Settings | None = None

    @property
    def key(self) -> str:
        return json.dumps(self.settings, sort_keys=True)


Pair = tuple[Candidate, int]  # a candidate, and the index of an instance of a panel


def run_candidates(
    search: Search, panel: Panel, pairs: Iterable[Pair], ledger: Path, runner: Runner, progress: Progress
) -> pd.DataFrame:
    """A row for each pair: candidate, trace, device, load, seed, and the figures of the run.

    ledger: a file, where runs are kept as they come; those it has are not run again. Raises ExperimentError for one of
    other runs.
    """
    import pandas as pd

    instances = instances_of(panel)
    wanted = list(pairs)
    identity = {**instances.identity(search.policies), "policies": _named(search), "versions": versions()}

    def problem(row: Row) -> str | None:
        bad = [name for name in ("key", "index", *FIGURES) if name not in row]
        return f"there is no {bad[0]}" if bad else None

    with Ledger(ledger, identity, problem) as kept:
        known = {(row["key"], row["index"]): row for row in kept.rows}
        todo = list({(one.key, index): (one, index) for one, index in wanted if (one.key, index) not in known}.values())
        jobs = [Job(panel, index, search.policies_with(candidate.settings)) for candidate, index in todo]
        what, before = panel.name, len({(one.key, index) for one, index in wanted}) - len(todo)
        progress(what, before, before + len(todo))
        for done, (at, outcome) in enumerate(runner.run(run_job, jobs), start=1):
            candidate, index = todo[at]
            row: Row = {"key": candidate.key, "index": index, **outcome}
            kept.append(row)
            known[candidate.key, index] = row
            progress(what, before + done, before + len(todo))
    return pd.DataFrame(
        [
            {"candidate": one.label, **instances.all[index]._asdict(), **_figures(known[one.key, index])}
            for one, index in wanted
        ]
    )


def _figures(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in FIGURES}


def _named(search: Search) -> dict[str, Any]:
    return {role: policy.to_json() for role, policy in search.policies.items()}


def on_all(candidates: Iterable[Candidate], panel: Panel) -> list[Pair]:
    """Every candidate on every instance."""
    return [(candidate, index) for candidate in candidates for index in range(len(instances_of(panel)))]
