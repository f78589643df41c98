"""What the page of task goodput says of its hypotheses."""

import itertools

import pandas as pd
import pytest

from experiments.session_goodput import RATES_PER_S, SCHEDULERS, STYLES, answers, figures_of, page


def rows(**goodput: float) -> pd.DataFrame:
    """Three seeds; figures are 0.5 + seed / 100, and the task goodput of a scheduler that is named so much more."""
    found = []
    for scheduler, rate, seed in itertools.product(SCHEDULERS, RATES_PER_S, (1, 2, 3)):
        figures = dict.fromkeys(STYLES, 0.5 + 0.01 * seed)
        figures["gain_ratio"] += goodput.get(scheduler.replace("-", "_"), 0.0)
        found.append({"scheduler": scheduler, "rate": rate, "seed": seed} | figures)
    return pd.DataFrame(found)


def test_verdicts() -> None:
    assert [line.rsplit(": ", 1)[1] for line in answers(rows(plas=0.2, expected_gain=0.3))] == ["holds."] * 3
    assert all(line.endswith("fails.") for line in answers(rows(plas=-0.1, expected_gain=-0.2)))
    assert answers(rows(plas=0.25))[0].startswith("- 1. Task goodput, plas less sarathi-fcfs: +0.250")


def test_the_page_has_a_row_a_scheduler_at_each_rate() -> None:
    text = page(rows(), 3, 100)
    assert all(text.count(f"\n| `{name}` | ") == len(RATES_PER_S) for name in SCHEDULERS)


@pytest.mark.slow
def test_a_run_is_scored_by_its_sessions() -> None:
    figures = figures_of("plas", 1.0, 1, 60)
    assert figures["gain_ratio"] == figures["session_slo_attainment"] == 1.0
