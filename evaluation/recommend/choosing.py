"""Which setup serves with the fewest engines: successive halving over windows, then a bisection for those left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from servegym.evaluation.bisection import fewest
from servegym.evaluation.recommend.setups import Setup
from servegym.evaluation.recommend.trials import Trial, Trials

MOST_ENGINES = 256
ROUTERS_KEPT, RESTS_KEPT = 3, 10  # routers and engine settings, each the best alone, that are combined
RUNGS = ((1, 32), (2, 12))  # windows that a rung takes, and how many setups it keeps; the last rung takes all windows
# Setups that are bisected beside the default, and how many of them at least change only engine flags.
LEFT, LEFT_WITHOUT_PLUG_IN = 5, 2
NEARLY_ALL = 0.01  # of the share that any number of engines reaches: more engines than that give nothing
ALIKE = 0.9  # of a p99 TTFT: it falls by more than to this where more engines help
AS_GOOD = 0.005  # a share less by this is not worth another setting


class Sized(NamedTuple):
    """engines: the fewest with which every window holds the target; None: no number does, or another is given.
    share: mean over the windows, with these engines or those that were given."""

    setup: Setup
    engines: int | None
    share: float


class Chosen(NamedTuple):
    """best: what is recommended. default: what it is compared with. engines: of the fleet, where the target is out of
    reach or a number is given. others: the setups that came next, the best first."""

    best: Sized
    default: Sized
    engines: int
    others: list[Sized]

    def fleet(self, sized: Sized) -> int:
        """Number of engines of a setup."""
        return sized.engines or self.engines


def choose(trials: Trials, setups: Sequence[Setup], engines: int | None = None) -> Chosen:
    """Choose the setup that holds the target with the fewest engines; with `engines` given, for the most requests.

    setups: the default first. Between setups with as many engines the larger share counts; one that is less by up to
    AS_GOOD wins if it is nearer to the default. Windows: all of the trials', the busiest first.
    """
    default, windows = setups[0], by_rate(trials)
    if engines is None:
        sized = fewest_engines(trials, default, 1, windows)
        reference = sized.engines or by_any_router(trials, setups, windows[:1])
        sizes = sorted({max(1, min(reference - 1, round(0.75 * reference))), reference})
    else:
        reference, sizes = engines, [engines]
        sized = Sized(default, None, float(trials.shares(default, engines, windows).mean()))
    left = halved(trials, setups, sizes, windows)
    if engines is None:
        found = [sized, *(fewest_engines(trials, setup, reference, windows, 2 * reference) for setup in left)]
    else:
        found = [sized, *(Sized(one, None, float(trials.shares(one, engines, windows).mean())) for one in left)]
    found = list(dict.fromkeys(found))
    found = [
        one if one.engines else one._replace(share=float(trials.shares(one.setup, reference, windows).mean()))
        for one in found
    ]
    ranked = sorted(found, key=lambda one: (one.engines or MOST_ENGINES + 1, -one.share))
    best = simplest([one for one in ranked if one.engines == ranked[0].engines], default)
    default_sized = next(one for one in found if one.setup == default)
    return Chosen(best, default_sized, reference, [one for one in ranked if one not in (best, default_sized)])


def by_any_router(trials: Trials, setups: Sequence[Setup], windows: Sequence[int]) -> int:
    """The fewest engines with which any router holds the target; if none does, the most that still help one of them."""
    alone = list(routers_alone(setups))
    enough = [
        sized.engines for sized in (fewest_engines(trials, setup, 1, windows) for setup in alone) if sized.engines
    ]
    return min(enough) if enough else max(enough_engines(trials, setup, windows) for setup in alone)


def routers_alone(setups: Sequence[Setup]) -> dict[Setup, str]:
    """The default setup with each router, and that router."""
    return {replace(setups[0], router=setup.router): setup.router for setup in setups}


def simplest(ranked: Sequence[Sized], default: Setup) -> Sized:
    """Among setups about as good as the first, the one that changes the fewest defaults."""
    good = [one for one in ranked if one.share >= ranked[0].share - AS_GOOD]
    return min(good, key=lambda one: changes(one.setup, default))


def changes(setup: Setup, default: Setup) -> tuple[bool, int]:
    """Whether it needs a plug-in, and in how many fields it differs."""
    differ = sum(one != other for one, other in zip(vars(setup).values(), vars(default).values(), strict=True))
    return setup.needs_plug_in and not default.needs_plug_in, differ


def by_rate(trials: Trials) -> list[int]:
    """The windows, that with the highest rate first."""
    return sorted(range(len(trials.windows)), key=lambda number: -trials.windows[number].rate_per_s)


def fewest_engines(trials: Trials, setup: Setup, first: int, windows: Sequence[int], most: int = MOST_ENGINES) -> Sized:
    """The fewest engines with which each window holds the target, up to `most`; by bisection from the first on."""
    engines = grown(trials, setup, first, windows, most)
    if not is_enough(trials, setup, engines, windows):
        return Sized(setup, None, np.nan)
    found = fewest(lambda number: is_enough(trials, setup, number, windows), engines, engines).enough
    return Sized(setup, found, float(trials.shares(setup, found or engines, windows).mean()))


def is_enough(trials: Trials, setup: Setup, engines: int, windows: Sequence[int]) -> bool:
    """Whether each of the windows holds the target."""
    return bool((trials.shares(setup, engines, windows) >= 1 - trials.target.most_failed - 1e-9).all())


def grown(trials: Trials, setup: Setup, first: int, windows: Sequence[int], most: int = MOST_ENGINES) -> int:
    """Double the first number of engines until it is enough, or until doubling changes nothing."""
    engines, before = min(first, most), None
    while not is_enough(trials, setup, engines, windows) and engines < most:
        rows = trials.rows(Trial(setup, engines, window) for window in windows)
        now = np.array([[row["share"], row["ttft_p99_s"]] for row in rows]).mean(axis=0)
        if before is not None and now[0] <= before[0] + NEARLY_ALL and now[1] >= ALIKE * before[1]:
            break
        before, engines = now, min(most, 2 * engines)
    return engines


def enough_engines(trials: Trials, setup: Setup, windows: Sequence[int]) -> int:
    """The fewest engines beyond which more of them hardly help."""
    most = grown(trials, setup, 1, windows)
    at_most = float(trials.shares(setup, most, windows).mean())
    found = fewest(
        lambda engines: float(trials.shares(setup, engines, windows).mean()) >= at_most - NEARLY_ALL, most, most
    )
    return found.enough or most


def promising(trials: Trials, setups: Sequence[Setup], engines: int, window: int) -> list[Setup]:
    """The setups other than the default whose router, and whose engine settings, are each among the best when only they
    change.
    """
    default = setups[0]
    routers = routers_alone(setups)
    rests = [setup for setup in setups if setup.router == default.router]
    alone = list(dict.fromkeys([*routers, *rests]))
    shares = [row["share"] for row in trials.rows(Trial(setup, engines, window) for setup in alone)]
    order = [alone[place] for place in np.argsort(-np.array(shares), kind="stable")]
    best_routers = [routers[setup] for setup in order if setup in routers][:ROUTERS_KEPT]
    best_rests = [setup for setup in order if setup in rests][:RESTS_KEPT]
    return [
        setup for setup in setups[1:]
        if setup.router in (*best_routers, default.router)
        and replace(setup, router=default.router) in (*best_rests, default)
    ]  # fmt: skip


def halved(trials: Trials, setups: Sequence[Setup], sizes: Sequence[int], windows: Sequence[int]) -> list[Setup]:
    """The best setups by their mean share, without the default: each rung takes more windows for fewer setups. The
    first takes those that are `promising`.

    Of setups that come to the same in every figure the one nearest to the default is kept.
    """
    default, left = setups[0], promising(trials, setups, sizes[0], windows[0])
    for number, (count, kept) in enumerate((*RUNGS, (len(windows), LEFT))):
        some = windows[:count]
        tried = sizes[: 1 if number == 0 else None]
        each = len(tried) * len(some)
        rows = trials.rows(Trial(setup, size, window) for setup in left for size in tried for window in some)
        scores = np.array([row["share"] for row in rows]).reshape(len(left), -1).mean(axis=1)
        figures = [
            tuple(value for row in rows[each * n : each * (n + 1)] for value in row.values()) for n in range(len(left))
        ]
        nearest: dict[tuple[float, ...], Setup] = {}
        for place in np.argsort(-scores, kind="stable"):
            same = nearest.get(figures[place])
            if same is None or changes(left[place], default) < changes(same, default):
                nearest[figures[place]] = left[place]
        order = list(nearest.values())
        flags_only = [setup for setup in order if not setup.needs_plug_in]
        best = order[:kept]
        left = best + [setup for setup in flags_only[:LEFT_WITHOUT_PLUG_IN] if setup not in best]
    return left
