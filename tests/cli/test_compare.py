"""`servegym compare`: what it prints and writes, and how it goes on after it was stopped."""

import json
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

ARGUMENTS = (
    "compare", "--scheduler", "edf", "--scheduler", "slide-batching:gamma=2",
    "--load", "light", "--load", "1.4", "--seeds", "2", "--requests", "60", "--out", "out",
)  # fmt: skip
TABLES = ("summary.csv", "cells.parquet")


def tables(folder) -> list[bytes]:
    return [(folder / name).read_bytes() for name in TABLES]


def test_what_is_printed_and_written(servegym, tmp_path):
    done = servegym(*ARGUMENTS)
    assert done.status == 0, done.stderr
    for words in (
        "azure-conv on a100-llama3-8b, SLOs proserve: 60 requests x 2 seeds",
        "Load 0.3 (light)",
        "Load 1.4 (overload)",
        "slide-batching:gamma=2",
        "best by TDG ratio is",
        "comparison.png",
    ):
        assert words in done.stdout
    assert len(pd.read_parquet(tmp_path / "out/cells.parquet")) == 2 * 2 * 2
    assert (tmp_path / "out/comparison.png").read_bytes().startswith(b"\x89PNG")
    assert str(tmp_path) not in (tmp_path / "out/cells.jsonl").read_text()


def test_json_is_all_there_is_on_standard_output(servegym):
    done = servegym(*ARGUMENTS, "--json", "-")
    document = json.loads(done.stdout)
    assert document["comparison"]["requests"] == 60
    assert [(row["load"], row["scheduler"]) for row in document["summary"]] == [
        (load, scheduler) for load in (0.3, 1.4) for scheduler in ("edf", "slide-batching:gamma=2")
    ]
    assert len(document["conclusions"]) == 2
    assert "best by TDG ratio is" in done.stderr


def test_differences_to_a_baseline(servegym):
    document = json.loads(servegym(*ARGUMENTS, "--baseline", "edf", "--json", "-").stdout)
    assert {row["reference"] for row in document["summary"]} == {"edf"}


def test_absolute_rates(servegym):
    arguments = ("compare", "--scheduler", "edf", "--rate", "2", "--rate", "4", "--seeds", "1", "--requests", "40")
    document = json.loads(servegym(*arguments, "--json", "-").stdout)
    assert [row["rate_per_s"] for row in document["summary"]] == [2, 4]
    saturation = document["comparison"]["saturation_rate_per_s"]
    assert document["summary"][0]["load"] == pytest.approx(2 / saturation)


@pytest.mark.slow
def test_closed_loops(servegym, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # a narrow terminal folds headings
    arguments = (
        "compare", "--trace", "chat-sessions", "--scheduler", "edf", "--scheduler", "vllm-v1", "--requests", "40",
        "--seeds", "2", "--out", "out",
    )  # fmt: skip
    done = servegym(*arguments, "--clients", "2", "--clients", "5", "--bound", "--report", "r.html", "--json", "c.json")
    assert done.status == 0, done.stderr
    for words in ("2 clients", "5 clients", "requests/s"):
        assert words in done.stdout
    assert "Saturation" not in done.stdout and "No share of the bound: arrivals depend" not in done.stdout
    assert "Load" not in done.stdout and "arrivals depend on completions" in done.stderr
    document = json.loads((tmp_path / "c.json").read_text())
    assert [row["clients"] for row in document["summary"]] == [2, 2, 5, 5]
    assert all(row["throughput_requests_per_s"] > 0 for row in document["summary"])
    page = (tmp_path / "r.html").read_text()
    assert "A closed loop" in page and "Load" not in page and "the number of clients grows" in page
    paced = servegym(*arguments, "--clients", "2", "--rate", "3")
    assert paced.status == 2 and "clients and rate_per_s are given" in paced.stderr


@pytest.mark.slow
def test_without_out_the_same_command_finds_its_results(servegym, tmp_path):
    arguments = ARGUMENTS[:-2]
    for seeds in ("1", "2", "1"):
        assert servegym(*arguments, "--seeds", seeds).status == 0
    assert len(list((tmp_path / "results").glob("compare-azure-conv-*"))) == 2


def test_another_comparison_is_refused_and_fresh_starts_over(servegym, tmp_path):
    servegym(*ARGUMENTS)
    before = tables(tmp_path / "out")
    other = (*ARGUMENTS, "--seeds", "1")
    refusal = servegym(*other).refusal
    assert "seeds 2 there, 1 asked for" in refusal and "--fresh" in refusal
    assert tables(tmp_path / "out") == before
    assert servegym(*other, "--fresh").status == 0
    assert len(pd.read_parquet(tmp_path / "out/cells.parquet")) == 4


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_process_is_gone_on_with(tmp_path, how):
    command = [
        sys.executable, "-m", "servegym", "compare", "--scheduler", "edf", "--load", "high",
        "--seeds", "40", "--requests", "1500", "--out", "out",
    ]  # fmt: skip
    cells = tmp_path / "out/cells.jsonl"
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (cells.exists() and cells.read_bytes().count(b"\n") > 5):
        time.sleep(0.01)
    process.send_signal(how)
    stdout, stderr = process.communicate()
    kept = cells.read_bytes().count(b"\n") - 1
    assert 0 < kept < 40
    assert "Traceback" not in stderr
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert stdout == ""
        last = stderr.splitlines()[-1]
        assert last == (
            f"servegym: interrupted: {kept} of 40 runs are kept in out/cells.jsonl; the same command continues from "
            "there"
        )
    else:
        assert process.returncode == -signal.SIGKILL
    lines = cells.read_bytes().splitlines()[:kept]
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert cells.read_bytes().splitlines()[:kept] == lines
    assert len(pd.read_parquet(tmp_path / "out/cells.parquet")) == 40


@pytest.mark.slow
def test_violations_by_class_are_told(servegym, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    done = servegym(*ARGUMENTS, "--slo", "qoserve", "--report", "report.html")
    assert done.status == 0, done.stderr
    for words in ("late-token", "Late-token share by class", "SLO attainment by class"):
        assert words in done.stdout
    summary = pd.read_csv(tmp_path / "out/summary.csv")
    classes = ["TTFT 6 s, TPOT 50 ms", "TTLT 600 s", "TTLT 1800 s"]
    assert [name for name in summary if name.startswith("violations TT")] == [f"violations {of}" for of in classes]
    assert [name for name in summary if " of TT" in name] == [f"slo_attainment of {of}" for of in classes]
    assert {"violations", "violations_ci_low", "violations_high_priority"} <= set(summary)
    page = (tmp_path / "report.html").read_text()
    assert all(name in page for name in classes) and "late-token share" in page


def test_what_it_is_ranked_by(servegym, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    done = servegym(*ARGUMENTS, "--rank-by", "p99-ttft")
    assert done.status == 0, done.stderr
    assert "best mean p99 TTFT" in done.stdout and "late-token" not in done.stdout
    assert "p99 TTFT" in done.stdout and "minus" in done.stdout
    again = servegym(*ARGUMENTS, "--rank-by", "late-token")
    assert "best by late-token share is" in again.stdout and "Late-token share: of the requests" in again.stdout
    assert "did you mean 'tdg'" in servegym(*ARGUMENTS, "--rank-by", "tdgg").refusal
