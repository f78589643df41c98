"""Measured runs beside simulated ones: what is read, what is added, what errors mean."""

import os
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from experiments.measured import client_side, page
from servegym.errors import ProfileError, WorkloadError
from servegym.evaluation.measured import runs
from servegym.evaluation.measured.engine_terms import ASYNCHRONOUS, SYNCHRONOUS, EngineTerms, default_terms
from servegym.evaluation.measured.figures import METRICS, STATISTICS, compare, figures_of, headline, peers
from servegym.evaluation.measured.plot import plot
from servegym.evaluation.measured.profiles import GPUS, model_named, profile_of
from servegym.evaluation.measured.serving import simulated, with_terms
from servegym.evaluation.measured.study import CASES, HEADLINE, by_request, errors_of
from servegym.latency_models.building.gpus import gpus
from servegym.latency_models.building.shapes import LLAMA_3_70B
from servegym.latency_models.profile import load_profile

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


@pytest.mark.parametrize(
    ("version", "terms"),
    [
        ("0.15.1", ASYNCHRONOUS), ("0.14.0", ASYNCHRONOUS), ("0.13.1", SYNCHRONOUS), ("1.0", ASYNCHRONOUS),
        ("", SYNCHRONOUS),
    ],
)  # fmt: skip
def test_terms_are_those_of_the_version(version, terms):
    assert default_terms(version) is terms


def test_the_cpu_time_of_a_step_lengthens_every_step(own):
    run, profile = runs.read_own(own, 128, 2048), load_profile("a100-llama3-8b")
    plain, slower = (simulated(run, profile, replace(NONE, step_cpu_s=cpu_s)) for cpu_s in (0.0, 0.005))
    assert (slower["itl_s"] - plain["itl_s"]).min() > 0.0049


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ttft_s": None}, "ttft_s is missing"), ({"ttft_s": 2.0}, "ttft_s <= e2e_s"), ({"e2e_s": np.nan}, "finite"),
    ],
)  # fmt: skip
def test_requests_that_cannot_be(own, change, words):
    table = pd.read_csv(own)
    for name, value in change.items():
        table = table.drop(columns=name) if value is None else table.assign(**{name: value})
    table.to_csv(own, index=False)
    with pytest.raises(WorkloadError, match=words):
        runs.read_own(own, 128, 2048)


def test_absent_data(monkeypatch, tmp_path):
    monkeypatch.delenv("SERVEGYM_DATA", raising=False)
    with pytest.raises(WorkloadError, match="SERVEGYM_DATA is not set"):
        runs.folder_of_runs()
    monkeypatch.setenv("SERVEGYM_DATA", str(tmp_path))
    with pytest.raises(WorkloadError, match=r"has no measured/runs\.csv"):
        runs.folder_of_runs()


def test_peers_count_with_true_lengths():
    table = pd.DataFrame(
        {
            "run_id": "r", "stage": "all", "simulator": ["s", "s", "s", "t"],
            "metric": ["itl_mean", "e2e_mean", "e2e_p99", "e2e_mean"], "error_pct": [10.0, 5.0, 1.0, 7.0],
            "itl_error_pct_corrected": [-3.0, np.nan, np.nan, np.nan],
        }
    )  # fmt: skip
    assert peers(table)["error_percent"].tolist() == [-3.0, 5.0, 7.0]


def made_up_errors():
    rows = []
    for case in CASES:
        for run, error in (("isim-a", 2.0), ("lss-b", -4.0), ("isim-c", 9.0)):
            for metric in METRICS:
                for part in STATISTICS:
                    rows.append((run, "all", f"{metric}_{part}", 1.0, 1 + error / 100, error, case.name))
            rows.append((run, "all", "output_tokens_per_s", 1.0, 1.0, 0.0, case.name))
    columns = ["run", "stage", "metric", "measured", "simulated", "error_percent", "case"]
    table = pd.DataFrame(rows, columns=columns)
    return table.assign(gpu="H100", model="m", overloaded=table["run"] == "isim-c")


def test_tables_of_the_page(own, tmp_path):
    errors = made_up_errors()
    assert headline(errors[errors["case"] == HEADLINE]) == dict.fromkeys(METRICS, 4.0)
    assert "4.0 / 4.0 / 4.0 | 6 / 6 / 15 | met" in page.verdicts(errors)
    assert "| 2, lss-b | -4.0 / -4.0 | ITL 2 / TTFT 5 | missed |" in page.verdicts(errors)
    run = runs.read_own(own, 128, 2048)
    judged = [
        client_side.Judged(replace(run, name=name), 0.008, {}, dict.fromkeys(METRICS, 1.0))
        for name in ("isim-a", "isim-c")
    ]
    beside = "those over HTTP with the client's side fitted to other models | 1.0 / 1.0 / 1.0 | 6 / 6 / 15 | met |"
    assert f"| 3, 3 runs, {beside}" in page.verdicts(errors, judged)
    assert "isim-c" not in page.by_run(errors, False) and "isim-c" in page.by_run(errors, True)
    published = pd.DataFrame({"run": "isim-a", "stage": "all", "simulator": "s", "metric": ["e2e_mean", "ttft_mean"],
                              "error_percent": [-50.0, 60.0]})  # fmt: skip
    assert "| s | 1 | 50.0 / - / 60.0 | 2.0 / 2.0 / 2.0 |" in page.beside_peers(errors, published)
    assert plot(errors[errors["case"] == HEADLINE], tmp_path / "scatter.png").stat().st_size > 10_000


@pytest.mark.slow
@needs_data
def test_every_measured_run_with_requests_is_read():
    folder = runs.folder_of_runs()
    table = pd.read_csv(folder / "runs.csv")
    files = {str(file) for file in table["requests_file"] if str(file).startswith("requests_")}
    found = list(runs.read_runs(folder))
    assert len(found) == len(files) == 14
    for run in found:
        assert GPUS[run.gpu] in gpus()
        assert len(run.prefixes.offsets) == len(run.requests) + 1
        measured = table[(table["id"] == run.name) & (table["stage"] == "all")].iloc[0]
        figures = figures_of(run.requests, run, "all")
        if run.over_http:
            for metric in METRICS:
                assert figures[f"{metric}_mean"] == pytest.approx(measured[f"{metric}_mean_s"], rel=1e-3)
    assert sum(run.overloaded for run in found) == 3
    assert [run.name for run in found if run.asynchronous] == ["lss-rtx4090-llama-3.1-8b-tp1"]


@needs_data
def test_shapes_of_the_models_that_were_run():
    folder = runs.folder_of_runs()
    assert model_named("meta-llama/Llama-3.1-70B-Instruct", folder).shape == LLAMA_3_70B
    with pytest.raises(ProfileError, match=r"models\.csv has no other"):
        model_named("other", folder)


@pytest.mark.slow
@needs_data
def test_the_run_whose_layers_were_measured_comes_out():
    """RTX 4090, nothing fitted to it: the page says 0.5 / 0.3 / 0.6 % of mean E2E, ITL and TTFT."""
    folder = runs.folder_of_runs()
    (run,) = (one for one in runs.read_runs(folder) if "rtx4090" in one.name)
    case = CASES[0]
    errors = errors_of([(run, case, simulated(run, profile_of(run, folder), case.terms(run)))])
    assert max(headline(errors).values()) < 2
