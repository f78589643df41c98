"""Tables and figures of a run."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.simulator.iterations import tbt_bin
from servegym.simulator.results import histogram_quantiles, quantiles
from servegym.simulator.simulation import Simulation
from servegym.simulator.types import TBT_BINS, TIMELINE_KINDS
from tests.simulator.scenes import requests, scene

pytestmark = pytest.mark.nojit


def test_quantiles_leave_out_what_is_not_finite():
    values = np.array([1.0, 2.0, 3.0, np.nan, np.inf])
    assert quantiles(values) == {"p50": 2.0, "p90": pytest.approx(2.8), "p99": pytest.approx(2.98)}
    assert quantiles(np.array([np.nan])) == {"p50": None, "p90": None, "p99": None}
    assert quantiles(np.array([])) == {"p50": None, "p90": None, "p99": None}


@given(st.lists(st.floats(2.0**-20, 4000), min_size=1, max_size=60))
def test_histogram_quantiles_are_within_a_64th_of_a_value_that_has_the_rank(intervals):
    counts = np.zeros(TBT_BINS, "i8")
    for interval_s in intervals:
        counts[tbt_bin(interval_s)] += 1
    in_order = sorted(intervals)
    for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        exact = in_order[max(math.ceil(round(q * len(intervals), 9)), 1) - 1]
        assert histogram_quantiles(counts)[name] == pytest.approx(exact, rel=1 / 63)


def test_histogram_quantiles_of_nothing():
    assert histogram_quantiles(np.zeros(TBT_BINS, "i8")) == {"p50": None, "p90": None, "p99": None}


def test_a_summary_by_hand():
    # 0-6: both prompts (1 + 2 + 3). Tokens at 6; request 1 (one token) is done. Decodes of request 0: 8 and 10.
    workload = requests(
        prompt_tokens=[2, 3], output_tokens=[3, 1], priority=[0, 1], weight=[2.0, 1.0],
        ttft_slo_s=[7.0, 6.0], tpot_slo_s=[2.5, 1.0],
    )  # fmt: skip
    simulation = Simulation(scene(workload))
    result = simulation.run()
    summary = result.summary
    # Deadlines 7, 9.5, 12 for tokens at 6, 8, 10: all count, 2 each. Request 1: 6 is not before 6.
    assert (summary["gain"], summary["ideal_gain"], summary["tdg_ratio"]) == (6, 7, pytest.approx(6 / 7))
    assert summary["slo_attainment"] == 0.5 and summary["slo_attainment_by_priority"] == {0: 1.0, 1: 0.0}
    assert summary["on_time_token_share"] == 3 / 4
    assert summary["ttft_s"]["p50"] == 6 and summary["tpot_s"]["p50"] == 2  # an answer of one token has no TPOT
    assert summary["ttlt_s"]["p50"] == 8 and summary["tbt_s"]["p50"] == pytest.approx(2, rel=1 / 64)
    assert summary["span_s"] == 10 and summary["throughput_tokens_per_s"] == 0.4
    assert summary["throughput_requests_per_s"] == 0.2 and summary["slo_throughput_per_s"] == 0.1
    assert (summary["requests"], summary["finished"], summary["tokens_emitted"]) == (2, 2, 4)
    assert (summary["iterations"], summary["preemptions"], summary["cost_engine_s"]) == (3, 0, 10)
    assert summary["kv_use_peak"] == 5 / 1000
    # 5 blocks for 6 s, then 3 and 4 for 2 s each.
    assert summary["kv_use_mean"] == pytest.approx((30 + 6 + 8) / 10 / 1000)
    json.dumps(summary, allow_nan=False)  # plain numbers, whoever prints them
    assert result.requests["gain"].tolist() == [6, 0] and result.requests["attained"].tolist() == [True, False]
    assert result.requests["longest_tbt_s"].tolist() == [2, 0]


def test_a_ttlt_class_is_judged_by_its_last_token():
    # Tokens at 5, 7 and 9.
    for ttlt_s, attained, gain in ((9.5, True, 3), (9.0, False, 2), (5.0, False, 0)):
        workload = requests(prompt_tokens=[4], output_tokens=[3], ttft_slo_s=1.0, tpot_slo_s=1.0, ttlt_slo_s=ttlt_s)
        result = Simulation(scene(workload)).run()
        assert (result.requests["attained"][0], result.summary["gain"]) == (attained, gain), ttlt_s


def test_slos_are_strict():
    # Token 1 at 5, the others every 2 s.
    for ttft_s, tpot_s, attained in ((5.5, 2.5, True), (5.0, 2.5, False), (5.5, 2.0, False)):
        workload = requests(prompt_tokens=[4], output_tokens=[3], ttft_slo_s=ttft_s, tpot_slo_s=tpot_s)
        assert Simulation(scene(workload)).run().requests["attained"][0] == attained


@pytest.mark.parametrize("csv", [False, True])
@pytest.mark.parametrize("recorded", [False, True])
def test_saved_tables_are_the_tables(tmp_path, csv, recorded):
    result = Simulation(scene(requests(prompt_tokens=[4, 3], output_tokens=[3, 1])), record_timeline=recorded).run()
    written = result.save(tmp_path / "new" / "folder", csv=csv)
    suffix = ".csv" if csv else ".parquet"
    names = ["requests", "engines"] + ["timeline"] * recorded
    assert [path.name for path in written] == [name + suffix for name in names]
    for path, name in zip(written, names, strict=True):
        read = pd.read_csv(path) if csv else pd.read_parquet(path)
        table = getattr(result, name)
        if csv and name == "timeline":
            table["kind"] = table["kind"].astype(str)
        pd.testing.assert_frame_equal(read, table, check_dtype=not csv, check_categorical=False)


def test_timeline_kinds_are_words():
    result = Simulation(scene(requests(prompt_tokens=[4])), record_timeline=True).run()
    assert set(result.timeline["kind"]) < set(TIMELINE_KINDS)
    assert Simulation(scene(requests(prompt_tokens=[4]))).run().timeline.empty
