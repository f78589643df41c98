"""A recommendation as text: its table, sentences, and its JSON document."""

from __future__ import annotations

import dataclasses
from shlex import quote
from typing import Any

from servegym.evaluation.intervals import Interval
from servegym.evaluation.measures import P99_TPOT, P99_TTFT
from servegym.evaluation.recommend.judging import DEFAULT, DEFAULT_AS_MANY, DIFFERENCE, SHARE
from servegym.evaluation.recommend.matching import Match
from servegym.evaluation.recommend.recommending import OfDevice, Recommendation
from servegym.evaluation.recommend.recording import Recording
from servegym.evaluation.recommend.setups import Setup
from servegym.evaluation.repeats import WINDOWS
from servegym.evaluation.targets import Target
from servegym.scenarios.values import fixed

NAME = "setup"


def table_rows(of: OfDevice, target: Target) -> list[dict[str, str]]:
    """A row for each setup: engines, share of requests within the target, difference to the default's, and costs."""
    priced, rows = of.price_per_hour is not None, []
    for _, row in of.table.iterrows():
        shown = {
            NAME: row["label"] + (" (default)" if row["setup"] == default_of(of) else ""),
            "engines": f"{row['engines']}",
            share_title(target): Interval.of(row, SHARE).text(".3f"),
            "above the default": Interval.of(row, DIFFERENCE).text("+.3f") if row["setup"] != default_of(of) else "",
            "windows held": f"{row['held']} of {row['windows']}",
            P99_TTFT.title: P99_TTFT.text(row),
            P99_TPOT.title: P99_TPOT.text(row),
        }
        if priced:
            shown["cost an hour"] = f"{row['cost_per_hour']:.2f}"
            shown["cost of a million tokens"] = f"{row['cost_per_million_tokens']:.3f}"
        rows.append(shown)
    return rows


def default_of(of: OfDevice) -> object:
    return of.chosen.default.setup


def share_title(target: Target) -> str:
    """Name of the share of requests that hold the target."""
    if target.quantile is None:
        return "SLO attainment" if target.measure == "attainment" else "without a late token"
    return f"{target.quantile.latency.upper()} in time"


MOST_OF_WINDOW = 0.5  # that the p99 of TTLT may take; a goodput demands the same of the arrivals before those it judges


def not_fitted(recording: Recording) -> str:
    """Say why no profile was fitted to a recording."""
    why = "The recording does not say how its requests were served" if recording.run is None else "The fleet has pools"
    return f"{why}, so nothing is fitted: profiles are taken as they are."


def title(found: Recommendation) -> str:
    """A line that describes the question."""
    question, windows = found.question, found.windows
    chosen, judged = len(windows.to_choose), len(windows.to_judge)
    kind = "window" if windows.over == WINDOWS else "resample"
    rate = fixed("rate_per_s", question.spec.demand.rate_per_s) or found.recording.trace.rate_per_s
    return (
        f"{found.name}, {len(found.recording.trace):,} requests at {rate:.3g}/s, SLOs {question.spec.demand.slo}, "
        f"{question.target.title}: chosen on {chosen} {kind}{'s' * (chosen > 1)} of {windows.requests:,} "
        f"requests, judged on {judged} other{'s' * (judged > 1)}"
    )


def conclusions(found: Recommendation) -> list[str]:
    """Sentences on what to run, what it would change, and what no policy can reach."""
    return [*_of_best(found.best, found), *_more_engines(found.best), *_of_devices(found), *_cautions(found)]


def engines_of(count: int) -> str:
    return f"{count} engine{'s' * bool(count != 1)}"


def _of_best(of: OfDevice, found: Recommendation) -> list[str]:
    table, best, target = of.table.set_index("role"), of.best, found.question.target
    what = share_title(target)
    share = Interval.of(best, SHARE).text(".3f")
    lines = []
    if of.chosen.best.engines is None and found.question.given_engines is None:
        lines.append(
            f"No number of {of.device} engines that was tried holds {target.title} in every window, however it is set; "
            f"nearest comes this, with {engines_of(best['engines'])}, beyond which more hardly help:"
        )
    pools, fleet = found.question.spec.fleet.pools, f"{engines_of(best['engines'])} of {of.device}"
    runs = f"Run {of.device if pools else fleet}"
    if of.chosen.best.setup == of.chosen.default.setup:
        lines.append(
            f"{runs} with the default settings: nothing that was tried serves noticeably more in time, or needs fewer."
        )
        return [*lines, f"On the other windows: {what} {share}, held in {best['held']} of {best['windows']}."]
    lines.append(f"{runs} with {best['label']}.")
    default = table.loc[DEFAULT]
    if of.chosen.default.engines is None:
        if found.question.given_engines is None and of.chosen.best.engines is not None:
            lines.append("The default does not hold the target with any number of engines that was tried.")
    elif default["engines"] != best["engines"]:
        saved = default["engines"] - best["engines"]
        cheaper = default["cost_per_hour"] - best["cost_per_hour"]
        cost = f", {cheaper:.2f} less an hour" if cheaper == cheaper else ""
        few = "fewer" if saved > 0 else "more"
        lines.append(f"That is {abs(saved)} {few} than the default needs ({engines_of(default['engines'])}){cost}.")
    else:
        lines.append(f"The default needs {engines_of(default['engines'])} too.")
    reference = table.loc[DEFAULT_AS_MANY] if DEFAULT_AS_MANY in table.index else default
    lines.append(
        f"On windows that it was not chosen by: {what} {share}, held in {best['held']} of {best['windows']}; the "
        f"default with as many engines {Interval.of(reference, SHARE).text('.3f')}, a difference of "
        f"{Interval.of(best, DIFFERENCE).text('+.3f')}."
    )
    return lines


