"""Runs candidates of a study on a panel, once each, and keeps the runs in a ledger, so that a tuning can resume."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servegym.evaluation.identity import versions
from servegym.evaluation.ledger import Ledger, Row, kept_rows
from servegym.evaluation.panels.panel import Panel
from servegym.evaluation.running import Runner
from servegym.tuners.search.space import Settings
from servegym.tuners.studies.instances import Job, instances_of, run_job
from servegym.tuners.studies.objectives import FIGURES
from servegym.tuners.studies.search import Search

if TYPE_CHECKING:
    import pandas as pd

DEFAULTS, WINNER, SCHEDULE = "defaults", "winner", "schedule"
Progress = Callable[[str, int, int], None]  # (what, done, in all)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A candidate. label: "defaults", or "trial 37". settings: of the policies, by role; None: the policies as
    named."""

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

    ledger: file in which each run is kept at once; runs that it has are not repeated. Raises ExperimentError for a
    ledger of other runs.
    """
    import pandas as pd

    instances = instances_of(panel)
    wanted = list(pairs)
    identity = {**instances.identity(search.policies), "policies": _named(search), "versions": versions()}

    def problem(row: Row) -> str | None:
        bad = [name for name in ("key", "index", *FIGURES) if name not in row]
        return f"there is no {bad[0]}" if bad else None

    items = {
        (one.key, index): (one.key, Job(panel, index, search.policies_with(one.settings))) for one, index in wanted
    }
    rows = kept_rows(
        Ledger(ledger, identity, problem), items, lambda row: (row["key"], row["index"]), _row,
        lambda done, all_of_them: progress(panel.name, done, all_of_them), runner,
    )  # fmt: skip
    known = dict(zip(items, rows, strict=True))
    return pd.DataFrame(
        [
            {"candidate": one.label, **instances.all[index]._asdict(), **_figures(known[one.key, index])}
            for one, index in wanted
        ]
    )


def _row(item: tuple[str, Job]) -> Row:
    key, job = item
    return {"key": key, "index": job.instance, **run_job(job)}


def _figures(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in FIGURES}


def _named(search: Search) -> dict[str, Any]:
    return {role: policy.to_json() for role, policy in search.policies.items()}


def on_all(candidates: Iterable[Candidate], panel: Panel) -> list[Pair]:
    """Pairs of every candidate with every instance."""
    return [(candidate, index) for candidate in candidates for index in range(len(instances_of(panel)))]
