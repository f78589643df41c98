"""How evenly gain is shared out: by hand, and its bounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.simulator.runs.fairness import LENGTH_GROUPS, fairness, in_words, length_groups
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.scenes import requests, scene

ONES = np.ones(4)


def test_by_hand():
    pairs = np.array([7, 7, 3, 3])
    assert fairness(ONES, ONES, pairs) == 1.0
    assert fairness(np.array([1.0, 1.0, 0.0, 0.0]), ONES, pairs) == 0.5  # one of two has all
    # Shares of 1 and 1/3: (4/3)^2 / (2 x 10/9).
    assert fairness(np.array([2.0, 0.0, 1.0, 0.0]), np.array([1.0, 1.0, 1.0, 2.0]), pairs) == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("gain", "group"),
    [(ONES, np.zeros(4, int)), (0 * ONES, np.arange(4)), (ONES[:0], np.arange(0))],
    ids=["one group", "nothing gained", "no requests"],
)
def test_where_there_is_nothing_to_compare_there_is_no_index(gain, group):
    assert fairness(gain, ONES[: len(gain)], group) is None


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 9), st.integers(0, 4)), min_size=1, max_size=30))
def test_it_lies_between_one_over_the_groups_and_one(rows):
    share, ideal, group = (np.array(column) for column in zip(*rows, strict=True))
    index = fairness(share * ideal, ideal, group)
    if index is not None:
        assert 1 / len(np.unique(group)) <= index * (1 + 1e-9) and index <= 1 + 1e-9
        assert index == pytest.approx(fairness(share * ideal * 7, ideal * 7, group + 100))


@given(st.lists(st.integers(1, 60), min_size=1, max_size=60))
def test_groups_of_lengths_are_quarters_in_order(prompt_tokens):
    table = requests(prompt_tokens=sorted(prompt_tokens)).table
    group = length_groups(table)
    words = in_words(table, group)
    tokens = table["prompt_tokens"] + table["output_tokens"]
    assert len(words) <= LENGTH_GROUPS and set(group) == set(range(len(words)))
    assert (np.diff(group) >= 0).all()
    for one, said in enumerate(words):
        assert said == f"{tokens[group == one].min()} to {tokens[group == one].max()} tokens"
    if len(set(prompt_tokens)) == len(prompt_tokens) >= LENGTH_GROUPS:
        sizes = np.bincount(group)
        assert sizes.max() - sizes.min() <= 1


def test_the_summary_has_it_by_client_and_by_length():
    served = requests(prompt_tokens=[10, 20, 30, 400], client=[0, 0, 1, 1], ttft_slo_s=[999.0, 999.0, 999.0, 1e-6])
    result = Simulation(scene(served)).run()
    table = result.requests
    assert table["gain"].iloc[3] < table["ideal_gain"].iloc[3]
    shares = table.groupby("client")["gain"].sum() / table.groupby("client")["ideal_gain"].sum()
    assert result.summary["fairness_by_client"] == pytest.approx(shares.sum() ** 2 / (2 * (shares**2).sum()))
    assert result.summary["fairness_by_client"] < 1
    assert list(result.summary["slo_attainment_by_length"].values()) == [1.0, 1.0, 1.0, 0.0]