def _more_engines(of: OfDevice) -> list[str]:
    """What the windows that judge changed in the number of engines."""
    before, now = of.at_first, of.chosen.best
    if before.engines is None or now.engines is None or now == before:
        return []
    enough = engines_of(before.engines)
    if before.setup != now.setup:
        enough += f" with {before.setup.label(before.engines)}"
    return [f"On the windows that chose, {enough} held the target; on the others it takes more."]


def _of_devices(found: Recommendation) -> list[str]:
    lines = []
    if len(found.of_devices) > 1 and any(of.price_per_hour is None for of in found.of_devices):
        lines.append("Devices are in the order of how many engines they need; --price says what an engine costs.")
    for of in found.of_devices:
        if of.least is not None and of.least > 1:
            lines.append(
                f"{of.device}: under no scheduler or router are fewer than {engines_of(of.least)} enough, as the least "
                "work of the requests alone takes so many."
            )
    return lines


def _cautions(found: Recommendation) -> list[str]:
    setup, question = found.best.best["setup"], found.question
    lines = []
    if question.spec.fleet.pools:
        lines.append(
            f"How much load it carries: servegym goodput --spec {quote(question.spec_file)} --trace "
            f"{quote(question.recording)} --slo {question.spec.demand.slo} --target {question.target.text} "
            f"--scheduler {setup.policy} --router {setup.router} --max-num-batched-tokens "
            f"{setup.max_num_batched_tokens} --max-num-seqs {setup.max_num_seqs}"
        )
    over = found.windows.over
    lines.append(f"± 95 % interval over {over} that nothing was chosen by (differences paired by window).")
    if len(found.windows.to_judge) < 2:
        lines[-1] = "One window judges, so there is no interval; --resample draws more from a short recording."
    span_s, answer_s = found.windows.span_s, found.best.best["ttlt_p99_s"]
    if answer_s > MOST_OF_WINDOW * span_s:
        how = "--resample, or with servegym plan" if found.windows.over == WINDOWS else "servegym plan"
        lines.append(
            f"Windows are too short to size a fleet: requests arrive for {span_s:.3g} s, and answers take up to "
            f"{answer_s:.3g} s (p99), so engines, which begin empty, are still filling. Steady traffic may need many "
            f"more: ask with {how}."
        )
    return lines


def document(found: Recommendation) -> dict[str, Any]:
    """What was asked and what was found, the recommended device first."""
    question = found.question
    return {
        "recording": question.recording,
        "requests": len(found.recording.trace),
        "notes": list(found.recording.notes),
        "slo": question.spec.demand.slo,
        "target": question.target.text,
        "served": dataclasses.asdict(question.served),
        "windows": {
            "to_choose": len(found.windows.to_choose), "to_judge": len(found.windows.to_judge),
            "requests_of_each": found.windows.requests,
        },
        "interval_over": found.windows.over,
        "match": None if found.match is None else match_document(found.match),
        "recommended": {"device": found.best.device, **setup_document(found.best.best["setup"]),
                        "engines": int(found.best.best["engines"])},
        "devices": [device_document(of) for of in found.of_devices],
    }  # fmt: skip


def match_document(match: Match) -> dict[str, Any]:
    return {
        "figures": [
            figure._asdict()
            | {"error_percent": figure.error_percent(False), "fitted_error_percent": figure.error_percent(True)}
            for figure in match.figures
        ],
        "fitted": None if match.fitted is None else dataclasses.asdict(match.fitted),
        "spread_left": dict(match.left),
        "lines": match.lines(),
    }


def setup_document(setup: Setup) -> dict[str, Any]:
    return dataclasses.asdict(setup) | {"needs_plug_in": setup.needs_plug_in}


def device_document(of: OfDevice) -> dict[str, Any]:
    rows = [row | {"setup": setup_document(row["setup"])} for row in of.table.to_dict("records")]
    return {
        "device": of.device, "price_per_hour": of.price_per_hour, "least_engines": of.least,
        "holds_target": of.chosen.best.engines is not None, "setups_tried": of.tried, "runs": of.runs,
        "setups": rows, "curve": of.curve.to_dict("records"),
    }  # fmt: skip
