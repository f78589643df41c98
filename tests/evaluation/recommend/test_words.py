"""What a recommendation says is what its table has."""

from types import SimpleNamespace

import pandas as pd
import pytest

from servegym.evaluation.recommend.choosing import Chosen, Sized
from servegym.evaluation.recommend.setups import Setup
from servegym.evaluation.recommend.words import conclusions
from servegym.evaluation.repeats import BLOCKS, WINDOWS
from servegym.evaluation.targets import parse_target

DEFAULT, BETTER = Setup(), Setup(router="min-load")


def row(role, setup, engines, share, held=5):
    return {
        "role": role, "setup": setup, "label": setup.label(), "engines": engines, "share": share, "share_ci_low": share,
        "share_ci_high": share, "share_difference": 0.1, "share_difference_ci_low": 0.05,
        "share_difference_ci_high": 0.15, "held": held, "windows": 5, "cost_per_hour": 2.0 * engines,
        "ttlt_p99_s": 20.0,
    }  # fmt: skip


def said(best, default, rows, engines=None, least=None, span_s=60.0, over=WINDOWS, at_first=None):
    """The sentences of a recommendation with this table."""
    chosen = Chosen(best, default, 8, [])
    table, at_first = pd.DataFrame(rows), at_first or best
    of = SimpleNamespace(
        device="gpu", chosen=chosen, at_first=at_first, table=table, best=table.iloc[0], least=least, price_per_hour=2.0
    )
    spec = SimpleNamespace(fleet=SimpleNamespace(pools=()))
    question = SimpleNamespace(target=parse_target("attainment=0.95"), given_engines=engines, spec=spec)
    windows = SimpleNamespace(over=over, to_judge=[None] * 5, span_s=span_s)
    return " ".join(conclusions(SimpleNamespace(best=of, of_devices=(of,), question=question, windows=windows)))


def test_engines_that_are_saved():
    rows = [
        row("recommended", BETTER, 5, 0.99), row("default", DEFAULT, 8, 0.98),
        row("default, as many engines", DEFAULT, 5, 0.89),
    ]  # fmt: skip
    text = said(Sized(BETTER, 5, 0.99), Sized(DEFAULT, 8, 0.98), rows, least=3)
    assert "Run 5 engines of gpu with vllm-v1 + min-load + 2048 tokens, 256 seqs." in text
    assert "3 fewer than the default needs (8 engines), 6.00 less an hour" in text
    assert "default with as many engines 0.890, a difference of +0.100 ± 0.050" in text
    assert "fewer than 3 engines enough" in text
    assert "windows that chose" not in text and "too short" not in text


def test_the_default_is_good_enough():
    sized = Sized(DEFAULT, 2, 1.0)
    text = said(sized, sized, [row("recommended", DEFAULT, 2, 0.96)], least=1)
    assert "with the default settings" in text and "fewer than" not in text and "had" not in text


def test_more_engines_than_the_windows_that_chose_needed():
    rows, words = [row("recommended", DEFAULT, 3, 0.96)], "; on the others it takes more"
    text = said(Sized(DEFAULT, 3, 1.0), Sized(DEFAULT, 3, 1.0), rows, at_first=Sized(DEFAULT, 2, 1.0))
    assert f"On the windows that chose, 2 engines held the target{words}" in text
    text = said(Sized(DEFAULT, 3, 1.0), Sized(DEFAULT, 3, 1.0), rows, at_first=Sized(BETTER, 2, 1.0))
    assert f"2 engines with {BETTER.label(2)} held the target{words}" in text


@pytest.mark.parametrize(("engines", "says"), [(None, True), (5, False)])
def test_a_default_that_does_not_hold_the_target(engines, says):
    rows = [row("recommended", BETTER, 5, 0.99), row("default", DEFAULT, 8, 0.5)]
    text = said(Sized(BETTER, 5, 0.99), Sized(DEFAULT, None, 0.5), rows, engines)
    assert ("does not hold the target with any number" in text) == says and "The default needs" not in text


def test_a_target_out_of_reach():
    rows = [row("recommended", BETTER, 8, 0.6, held=0), row("default", DEFAULT, 8, 0.5, held=0)]
    text = said(Sized(BETTER, None, 0.6), Sized(DEFAULT, None, 0.5), rows)
    assert text.startswith("No number of gpu engines that was tried holds SLO attainment of at least 0.95")


@pytest.mark.parametrize(("over", "how"), [(WINDOWS, "ask with --resample, or"), (BLOCKS, "ask with servegym plan")])
def test_windows_in_which_engines_are_still_filling(over, how):
    sized = Sized(DEFAULT, 2, 1.0)
    text = said(sized, sized, [row("recommended", DEFAULT, 2, 0.96)], span_s=39.0, over=over)
    assert "requests arrive for 39 s, and answers take up to 20 s (p99)" in text and how in text
    assert "too short" not in said(sized, sized, [row("recommended", DEFAULT, 2, 0.96)], span_s=41.0, over=over)
