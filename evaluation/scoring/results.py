"""Compute a score from the runs of a policy and its baselines: one number, figures, and feedback as text."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

from servegym.evaluation.intervals import student_interval

Run = dict[str, Any]
Shares = dict[tuple[Any, ...], float]  # by `cell_of`
CELL = ("trace", "device", "load", "seed")
BY = ("load", "trace", "device")
FIGURES = ("slo_attainment", "starved", "fairness_by_client", "fairness_by_length", "ttft_p99_s", "evictions")
BEST_FOUND = "the best found"
NOTABLE = 0.02  # smallest difference in a share of requests that feedback mentions


@dataclasses.dataclass(frozen=True)
class Score:
    """The score of a policy on a panel.

    combined_score: mean over the panel's scenarios of the TDG ratio divided by the reference's; above 1: better than
        that. If it was stopped early it is no score of the panel, but lets a search compare programs: scenarios that
        were not run count as 0.
    relative_to: the reference. low, high: 95 % interval over the seeds of each cell; nan with one seed.
    stage: the last one that was run, "quick" or "full". stopped: why it was stopped early; "": all scenarios were run.
    metrics: figures by name. artifacts: texts that help to improve the policy. runs: the figures of each of its runs.
    """

    policy: str
    panel: str
    stage: str
    stopped: str
    relative_to: str
    combined_score: float
    low: float
    high: float
    metrics: dict[str, float]
    artifacts: dict[str, str]
    runs: list[Run] = dataclasses.field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return all fields; combined_score is None if it was stopped early."""
        return dataclasses.asdict(self) | ({"combined_score": None} if self.stopped else {})


def score_of(lines: list[dict[str, Any]]) -> Score:
    """Return the score of a policy. lines: what `judging.judge` sent."""
    runs = [line["run"] for line in lines if "run" in line]
    mine = [run for run in runs if run["judged"]]
    cells = {cell_of(run) for run in mine}
    others = [run for run in runs if not run["judged"] and cell_of(run) in cells]
    of = next(line for line in lines if "policy" in line)
    named = list(dict.fromkeys(run["policy"] for run in others))
    # One kind of reference for all runs: shares of a best run and ratios to a baseline should not be averaged.
    searched = all(run["best_found"] is not None for run in runs)
    references = {cell_of(run): reference(run, others, searched) for run in mine}
    shares = {cell_of(run): run["tdg_ratio"] / references[cell_of(run)] for run in mine}
    by_replicate = [
        mean(shares[cell_of(run)] for run in mine if run["replicate"] == number)
        for number in sorted({run["replicate"] for run in mine})
    ]
    _, low, high = student_interval(by_replicate) if len(mine) == of["scenarios"] else (math.nan,) * 3
    stopped = "" if len(mine) == of["scenarios"] else stopped_early(mine, mean(shares.values()), of)
    return Score(
        of["policy"],
        of["panel"],
        [line["stage"] for line in lines if "stage" in line][-1],
        stopped,
        BEST_FOUND if searched else f"the better of {' and '.join(named)}",
        math.fsum(shares.values()) / of["scenarios"],
        low,
        high,
        metrics_of(mine, others, shares, references),
        {"feedback": f"{stopped} {feedback(mine, others)}".strip(), "scenarios": scenarios(mine, others, shares)}
        | ({"notes": "\n".join(of["notes"])} if of.get("notes") else {}),
        [run | {"share": shares[cell_of(run)]} for run in mine],
    )


def stopped_early(mine: list[Run], share: float, of: dict[str, Any]) -> str:
    """Return why a policy was stopped early. share: its mean in the scenarios that were run."""
    return (
        f"Stopped early after {len(mine)} of {of['scenarios']} scenarios, those of load "
        f"{max(run['load'] for run in mine):g}: a share of {share:.4f} there is less than {of['least']:g} (least), and "
        "the others were not run, so there is no score of the panel."
    )


def metrics_of(mine: list[Run], others: list[Run], shares: Shares, references: Shares) -> dict[str, float]:
    """Return means over scenarios by name, of the policy and of the baselines ("share of expected-gain").

    shares: of the policy, by cell. references: the TDG ratio of which they are shares.
    """
    metrics = {"tdg_ratio": mean(run["tdg_ratio"] for run in mine), "share": mean(shares.values())}
    metrics["least_share"] = min(shares.values())
    for field in FIGURES:
        metrics[field] = mean(run[field] for run in mine if run[field] is not None)
    metrics["round_us"] = mean(run["round_us"] for run in mine)
    for by in BY:
        for value in dict.fromkeys(run[by] for run in mine):
            chosen = [shares[cell_of(run)] for run in mine if run[by] == value]
            metrics[f"share, {by} {value if isinstance(value, str) else format(value, 'g')}"] = mean(chosen)
    for label in dict.fromkeys(run["policy"] for run in others):
        of_label = [run for run in others if run["policy"] == label]
        metrics[f"share of {label}"] = mean(run["tdg_ratio"] / references[cell_of(run)] for run in of_label)
        for field in ("tdg_ratio", *FIGURES, "round_us"):
            metrics[f"{field} of {label}"] = mean(run[field] for run in of_label if run[field] is not None)
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def cell_of(run: Run) -> tuple[Any, ...]:
    return tuple(run[name] for name in CELL)


