"""Measures the gain of a recommendation on windows that were not used to choose it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd

from servegym.evaluation.intervals import student_interval
from servegym.evaluation.recommend.choosing import Chosen, Sized, fewest_engines, is_enough, simplest
from servegym.evaluation.recommend.setups import Setup
from servegym.evaluation.recommend.trials import Trial, Trials

SHARE, DIFFERENCE = "share", "share_difference"
MEANS = ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s", "ttlt_p50_s", "ttlt_p99_s", "output_tokens_per_s")
RECOMMENDED, DEFAULT, DEFAULT_AS_MANY = "recommended", "default", "default, as many engines"
ROUTER_ALONE, ENGINE_ALONE, OTHER = "router alone", "engine alone", "next"
MOST_OTHERS = 2


def confirmed(choosing: Trials, judging: Trials, chosen: Chosen) -> Chosen:
    """The choice with as many engines as hold the target in the windows that judge, too; None where no number does.

    With more engines than before another setup may do as well: those that came next are compared again, on the windows
    that choose. A default that needs fewer engines than the choice is the choice.
    """
    best, default = (_confirmed(judging, one) for one in (chosen.best, chosen.default))
    if best.engines is not None and best.engines != chosen.best.engines:
        best = _again(choosing, judging, best, chosen)
    if default.engines and (best.engines is None or default.engines < best.engines):
        best = default
    return chosen._replace(best=best, default=default, engines=chosen.fleet(chosen.best))


def _confirmed(judging: Trials, sized: Sized) -> Sized:
    windows = range(len(judging.windows))
    if sized.engines is None or is_enough(judging, sized.setup, sized.engines, windows):
        return sized
    enough = fewest_engines(judging, sized.setup, sized.engines + 1, windows).engines
    return sized._replace(engines=enough and max(enough, sized.engines + 1))


def _again(choosing: Trials, judging: Trials, best: Sized, chosen: Chosen) -> Sized:
    """Among the choice and those that came next, the `simplest` with its number of engines in all windows."""
    assert best.engines is not None
    both, found = [(trials, range(len(trials.windows))) for trials in (choosing, judging)], []
    for setup in dict.fromkeys([best.setup, chosen.default.setup, *(one.setup for one in chosen.others)]):
        if all(is_enough(trials, setup, best.engines, windows) for trials, windows in both):
            found.append(Sized(setup, best.engines, float(choosing.shares(setup, best.engines, both[0][1]).mean())))
    return simplest(sorted(found, key=lambda one: -one.share), chosen.default.setup) if found else best


def judged(trials: Trials, chosen: Chosen, price_per_hour: float | None = None) -> pd.DataFrame:
    """One row each for the recommendation; the default with its own number of engines, and with the recommendation's;
    the recommended router and the recommended engine settings, each alone if both change; and the setups that came
    next.

    trials: on the windows that judge. role, setup, label, engines, share (mean over the windows, with its 95 %
    interval), held (windows in which the target holds), windows, share_difference (to the default with as many engines,
    window by window, with its interval), MEANS, cost_per_hour and cost_per_million_tokens (nan: no price is known).
    """
    best, default = (chosen.fleet(one) for one in (chosen.best, chosen.default))
    asked: list[tuple[str, Setup, int]] = [(RECOMMENDED, chosen.best.setup, best)]
    if chosen.best.setup != chosen.default.setup:
        asked.append((DEFAULT, chosen.default.setup, default))
        if best != default:
            asked.append((DEFAULT_AS_MANY, chosen.default.setup, best))
        asked += [(role, setup, best) for role, setup in parts_of(chosen.best.setup, chosen.default.setup).items()]
        seen = [setup for _, setup, _ in asked]
        others = [other for other in chosen.others if other.setup not in seen]
        asked += [(OTHER, other.setup, chosen.fleet(other)) for other in others[:MOST_OTHERS]]
    rows = (
        {"role": role} | _row(trials, chosen.default, setup, engines, price_per_hour) for role, setup, engines in asked
    )
    return pd.DataFrame(rows)


def parts_of(setup: Setup, default: Setup) -> dict[str, Setup]:
    """The default with only the router of a setup, and with everything but its router, unless that is the setup."""
    alone = {
        ROUTER_ALONE: dataclasses.replace(default, router=setup.router),
        ENGINE_ALONE: dataclasses.replace(setup, router=default.router),
    }
    return {} if setup in alone.values() else alone


def _row(trials: Trials, default: Sized, setup: Setup, engines: int, price_per_hour: float | None) -> dict[str, Any]:
    windows = range(len(trials.windows))
    rows = trials.rows(Trial(setup, engines, window) for window in windows)
    shares = np.array([row["share"] for row in rows])
    difference = shares - trials.shares(default.setup, engines, windows)
    cost = np.nan if price_per_hour is None else price_per_hour * engines
    row: dict[str, Any] = {"setup": setup, "label": setup.label(engines), "engines": engines}
    row |= student_interval(shares).columns(SHARE) | student_interval(difference).columns(DIFFERENCE)
    row |= {"held": int((shares >= 1 - trials.target.most_failed - 1e-9).sum()), "windows": len(shares)}
    row |= {name: float(np.nanmean([one[name] for one in rows])) for name in MEANS}
    tokens_per_hour = 3600 * row["output_tokens_per_s"]
    return row | {"cost_per_hour": cost, "cost_per_million_tokens": 1e6 * cost / tokens_per_hour}


def curve(trials: Trials, chosen: Chosen, is_given: bool = False) -> pd.DataFrame:
    """role (recommended, default), engines and share with its interval, from one engine fewer than recommended to one
    more than the default takes; is_given: with the engines of the fleet alone."""
    best, default = (chosen.fleet(one) for one in (chosen.best, chosen.default))
    few, many = (best, best) if is_given else (max(1, min(best, default) - 1), max(best, default) + 1)
    sizes = sorted(set(np.linspace(few, many, min(many - few + 1, 8)).round().astype(int).tolist()) | {best, default})
    of = {RECOMMENDED: chosen.best.setup, DEFAULT: chosen.default.setup}
    rows = []
    for role, setup in list(of.items())[: 1 if chosen.best.setup == chosen.default.setup else 2]:
        for engines in sizes:
            shares = trials.shares(setup, engines, range(len(trials.windows)))
            rows.append({"role": role, "engines": engines} | student_interval(shares).columns(SHARE))
    return pd.DataFrame(rows)
