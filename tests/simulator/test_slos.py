"""Attainment and violations by hand: where they differ, by class and by priority, and before a run has ended."""

import numpy as np
import pytest

from servegym.simulator.runs.simulation import Simulation
from servegym.simulator.runs.slos import MOST_CLASSES, attained, missed, slo_classes, starved, violated
from tests.simulator.scenes import requests, scene

pytestmark = pytest.mark.nojit


def ran(workload, until_s: float = np.inf) -> Simulation:
    run = Simulation(scene(workload, until_s=until_s))
    run.run()
    return run


def test_attainment_and_violations_differ():
    # One prompt of 3 and three tokens: 4 s, 6 s, 8 s (1 s + 1 s a token).
    def both(ttft_slo_s: float, tpot_slo_s: float) -> tuple[bool, bool]:
        one = requests(prompt_tokens=[3], output_tokens=3, ttft_slo_s=ttft_slo_s, tpot_slo_s=tpot_slo_s)
        summary = ran(one).result().summary
        return summary["slo_attainment"] == 1, summary["violations"] == 1

    assert both(4.5, 2.5) == (True, False)
    assert both(9, 1) == (False, False)  # deadlines 9, 10, 11: the first token was early enough for all
    assert both(4, 9) == (False, True)
    assert both(1e-9, 1e9) == (False, True)  # the first was late, the others are not


def test_one_stall_violates_where_the_mean_attains():
    # Request 1 comes while request 0 decodes: its prefill of 20 delays one token of request 0, due long before.
    pair = requests(
        prompt_tokens=[3, 20], output_tokens=[12, 1], arrival_s=[0.0, 5.0], ttft_slo_s=[4.5, 99], tpot_slo_s=[5, 99]
    )
    summary = ran(pair).result().summary
    assert summary["slo_attainment"] == 1 and summary["violations"] == 0.5
    assert ran(pair).result().requests["violated"].tolist() == [True, False]


def test_starved_are_those_over_ten_times_late_and_those_never_served():
    # One at a time: a token of prompt or answer takes a second. Request 1 waits for request 0: its TTFT is 20 - 1 + 1.
    rows = requests(
        prompt_tokens=[10, 1, 1], output_tokens=[10, 1, 1], arrival_s=[0.0, 1.0, 100.0], ttft_slo_s=[1.0, 1.9, 2.1],
        tpot_slo_s=99.0,
    )  # fmt: skip
    table = rows.table
    ttft_s, ttlt_s = np.array([10.0, 20.0, np.nan]), np.array([20.0, 20.0, np.nan])
    assert starved(table, ttft_s, ttlt_s).tolist() == [False, True, True]  # ten times is not over ten times
    by_ttlt = requests(prompt_tokens=[1, 1], ttft_slo_s=0.1, ttlt_slo_s=[3.0, 1.0]).table
    assert starved(by_ttlt, np.array([9.0, 9.0]), np.array([29.0, 11.0])).tolist() == [False, True]
    result = ran(rows).result()
    assert result.summary["starved"] == result.requests["starved"].mean()


def test_by_class_and_priority():
    rows = requests(
        prompt_tokens=[3, 3, 3, 3], output_tokens=[2] * 4, arrival_s=[0.0, 100.0, 200.0, 300.0], priority=[0, 0, 1, 1],
        ttft_slo_s=[9, 1, 9, 1], tpot_slo_s=[0.5, 0.5, 0.5, 0.5], ttlt_slo_s=[np.inf, np.inf, 5.0, 1800.0],
    )  # fmt: skip
    summary = ran(rows).result().summary
    assert summary["violations"] == 0.5
    assert summary["violations_by_priority"] == {0: 0.5, 1: 0.5}
    assert list(summary["violations_by_class"].items()) == [
        ("TTFT 1 s, TPOT 500 ms", 1.0), ("TTFT 9 s, TPOT 500 ms", 0.0), ("TTLT 5 s", 1.0), ("TTLT 1800 s", 0.0),
    ]  # fmt: skip


def test_slos_of_each_request_make_no_classes():
    many = requests(prompt_tokens=[3] * (MOST_CLASSES + 1), ttft_slo_s=np.arange(1.0, MOST_CLASSES + 2))
    assert slo_classes(many.table) == {}
    squares = requests(
        prompt_tokens=[3] * 25, ttft_slo_s=np.repeat(np.arange(1.0, 6), 5), tpot_slo_s=[1.0, 2, 3, 4, 5] * 5
    )
    assert slo_classes(squares.table) == {}
    alike = requests(prompt_tokens=[3, 3], ttft_slo_s=[1.0, 1.0 + 1e-9], tpot_slo_s=0.05)
    assert [those.tolist() for those in slo_classes(alike.table).values()] == [[True, True]]


def test_what_has_not_come_yet():
    """At 5 s: the answer is at its first token (4 s); the next is at 6 s."""

    def at_5_s(**slos) -> tuple[bool, bool]:
        one = requests(prompt_tokens=[3], output_tokens=2, **slos)
        run = ran(one, 5.0)
        return bool(violated(run.arrays, one, 5.0)[0]), bool(missed(run.arrays, one, 5.0)[0])

    assert at_5_s(ttft_slo_s=4.5, tpot_slo_s=9) == (False, False)
    assert at_5_s(ttft_slo_s=4.2, tpot_slo_s=0.5) == (True, False)  # due at 4.7; the mean is not known
    assert at_5_s(ttft_slo_s=4, tpot_slo_s=9) == (True, True)
    assert at_5_s(ttlt_slo_s=5) == (True, True)
    assert at_5_s(ttlt_slo_s=5.5) == (False, False)


def test_what_never_finishes_has_failed():
    two = requests(prompt_tokens=[3, 3], output_tokens=[2, 1], arrival_s=[0.0, 50.0], ttft_slo_s=9, tpot_slo_s=9)
    run = ran(two, 5.0)
    assert violated(run.arrays, two, np.inf).tolist() == missed(run.arrays, two, np.inf).tolist() == [True, True]
    assert missed(run.arrays, two, 5.0).tolist() == attained(run.arrays, two).tolist() == [False, False]
    run = ran(two)
    assert missed(run.arrays, two, np.inf).tolist() == [False, False] and attained(run.arrays, two).all()
