"""Measured runs beside simulated ones: what is read, what is added, what errors mean."""

import os
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from servegym.errors import WorkloadError
from servegym.evaluation.measured import runs
from servegym.evaluation.measured.engine_terms import EngineTerms
from servegym.evaluation.measured.figures import METRICS, STATISTICS, by_request, compare, figures_of
from servegym.evaluation.measured.serving import scenario_of, simulated, with_terms
from servegym.latency_models.profile import load_profile
from servegym.simulator.memory.kv_groups import KvCacheGroup

needs_data = pytest.mark.skipif("SERVEGYM_DATA" not in os.environ, reason="SERVEGYM_DATA names no measured runs")
NONE = EngineTerms("none", "")


@pytest.fixture
def own(tmp_path):
    """A run of 40 requests in pairs of equal prompts, with times that nobody measured."""
    table = pd.DataFrame(
        {
            "arrival_s": 5 + 0.2 * np.arange(40), "prompt_tokens": 320, "output_tokens": 20,
            "prompt_id": np.arange(40) // 2, "ttft_s": 0.1, "e2e_s": 1.0,
        }
    )  # fmt: skip
    file = tmp_path / "mine.csv"
    table.to_csv(file, index=False)
    return file


def test_an_engine_that_is_the_simulated_one_has_no_error(own):
    run = runs.read_own(own, 128, 2048)
    assert run.requests["arrival_s"].iloc[0] == 0.0
    served = simulated(run, load_profile("a100-llama3-8b"), NONE)
    assert served["cached_tokens"].tolist()[:4] == [0, 304, 0, 304]  # of 320 tokens at least one is computed
    measured = run.requests.assign(**{f"{metric}_s": served[f"{metric}_s"] for metric in METRICS})
    errors = compare(replace(run, requests=measured), served)
    assert errors["error_percent"].abs().max() < 1e-9
    assert set(errors["metric"]) == {f"{m}_{s}" for m in METRICS for s in STATISTICS} | {"output_tokens_per_s"}
    assert by_request(replace(run, requests=measured), served) == dict.fromkeys(METRICS, pytest.approx(0, abs=1e-9))
    without = simulated(run, load_profile("a100-llama3-8b"), NONE, caching=False)
    assert without["cached_tokens"].sum() == 0
    assert without["ttft_s"].mean() > served["ttft_s"].mean()


def test_layers_hold_their_groups_unless_prefix_caching_is_not_simulated_with_them(own):
    run, profile = runs.read_own(own, 128, 2048), load_profile("a100-llama3-8b")
    window, state = KvCacheGroup(window=64), KvCacheGroup(state=True)

    def pool(*groups, caching=True):
        kv = replace(profile.kv, groups=groups, total_blocks=5000, block_tokens=24)
        return scenario_of(run, replace(profile, kv=kv), NONE, caching).deployment

    windows = pool(KvCacheGroup(), window)
    assert (windows.kv_groups, windows.total_blocks, windows.block_tokens) == ((KvCacheGroup(), window), 5000, 24)
    states = pool(KvCacheGroup(), state)
    assert windows.prefix_caching and states.prefix_caching and states.kv_groups
    assert pool(state).kv_groups == (state,)
    assert pool(window, state, caching=False).kv_groups
    alike = pool(window, state)
    assert (alike.kv_groups, alike.total_blocks, alike.block_tokens) == ((), 5000 * 24 // 16, 16)


def test_a_table_of_replay_is_a_run(own, tmp_path):
    """Its ttlt_s is e2e_s, and a request that did not finish has failed."""
    table = pd.read_csv(own).rename(columns={"e2e_s": "ttlt_s"}).assign(status="finished")
    table.loc[7, ["status", "ttlt_s"]] = ["timed out", np.nan]
    table.to_parquet(tmp_path / "requests.parquet")
    run = runs.read_own(tmp_path / "requests.parquet", 128, 2048)
    assert run.requests["failed"].sum() == run.requests["failed"][7] == 1
    assert run.requests["e2e_s"].drop(7).eq(1.0).all()


def test_figures_by_hand(own):
    run = runs.read_own(own, 128, 2048)
    run.requests.loc[39, "failed"] = True
    run.requests.loc[39, ["ttft_s", "e2e_s"]] = 100.0
    assert run.overloaded
    figures = figures_of(run.requests, run, "all")
    assert [figures["ttft_p99"], figures["ttft_mean"]] == pytest.approx([0.1, 0.1])
    assert figures["itl_mean"] == pytest.approx(0.9 / 19)
    assert figures["output_tokens_per_s"] == pytest.approx(39 * 20 / (38 * 0.2 + 1.0))


def test_terms_by_hand():
    requests = pd.DataFrame(
        {"ttft_s": [1.0, 2.0], "tpot_s": [0.1, np.nan], "ttlt_s": [2.0, 2.0], "output_tokens": [11, 1],
         "cached_tokens": [0, 0]}
    )  # fmt: skip
    terms = EngineTerms("all", "", 0.5, True, before_s=0.01, after_s=0.002, after_s_per_token=0.001)
    found = with_terms(requests, terms)
    assert found["ttft_s"].tolist() == pytest.approx([1.0 + 0.01 + 0.003, 2.0 + 0.01 + 0.003])
    assert found["e2e_s"].tolist() == pytest.approx([2.0 + 0.01 + 0.002 + 0.011, 2.0 + 0.01 + 0.003])
    assert found["itl_s"].iloc[0] == pytest.approx(0.1 + 0.001)
    assert np.isnan(found["itl_s"].iloc[1])


def test_the_cpu_time_of_a_step_lengthens_every_step(own):
    run, profile = runs.read_own(own, 128, 2048), load_profile("a100-llama3-8b")
    plain, slower = (simulated(run, profile, replace(NONE, step_cpu_s=cpu_s)) for cpu_s in (0.0, 0.005))
    assert (slower["itl_s"] - plain["itl_s"]).min() > 0.0049


@pytest.mark.parametrize(("change", "words"), [
    ({"ttft_s": None}, "ttft_s is missing"), ({"ttft_s": 2.0}, "ttft_s <= e2e_s"), ({"e2e_s": np.nan}, "finite"),
])  # fmt: skip
def test_requests_that_cannot_be(own, change, words):
    table = pd.read_csv(own)
    for name, value in change.items():
        table = table.drop(columns=name) if value is None else table.assign(**{name: value})
    table.to_csv(own, index=False)
    with pytest.raises(WorkloadError, match=words):
        runs.read_own(own, 128, 2048)
