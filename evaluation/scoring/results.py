"""What a score comes to: from runs of a policy and of its baselines to one number, figures, and feedback in words."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

Run = dict[str, Any]
CELL = ("trace", "device", "load", "seed")
BY = ("load", "trace", "device")
BEST_FOUND = "the best found"


@dataclasses.dataclass(frozen=True)
class Score:
    """combined_score: mean over scenarios of the TDG ratio over the reference's; above 1, it is better than that.

    relative_to: what the reference is. stage: the last that was run, "quick" or "full". metrics: figures by name.
    artifacts: in words, for whoever is to make it better.
    """

    policy: str
    panel: str
    stage: str
    relative_to: str
    combined_score: float
    metrics: dict[str, float]
    artifacts: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def score_of(lines: list[dict[str, Any]]) -> Score:
    """From what the worker has said."""
    runs = [line["run"] for line in lines if "run" in line]
    mine = [run for run in runs if run["judged"]]
    others = [run for run in runs if not run["judged"]]
    of = next(line for line in lines if "policy" in line)
    named = sorted({run["policy"] for run in others})
    # One kind of reference for all: shares of a best run and ratios to a baseline are not numbers to be averaged.
    searched = all(run["best_found"] is not None for run in mine)
    shares = {cell_of(run): run["tdg_ratio"] / reference(run, others, searched) for run in mine}
    metrics = {"tdg_ratio": mean(run["tdg_ratio"] for run in mine), "least_share": min(shares.values())}
    for field in ("slo_attainment", "starved", "fairness_by_client", "fairness_by_length", "ttft_p99_s", "preemptions"):
        metrics[field] = mean(run[field] for run in mine if run[field] is not None)
    for label in named:
        metrics[f"tdg_ratio of {label}"] = mean(run["tdg_ratio"] for run in others if run["policy"] == label)
        metrics[f"slo_attainment of {label}"] = mean(run["slo_attainment"] for run in others if run["policy"] == label)
        metrics[f"round_us of {label}"] = mean(run["round_us"] for run in others if run["policy"] == label)
    metrics["round_us"] = mean(run["round_us"] for run in mine)
    for by in BY:
        for value in dict.fromkeys(run[by] for run in mine):
            chosen = [shares[cell_of(run)] for run in mine if run[by] == value]
            metrics[f"share, {by} {value if isinstance(value, str) else format(value, 'g')}"] = mean(chosen)
    return Score(
        of["policy"],
        of["panel"],
        [line["stage"] for line in lines if "stage" in line][-1],
        BEST_FOUND if searched else f"the better of {' and '.join(named)}",
        mean(shares.values()),
        {name: value for name, value in metrics.items() if math.isfinite(value)},
        {"feedback": feedback(mine, others)},
    )


def cell_of(run: Run) -> tuple[Any, ...]:
    return tuple(run[name] for name in CELL)


def reference(run: Run, others: list[Run], searched: bool) -> float:
    """The TDG ratio that a run is held against: the best that was found, or the better baseline's."""
    return (
        run["best_found"]
        if searched
        else max(other["tdg_ratio"] for other in others if cell_of(other) == cell_of(run))
    )


def feedback(mine: list[Run], others: list[Run]) -> str:
    """Where it lost most, against whom, and what it did there."""

    def loss(run: Run) -> tuple[float, Run]:
        best = max((one for one in others if cell_of(one) == cell_of(run)), key=lambda one: one["tdg_ratio"])
        return best["tdg_ratio"] - run["tdg_ratio"], best

    worst = max(mine, key=lambda run: loss(run)[0])
    lost, best = loss(worst)
    where = f"{worst['trace']} on {worst['device']} at load {worst['load']:g}, seed {worst['seed']}"
    if lost <= 0:
        return f"It is at least as good as every baseline in each scenario; least ahead by {-lost:.4f} on {where}."
    return f"It loses most on {where}: {figures(worst)}; there {best['policy']} has {figures(best)}."


def figures(run: Run) -> str:
    return (
        f"TDG ratio {run['tdg_ratio']:.4f}, {run['slo_attainment']:.3f} of the SLOs met, {run['starved']:.3f} starved, "
        f"p99 of TTFT {run['ttft_p99_s']:.1f} s, {run['preemptions']} preemptions, {run['round_us']:.1f} us a round"
    )


def mean(values: Iterable[float]) -> float:
    """nan of none."""
    numbers = list(values)
    return math.fsum(numbers) / len(numbers) if numbers else math.nan
