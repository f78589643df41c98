"""The public measured runs: what is read, what is known of their engines, and the page's tables."""

import os
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from experiments.measured import client_side, page, public_runs
from experiments.measured.known_terms import ASYNCHRONOUS, SYNCHRONOUS, default_terms
from experiments.measured.profiles import GPUS, model_named, profile_of
from experiments.measured.study import CASES, errors_of
from experiments.profiles.shapes import LLAMA_3_70B
from servegym.errors import ProfileError, WorkloadError
from servegym.evaluation.measured.figures import HEADLINE, METRICS, STATISTICS, figures_of, headline
from servegym.evaluation.measured.plot import plot
from servegym.evaluation.measured.runs import Run
from servegym.evaluation.measured.serving import simulated
from servegym.latency_models.building.gpus import gpus

needs_data = pytest.mark.skipif("SERVEGYM_DATA" not in os.environ, reason="SERVEGYM_DATA names no measured runs")


@pytest.mark.parametrize(
    ("version", "terms"),
    [
        ("0.15.1", ASYNCHRONOUS), ("0.14.0", ASYNCHRONOUS), ("0.13.1", SYNCHRONOUS), ("1.0", ASYNCHRONOUS),
        ("", SYNCHRONOUS),
    ],
)  # fmt: skip
def test_terms_are_those_of_the_version(version, terms):
    assert default_terms(version) is terms


def test_absent_data(monkeypatch, tmp_path):
    monkeypatch.delenv("SERVEGYM_DATA", raising=False)
    with pytest.raises(WorkloadError, match="SERVEGYM_DATA is not set"):
        public_runs.folder_of_runs()
    monkeypatch.setenv("SERVEGYM_DATA", str(tmp_path))
    with pytest.raises(WorkloadError, match=r"has no measured/runs\.csv"):
        public_runs.folder_of_runs()


def test_peers_count_with_true_lengths():
    table = pd.DataFrame(
        {
            "run_id": "r", "stage": "all", "simulator": ["s", "s", "s", "t"],
            "metric": ["itl_mean", "e2e_mean", "e2e_p99", "e2e_mean"], "error_pct": [10.0, 5.0, 1.0, 7.0],
            "itl_error_pct_corrected": [-3.0, np.nan, np.nan, np.nan],
        }
    )  # fmt: skip
    assert page.peers(table)["error_percent"].tolist() == [-3.0, 5.0, 7.0]


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


def test_tables_of_the_page(tmp_path):
    errors = made_up_errors()
    assert headline(errors[errors["case"] == HEADLINE]) == dict.fromkeys(METRICS, 4.0)
    assert "4.0 / 4.0 / 4.0 | 6 / 6 / 15 | met" in page.verdicts(errors)
    assert "| 2, lss-b | -4.0 / -4.0 | ITL 2 / TTFT 5 | missed |" in page.verdicts(errors)
    run = Run("own", "own", "own", 1, 1, 1, "", 128, 2048, None, pd.DataFrame({"failed": [False]}))
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
    folder = public_runs.folder_of_runs()
    table = pd.read_csv(folder / "runs.csv")
    files = {str(file) for file in table["requests_file"] if str(file).startswith("requests_")}
    found = list(public_runs.read_runs(folder))
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
    folder = public_runs.folder_of_runs()
    assert model_named("meta-llama/Llama-3.1-70B-Instruct", folder).shape == LLAMA_3_70B
    with pytest.raises(ProfileError, match=r"models\.csv has no other"):
        model_named("other", folder)


@pytest.mark.slow
@needs_data
def test_the_run_whose_layers_were_measured_comes_out():
    """RTX 4090, nothing fitted to it: the page says 0.5 / 0.3 / 0.6 % of mean E2E, ITL and TTFT."""
    folder = public_runs.folder_of_runs()
    (run,) = (one for one in public_runs.read_runs(folder) if "rtx4090" in one.name)
    case = CASES[0]
    errors = errors_of([(run, case, simulated(run, profile_of(run, folder), case.terms(run)))])
    assert max(headline(errors).values()) < 2
