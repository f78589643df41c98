"""Writes the model card of a learned policy: description, training cases, results, and where it loses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd

from servegym.baselines.artifact.entries import observation_of
from servegym.baselines.learned.derived import LearnedPolicy
from servegym.evaluation.intervals import BETTER, SAME, WORSE
from servegym.evaluation.intervals import UNKNOWN as ONE_SEED
from servegym.evaluation.markdown import header, row
from servegym.evaluation.panels.evaluation import Evaluation, judged_policies
from servegym.evaluation.panels.provenance import TrainedOn
from servegym.evaluation.panels.tables import ALL, TDG, accounts, scores_in, select
from servegym.evaluation.panels.wording import STARVED, describe, limits, mean_of, novelty, percent, range_of
from servegym.evaluation.reports.notes import fleet_notes
from servegym.evaluation.reports.page import flat, text_of
from servegym.evaluation.summary import REFERENCE
from servegym.scenarios.values import load_title
from servegym.simulator.policies.policy import Policy

CARD_FILE = "model_card.md"
MOST_LOSSES = 20  # cells listed one by one


def save_cards(evaluation: Evaluation, cells: pd.DataFrame, groups: pd.DataFrame, directory: Path) -> list[Path]:
    """Write a card for each learned policy: `model_card.md`, or `model_card-NAME.md` where there are several."""
    paths = []
    for label in evaluation.learned:
        name = CARD_FILE if len(evaluation.learned) == 1 else f"model_card-{_file_name(label)}.md"
        paths.append(directory / name)
        paths[-1].write_text(model_card(evaluation, label, cells, groups), encoding="utf-8")
    return paths


def model_card(evaluation: Evaluation, label: str, cells: pd.DataFrame, groups: pd.DataFrame) -> str:
    """The card as Markdown. cells, groups: of `cells_table` and `groups_table`."""
    own = cells[cells["policy"] == label]
    sections = {
        "What it is": _what(evaluation, label),
        "What it was trained on": _training(evaluation, label),
        "How it was evaluated": _bullets([f"{evaluation.title}.", *_cases(evaluation, own), *limits(evaluation)]),
        "Results": _results(evaluation, cells, groups),
        "Where it loses": _losses(evaluation, label, own, groups),
        "Limits of use": _bullets(_limits_of_use(evaluation, label)),
    }
    text = "\n\n".join(f"## {title}\n\n{body}" for title, body in sections.items())
    return f"# {label}\n\n{text}\n"


def _what(evaluation: Evaluation, label: str) -> str:
    facts: dict[str, Any] = {"file": evaluation.learned[label].name}
    judged_ones = judged_policies(evaluation.candidates[label], evaluation.artifacts[label], evaluation.kind)
    for role, policy in judged_ones.items():
        parts = {f"{role}: {name}" if len(judged_ones) > 1 else name: what for name, what in _policy(policy).items()}
        facts |= parts
    return _bullets(f"{name}: {_plain(value)}" for name, value in flat(facts))


def _policy(policy: Policy) -> dict[str, Any]:
    """Describe a policy, and its network if it has one."""
    learned = isinstance(policy, LearnedPolicy)
    base = policy.base if isinstance(policy, LearnedPolicy) and policy.base is not None else policy
    facts: dict[str, Any] = {
        "kind": f"{policy.kind} ({policy.head if isinstance(policy, LearnedPolicy) else 'heuristic'})",
        "what it does": policy.doc,
        "base" if learned else "name": base.name,
        "settings of the base" if learned else "settings": dict(base.settings) or "defaults",
        "source": policy.source,
    }
    if isinstance(policy, LearnedPolicy) and policy.network is not None and policy.layout is not None:
        sees = observation_of(policy.head, policy.layout)
        facts |= {
            "parameters it sets": list(policy.controls) or "none",
            "sees": sees,
            "network": policy.network.shape.to_json(),
            "numbers": len(policy.weights),
            "SHA-256 of the numbers": policy.weights.sha256,
        }
    return facts


def _training(evaluation: Evaluation, label: str) -> str:
    """The provenance of the artifact, as it stands there."""
    provenance = {key: value for key, value in evaluation.artifacts[label].provenance.items() if key != "trained_on"}
    trained = evaluation.trained_on[label]
    lines = _trained_on(trained) if trained else ["Its artifact does not say."]
    return _bullets([*lines, *(f"{name}: {_plain(value)}" for name, value in flat(provenance))])


def _trained_on(trained: TrainedOn) -> list[str]:
    seeds = (f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in trained.seeds)
    if not trained.traces:
        return ["Nothing: it was named, not trained or tuned."]
    return [
        f"traces: {', '.join(trained.traces)}",
        f"devices: {', '.join(trained.devices)}",
        f"loads: {min(trained.loads):g} to {max(trained.loads):g}" if trained.loads else "loads: none",
        f"seeds: {', '.join(seeds)}",
    ]


def _cases(evaluation: Evaluation, own: pd.DataFrame) -> list[str]:
    """The traces and devices of an evaluation, and the numbers of cells with new ones."""
    parts = evaluation.parts
    return [
        f"Traces: {', '.join(dict.fromkeys(part.trace_name for part in parts))}.",
        f"Devices: {', '.join(profile.name for profile in evaluation.profiles)}.",
        novelty(own["policy"].iloc[0], own),
    ]


def _results(evaluation: Evaluation, cells: pd.DataFrame, groups: pd.DataFrame) -> str:
    """Tables over all cells and by load, of every policy, for each score; and at whose cost."""
    parts = []
    for score in scores_in(groups):
        parts.append(describe(score) + f" Differences are to {evaluation.baseline_label}.")
        for by in (ALL, "load"):
            for group, rows in select(groups, by, score).groupby("group", sort=False):
                lines = header(f"{group}", "mean", "IQM", "difference, 95 % interval", "better in")
                lines += [_result(line) for _, line in rows.iterrows()]
                parts.append("\n".join(lines))
    rows = accounts(cells)
    parts += [STARVED, "\n".join([*header(*rows[0]), *(row(*line.values()) for line in rows)])]
    return "\n\n".join(parts)


def _result(line: pd.Series) -> str:
    means = mean_of(line, "mean"), mean_of(line, "iqm")
    if line["verdict"] == REFERENCE:
        return row(line["policy"], *means, "-", "-")
    return row(line["policy"], *means, _difference(line, "difference"), percent(line, "improvement"))


def _losses(evaluation: Evaluation, label: str, own: pd.DataFrame, groups: pd.DataFrame) -> str:
    if label == evaluation.baseline_label:
        return "It is the baseline here; nothing was held against it."
    counts = {verdict: int((own["verdict"] == verdict).sum()) for verdict in (BETTER, SAME, WORSE, ONE_SEED)}
    counted = ", ".join(f"{verdict} in {count}" for verdict, count in counts.items() if count)
    parts = [f"Against {evaluation.baseline_label}, by TDG ratio, cell by cell: {counted} of {len(own)}."]
    together = groups[(groups["policy"] == label) & (groups["score"] == TDG) & (groups["verdict"] == WORSE)]
    if len(together):
        lines = header("cells together", "difference, 95 % interval")
        lines += [row(line["group"], _difference(line, "difference")) for _, line in together.iterrows()]
        parts.append("\n".join(lines))
    worse = own[own["verdict"] == WORSE].sort_values(f"{TDG}_difference")
    if worse.empty:
        return "\n\n".join([*parts, "No single cell is worse with an interval clear of zero."])
    lines = header("trace", "device", "load", "difference, 95 % interval")
    lines += [
        row(cell["trace"], cell["device"], load_title(cell["load"]), _difference(cell, f"{TDG}_difference"))
        for _, cell in worse.head(MOST_LOSSES).iterrows()
    ]
    parts.append("\n".join(lines))
    if len(worse) > MOST_LOSSES:
        parts.append(f"And {len(worse) - MOST_LOSSES} more.")
    return "\n\n".join(parts)


def _difference(line: pd.Series, name: str) -> str:
    return f"{mean_of(line, name, '+')}, {range_of(line, name, '+')}"


def _limits_of_use(evaluation: Evaluation, label: str) -> list[str]:
    panel, trained = evaluation.panel, evaluation.trained_on[label]
    lines = [f"Evaluated with SLOs {panel.slo} only; other SLOs, gains and priorities were not tried."]
    if trained is not None and trained.loads:
        beyond = [load for load in panel.loads if not min(trained.loads) <= load <= max(trained.loads)]
        if beyond:
            lines.append(f"Outside the loads it was trained at: {', '.join(map(load_title, beyond))}.")
    lines.append("It ran in a simulator with an estimator that was fitted to the device; no real engine was driven.")
    return [*lines, *fleet_notes(evaluation.profiles)]


def _bullets(lines: Any) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else text_of(value)


def _file_name(label: str) -> str:
    return re.sub(r"[^\w.=-]+", "-", label).strip("-")
