"""Tables and figures of a run."""

import dataclasses
import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.simulator.batching.ends import tbt_bin
from servegym.simulator.features.operators import Operators
from servegym.simulator.memory.prefixes import PrefixStore, Prompts
from servegym.simulator.records.types import TBT_BINS, TIMELINE_KINDS
from servegym.simulator.runs.figures import histogram_quantiles, quantiles
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.random_policies import RANDOM_SCHEDULER
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
    assert (summary["iterations"], summary["evictions"], summary["cost_engine_s"]) == (3, 0, 10)
    assert (summary["reroutes"], summary["lost_tokens"], summary["cached_tokens"]) == (0, 0, 0)
    assert summary["scheduling_rounds"] == 3 and summary["blocking_mean_s"] is summary["blocking_longest_s"] is None
    assert summary["kv_use_peak"] == 5 / 1000
    # 5 blocks for 6 s, then 3 and 4 for 2 s each.
    assert summary["kv_use_mean"] == pytest.approx((30 + 6 + 8) / 10 / 1000)
    json.dumps(summary, allow_nan=False)  # plain numbers, whoever prints them
    assert result.requests["gain"].tolist() == [6, 0] and result.requests["attained"].tolist() == [True, False]
    assert result.requests["longest_tbt_s"].tolist() == [2, 0]


def test_rounds_and_blocking_by_hand():
    """Layers of 4 tokens end at 1.25, 2.5, 3.75 and 5 s. Requests of 1 token come at 1 s, 3.5 s and 4 s, more
    important the later: rounds then, and at 0 s. Blocking 0.25 s to 1.25 s; after 2 s for request 1 the rest is resumed
    at 3.25 s, suspended at 4.5 s (blocking 1 s; the round at 4 s changes nothing), 2 and 3 run to 7.5 s."""
    workload = requests(arrival_s=[0.0, 1.0, 3.5, 4.0], prompt_tokens=[4, 1, 1, 1], priority=[2, 1, 0, 0])
    plain = scene(workload, RANDOM_SCHEDULER.with_settings(preemptible=2))
    layers = Operators(4, np.array([[0.0, 0.0, 0.0, 1.0]]))
    deployment = dataclasses.replace(plain.deployment, operators=layers)
    result = Simulation(dataclasses.replace(plain, deployment=deployment)).run()
    assert result.requests["finish_s"].tolist() == [10.0, 3.25, 7.5, 7.5]
    summary, engine = result.summary, result.engines.iloc[0]
    assert (engine.suspensions, engine.blocking_mean_s, engine.blocking_longest_s) == (2, 0.625, 1.0)
    assert (summary["blocking_mean_s"], summary["blocking_longest_s"]) == (0.625, 1.0)
    # Asked at 0, 1, 3.25, 3.5 s and 7.5 s; not while the suspension is awaited, nor right after it.
    assert summary["scheduling_rounds"] == engine.rounds == 5
    assert summary["evictions"] == 0  # none gave up memory


def test_cached_tokens_by_hand():
    """Both prompts begin with the same chunk of 2 tokens; when the second comes the store has it: 2 are computed."""
    prompts = Prompts(2, np.array([0, 2, 4]), np.array([7, 8, 7, 9]))
    workload = dataclasses.replace(requests(arrival_s=[0.0, 6.0], prompt_tokens=[4, 4]), prefixes=prompts)
    plain = scene(workload)
    deployment = dataclasses.replace(plain.deployment, prefix_store=PrefixStore(100, 0.25))
    result = Simulation(dataclasses.replace(plain, deployment=deployment)).run()
    assert result.requests["cached_tokens"].tolist() == [0, 2] and result.summary["cached_tokens"] == 2
    assert result.requests["finish_s"].tolist() == [5.0, 6.0 + 0.5 + 3.0]
    assert result.summary["loaded_tokens"] == 2
    assert result.arrays.engines["free_host_blocks"].tolist() == [0]  # what the store lends takes none of it


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
