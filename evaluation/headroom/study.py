"""Headroom on a panel: what policies of a kind gain, the best run found of each scenario, and what no run exceeds."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pandas as pd

from servegym.errors import ExperimentError
from servegym.evaluation.bounds.shares import Bounds, find_bounds, why_no_bounds
from servegym.evaluation.candidates import Candidate, find_candidates
from servegym.evaluation.comparing import run_comparison
from servegym.evaluation.headroom.cases import Case, case_of
from servegym.evaluation.headroom.kept import Found, run_again
from servegym.evaluation.identity import document_digest, versions
from servegym.evaluation.panels.evaluation import of_parts, part_directory
from servegym.evaluation.panels.panel import Panel
from servegym.evaluation.panels.part import Part, parts_of
from servegym.evaluation.repeats import times_of
from servegym.evaluation.running import Progress, Runner
from servegym.scenarios.values import load_title

POLICIES = (
    "slide-batching",
    "slide-batching:hopeless=include,eta=0.044,gamma=3,density_exponent=1.5",
    "learned:cma-engine-batching",
    "qoserve",
    "expected-gain",
)  # fmt: skip  default, tuned, learned (docs/learned.md), and two others
PANELS = {"scheduler": "headroom", "router": "session_fleet"}  # by the kind that is searched
BUDGET = 1500  # runs of a search
FOUND, BOUND = "best found", "bound"
SEARCH = "search"
CELL = ["trace", "device", "load"]
SCORES = ("tdg_ratio", "slo_attainment")
SOUGHT = {"scheduler": SCORES[:1], "router": SCORES}  # by the kind that is searched: scores, or their sum


@dataclasses.dataclass(frozen=True)
class Headroom:
    """What is asked: a panel and policies of a kind, as `Evaluation` takes them, but one is enough.

    kind: "scheduler" or "router". Raises ExperimentError for a gain other than TDG and for routers of one engine,
    PolicyError and others for names there are not.
    """

    panel: Panel
    policies: tuple[str, ...] = POLICIES
    kind: str = "scheduler"

    def __post_init__(self) -> None:
        if self.kind == "router" and self.panel.spec.fleet.total == 1:
            raise ExperimentError(
                f"panel {self.panel.name} has one engine, where a router has no choice; "
                "name a panel with several, or how many with --engines"
            )
        for part in self.parts:
            if part.gain.name != "tdg":
                raise ExperimentError(f"headroom is of TDG; the gain is {part.gain.name}")

    @functools.cached_property
    def candidates(self) -> dict[str, Candidate]:
        named = {kind: (self.panel.spec[kind],) for kind in PANELS} | {self.kind: self.policies}
        scaler = self.panel.spec["scaler"]
        found = find_candidates(named["scheduler"], named["router"], () if scaler is None else (scaler,))
        return {getattr(candidate, self.kind).label: candidate for candidate in found.values()}

    @functools.cached_property
    def parts(self) -> list[Part]:
        spec = self.panel.spec
        policies = dataclasses.replace(spec.policies, **{self.kind: self.policies})
        return parts_of(self.panel, dataclasses.replace(spec, policies=policies), self.candidates)

    @functools.cached_property
    def cases(self) -> list[Case]:
        """One a cell and seed, in the order of the parts."""
        return [case_of(part, *key, self.kind) for part in self.parts for key in part.workloads]

    @property
    def identity(self) -> dict[str, Any]:
        policies = [getattr(candidate, self.kind).to_json() for candidate in self.candidates.values()]
        return {"panel": self.panel.to_json(), "policies": policies, "versions": versions()}

    @property
    def default_directory(self) -> Path:
        return Path("results") / f"headroom-{self.panel.name}-{document_digest(self.identity)}"

    @property
    def runs(self) -> int:
        return len(self.cases) * len(self.candidates)

    @property
    def title(self) -> str:
        panel = self.panel
        cells = f"{panel.cells} cell{'s' * (panel.cells > 1)}"
        return (
            f"Headroom on panel {panel.name}: "
            f"{times_of((part.repeats for part in self.parts), cells)}, "
            f"{panel.requests} requests a run, SLOs {panel.slo}"
        )


def run_policies(
    asked: Headroom, directory: Path, progress: Progress, runner: Runner, fresh: bool = False
) -> pd.DataFrame:
    """The rows of `run_comparison` of each part; kept in folders of the directory, as those of an evaluation."""

    def run(part: Part, progress: Progress) -> pd.DataFrame:
        rows = run_comparison(part, part_directory(directory, part), progress, runner=runner, fresh=fresh)
        return rows.assign(trace=part.trace_name, device=part.profile.name)

    return pd.concat(of_parts(asked.parts, run, progress, asked.runs), ignore_index=True)


def bounds_of(asked: Headroom, directory: Path, progress: Progress) -> list[Bounds]:
    """The bounds of each part. Raises ExperimentError, with the reason, where there is none."""
    for part in asked.parts:
        if (reason := why_no_bounds(part)) is not None:
            raise ExperimentError(reason)
    return of_parts(asked.parts, lambda part, on: find_bounds(part, directory, on), progress, len(asked.cases))


def headroom_rows(
    asked: Headroom, runs: pd.DataFrame, found: list[Found], bounds: list[Bounds] | None = None
) -> pd.DataFrame:
    """One row a cell, seed and policy: one that is named, `FOUND` or `BOUND` (which has no attainment).

    Columns: those of `CELL`, seed, policy, by, tdg_ratio, slo_attainment. What was found is run again here. Where the
    sum of `SOUGHT` is higher under a named policy, its run is the best found, and `by` names it.
    """
    rows: list[dict[str, Any]] = []
    cases = iter(zip(asked.cases, found, strict=True))
    for which, part in enumerate(asked.parts):
        for load, seed in part.workloads:
            case, best = next(cases)
            cell = {"trace": part.trace_name, "device": part.profile.name, "load": load, "seed": seed}
            here = runs[(runs[list(cell)] == pd.Series(cell)).all(axis=1)]
            of_cell = [
                {
                    **cell,
                    "policy": row.scheduler,
                    "by": "",
                    "tdg_ratio": row.tdg_ratio,
                    "slo_attainment": row.slo_attainment,
                }
                for row in here.itertuples()
            ]
            summary = run_again(case, best).summary
            searched = {**cell, "policy": FOUND, "by": SEARCH} | {score: summary[score] for score in SCORES}
            highest = max([searched, *of_cell], key=lambda row: sum(row[score] for score in SOUGHT[asked.kind]))
            rows += [*of_cell, {**highest, "policy": FOUND, "by": highest["by"] or highest["policy"]}]
            if bounds is not None:
                bound = bounds[which][load, seed]
                rows.append(
                    {**cell, "policy": BOUND, "by": "", "tdg_ratio": bound.ratio, "slo_attainment": float("nan")}
                )
    return pd.DataFrame(rows)


def by_load(rows: pd.DataFrame, score: str) -> pd.DataFrame:
    """Means of a score over cells and seeds: a row a policy, a column a load, and `all`."""
    order, loads = list(dict.fromkeys(rows["policy"])), list(dict.fromkeys(rows["load"]))
    table = rows.pivot_table(index="policy", columns="load", values=score, aggfunc="mean", sort=False, dropna=False)
    table = table.reindex(index=order, columns=loads).rename(columns=load_title)
    return table.assign(all=rows.groupby("policy")[score].mean())


def by_cell(rows: pd.DataFrame) -> pd.DataFrame:
    """TDG ratios, means over seeds: a row a cell, a column a policy."""
    order = list(dict.fromkeys(rows["policy"]))
    table = rows.pivot_table(index=CELL, columns="policy", values="tdg_ratio", aggfunc="mean", sort=False)
    return table[order].reset_index()