def where(run: Run) -> str:
    return f"{run['trace']} on {run['device']} at load {run['load']:g}, seed {run['seed']}"


def reference(run: Run, others: list[Run], searched: bool) -> float:
    """Return the TDG ratio with which a run is compared: the best one found, or the better baseline's."""
    return float(run["best_found"]) if searched else float(better_baseline(run, others)["tdg_ratio"])


def better_baseline(run: Run, others: list[Run]) -> Run:
    """Return the baselines' run with the highest gain in the scenario of a run."""
    return max((one for one in others if cell_of(one) == cell_of(run)), key=lambda one: float(one["tdg_ratio"]))


def feedback(mine: list[Run], others: list[Run]) -> str:
    """Describe where the policy lost most, against which baseline, and how their runs differ."""
    pairs = [(run, better_baseline(run, others)) for run in mine]
    run, best = max(pairs, key=lambda pair: pair[1]["tdg_ratio"] - pair[0]["tdg_ratio"])
    lost = best["tdg_ratio"] - run["tdg_ratio"]
    if lost <= 0:
        return (
            f"It is at least as good as every baseline in each scenario; least ahead by {-lost:z.4f} on {where(run)}."
        )
    worst = f"It loses most on {where(run)}: {figures(run)}; there {best['policy']} has {figures(best)}."
    return " ".join(filter(None, (worst, missed(run, best), differences(run, best))))


def differences(run: Run, best: Run) -> str:
    """Describe how the run differs from that of the better baseline."""
    found = []
    if run["starved"] > best["starved"] + NOTABLE:
        found.append("more requests starve: it may compute for requests that cannot be in time")
    elif run["starved"] < best["starved"] - NOTABLE:
        found.append("fewer requests starve, at the cost of the others: it might give some up")
    if run["ttft_p99_s"] > 1.5 * best["ttft_p99_s"]:
        found.append("its slowest first tokens are later")
    if run["evictions"] > 2 * best["evictions"] + 10:
        found.append("it evicts far more often: it admits more than fits the KV memory, or its ranks change often")
    if run["slo_attainment"] < best["slo_attainment"] - NOTABLE:
        found.append("fewer SLOs are met")
    return f"What differs: {'; '.join(found)}." if found else ""


def missed(run: Run, best: Run) -> str:
    """Describe which SLO is missed most, in which class of requests, and in which one the baseline is most ahead."""
    if not run["missed"]:
        return ""
    most = max(run["missed"], key=lambda name: run["missed"][name])
    behind = max(run["missed"], key=lambda name: run["missed"][name] - best["missed"].get(name, 0.0))
    named = [
        f"{name} by {run['missed'][name]:.3f} of these requests ({best['policy']}: "
        f"{best['missed'].get(name, math.nan):.3f})"
        for name in dict.fromkeys((most, behind))
        if run["missed"][name] > 0
    ]
    return f"Missed there: {', and '.join(named)}." if named else ""


def figures(run: Run) -> str:
    return (
        f"TDG ratio {run['tdg_ratio']:.4f}, SLO attainment {run['slo_attainment']:.3f}, {run['starved']:.3f} starved, "
        f"p99 of TTFT {run['ttft_p99_s']:.1f} s, {run['evictions']} evictions, {run['round_us']:.1f} us a round"
    )


def scenarios(mine: list[Run], others: list[Run], shares: Shares) -> str:
    """Return a line for each scenario, the worst first."""
    worst_first = sorted(mine, key=lambda run: shares[cell_of(run)])
    return "\n".join(
        f"{shares[cell_of(run)]:.4f} {where(run)}: {run['tdg_ratio']:.4f}, {best['policy']} {best['tdg_ratio']:.4f}"
        for run in worst_first
        for best in [better_baseline(run, others)]
    )


def mean(values: Iterable[float]) -> float:
    """Return the mean of the values; nan: there are none."""
    numbers = list(values)
    return math.fsum(numbers) / len(numbers) if numbers else math.nan
