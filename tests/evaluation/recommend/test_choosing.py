"""The search finds the setup that needs the fewest engines, and changes nothing that gives nothing."""

import math
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegym.evaluation.recommend.choosing import Chosen, Sized, choose, fewest_engines, grown
from servegym.evaluation.recommend.judging import confirmed
from servegym.evaluation.recommend.setups import Setup, setups
from servegym.evaluation.targets import parse_target

TRIED = setups(Setup())


@dataclass
class Made:
    """Trials whose shares are a formula: of the engines a setup needs in a window."""

    needs: dict
    target: object = field(default_factory=lambda: parse_target("attainment=0.95"))
    windows: list = field(default_factory=lambda: [SimpleNamespace(rate_per_s=rate) for rate in (1.0, 3.0, 2.0)])
    runs: int = 0

    def rows(self, trials):
        trials = list(trials)
        self.runs += len(trials)
        return [{"share": self.share(*trial), "ttft_p99_s": 1 / trial[1], "of": hash(trial[0])} for trial in trials]

    def shares(self, setup, engines, windows):
        return np.array([self.share(setup, engines, window) for window in windows])

    def share(self, setup, engines, window):
        needed = self.needs.get(setup, 8.0) * self.windows[window].rate_per_s / 3
        return min(1.0, engines / needed)


def test_the_setup_that_needs_the_fewest_engines_is_found():
    better = next(one for one in TRIED if one.scheduler == "expected-gain" and one.router == "min-load")
    parts = {replace(better, router="round-robin"): 7.0, replace(TRIED[0], router="min-load"): 7.0}
    trials = Made({better: 5.0, **parts})
    chosen = choose(trials, TRIED)
    assert chosen.best.setup == better and chosen.best.engines == 5
    assert chosen.default.setup == TRIED[0] and chosen.default.engines == 8
    assert trials.runs < 2 * len(TRIED)  # most setups are not run, or on one window


def test_nothing_is_changed_for_nothing():
    chosen = choose(Made({}), TRIED)
    assert chosen.best == chosen.default and chosen.best.setup == TRIED[0]


def test_of_those_as_good_the_one_that_changes_least_is_taken():
    plug_in = next(one for one in TRIED if one.needs_plug_in)
    flags = replace(Setup(), max_num_batched_tokens=4096)
    assert flags in TRIED
    assert choose(Made({plug_in: 5.0, flags: 5.01}), TRIED).best.setup == flags


def test_of_given_engines_the_larger_share_counts():
    better = replace(Setup(), router="min-load")
    chosen = choose(Made({better: 6.0}), TRIED, engines=4)
    assert chosen.best.setup == better and chosen.best.engines is None
    assert chosen.fleet(chosen.best) == chosen.fleet(chosen.default) == 4


def test_a_router_that_reaches_what_the_default_does_not_is_found():
    class Sessions(Made):
        """Round-robin is as poor with any number of engines."""

        def rows(self, trials):
            return [row | {"ttft_p99_s": 1.0} for row in super().rows(trials)]

        def share(self, setup, engines, window):
            return 0.5 if setup.router == "round-robin" else super().share(setup, engines, window)

    chosen = choose(Sessions({}), TRIED)
    assert chosen.best.setup.router != "round-robin" and chosen.best.engines == 8 and chosen.default.engines is None


def test_a_target_out_of_reach_gets_as_many_engines_as_help():
    class Slow(Made):
        def rows(self, trials):
            return [row | {"ttft_p99_s": max(row["ttft_p99_s"], 1 / 8)} for row in super().rows(trials)]

        def share(self, setup, engines, window):
            return 0.5 * super().share(setup, engines, window)

    trials = Slow({})
    chosen = choose(trials, TRIED)
    assert chosen.best.engines is None and chosen.engines == 8
    assert grown(trials, TRIED[0], 1, [0, 1, 2]) == 16  # twice as many change nothing


@settings(deadline=None)
@given(st.floats(0.5, 60), st.integers(1, 40))
def test_the_fewest_engines_are_enough_and_one_less_is_not(needed, first):
    trials = Made({Setup(): needed})
    sized = fewest_engines(trials, Setup(), first, [1])
    assert trials.share(Setup(), sized.engines, 1) >= 0.95 - 1e-6
    assert sized.engines == 1 or trials.share(Setup(), sized.engines - 1, 1) < 0.95
    assert sized.share == pytest.approx(trials.share(Setup(), sized.engines, 1))


BEST, FLAGS = replace(Setup(), router="min-load"), replace(Setup(), max_num_batched_tokens=4096)
PLUG_IN = replace(Setup(), scheduler="expected-gain", router="min-load")


def settled(choosing: dict[Setup, float], judging: dict[Setup, float], best: Setup, others=()) -> Chosen:
    """The choice between setups that need so many engines in the windows that choose, and in those that judge."""
    sized = {one: Sized(one, round(engines), 1.0) for one, engines in choosing.items()}
    chosen = Chosen(sized[best], sized[Setup()], 8, [sized[one] for one in others])
    return confirmed(Made(choosing), Made(judging), chosen)


def test_a_choice_that_holds_in_all_windows_stays():
    chosen = settled({BEST: 5.0, Setup(): 8.0}, {BEST: 4.0, Setup(): 8.0}, BEST)
    assert (chosen.best.setup, chosen.best.engines, chosen.default.engines) == (BEST, 5, 8)


@pytest.mark.parametrize("needed", [5.2, 6.0, 9.0, 23.0])
def test_engines_are_added_until_the_windows_that_judge_hold_the_target(needed):
    chosen = settled({BEST: 5.0, Setup(): 8.0}, {BEST: needed, Setup(): 30.0}, BEST)
    assert chosen.best.setup == BEST and chosen.best.engines == math.ceil(0.95 * needed - 1e-9)
    assert chosen.default.engines == 29


def test_with_more_engines_a_setup_without_a_plug_in_may_do():
    needs = {PLUG_IN: 4.0, FLAGS: 5.0, Setup(): 8.0}
    chosen = settled(needs, {PLUG_IN: 5.0, FLAGS: 5.0, Setup(): 8.0}, PLUG_IN, (FLAGS,))
    assert (chosen.best.setup, chosen.best.engines) == (FLAGS, 5)


def test_a_default_that_needs_fewer_engines_is_the_choice():
    chosen = settled({BEST: 5.0, Setup(): 6.0}, {BEST: 9.0, Setup(): 6.0}, BEST)
    assert chosen.best == chosen.default and chosen.best.engines == 6


def test_where_no_number_holds_there_none_is_named():
    class Hopeless(Made):
        def share(self, setup, engines, window):
            return 0.9

    sized = Sized(BEST, 5, 1.0)
    chosen = confirmed(Made({}), Hopeless({}), Chosen(sized, sized, 8, []))
    assert chosen.best.engines is None and chosen.fleet(chosen.best) == 5
