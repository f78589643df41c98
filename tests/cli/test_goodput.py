"""`servegym goodput`."""

import json
import re

import pandas as pd
import pytest

ARGUMENTS = (
    "goodput", "--scheduler", "edf", "--scheduler", "sarathi-fcfs", "--seeds", "2", "--duration", "60",
    "--target", "attainment=0.8", "--out", "out",
)  # fmt: skip


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """A terminal in which no line of a table is broken."""
    monkeypatch.setenv("COLUMNS", "200")


def test_what_is_printed_and_written(servegym, tmp_path):
    done = servegym(*ARGUMENTS, "--json", "goodput.json")
    assert done.status == 0, done.stderr
    title = "azure-conv on a100-llama3-8b, SLOs proserve: SLO attainment of at least 0.8, 60 s of arrivals x 2 seeds"
    assert title in done.stdout
    for words in ("goodput,\xa0requests/s", "saturation", "2 % higher is too much", "goodput.csv"):
        assert words in done.stdout
    summary = pd.read_csv(tmp_path / "out/goodput.csv")
    assert list(summary["scheduler"]) == ["edf", "sarathi-fcfs"]
    assert ((summary["load"] > 0.2) & (summary["load"] < 2)).all()
    document = json.loads((tmp_path / "goodput.json").read_text())
    assert [row["goodput_per_s"] for row in document["summary"]] == pytest.approx(list(summary["goodput_per_s"]))
    assert document["search"]["goodput"] == "attainment=0.8" and len(document["searches"]) == 4
    again = servegym(*ARGUMENTS)
    assert again.status == 0 and again.stdout.splitlines()[:9] == done.stdout.splitlines()[:9]
    assert "arrivals" in servegym(*ARGUMENTS, "--arrivals", "gamma:cv=3").refusal


@pytest.mark.slow
def test_a_target_that_is_never_met_and_one_that_always_is(servegym):
    never = servegym(*ARGUMENTS, "--slo", "proserve:tpot_s=0.001", "--fresh", "--json", "-")
    document = never.document
    assert {row["found"] for row in document["searches"]} == {"below"}
    assert {row["goodput_per_s"] for row in document["summary"]} == {None}
    assert re.search(r"below 0.\d+ in 2 of 2 runs", never.stderr)
    always = servegym(*ARGUMENTS[:-6], "--target", "attainment=0", "--duration", "20", "--seeds", "1", "--json", "-")
    assert {row["found"] for row in json.loads(always.stdout)["searches"]} == {"above"}
    assert "at least 58.1" in always.stderr and "of 1 run" in always.stderr


@pytest.mark.slow
def test_too_short_a_run_is_told(servegym):
    done = servegym(*ARGUMENTS[:-2], "--duration", "10", "--scheduler", "sjf", "--target", "attainment=0.5")
    assert done.status == 0 and "not in a steady state" in " ".join(done.stdout.split())


@pytest.mark.parametrize(("arguments", "right"), [
    (["--target", "attainment=2"], "attainment=0.99 or violations=0.01"),
    (["--target", "ttft=1"], "attainment=0.99 or violations=0.01"),
    (["--duration", "0"], "above 0 and finite"),
    (["--precision", "0"], "above 0 and at most 1"),
    (["--arrivals", "at-once"], "pace of their own"),
    (["--arrivals", "posson"], "poisson"),
    (["--gain", "nope"], "ta-slo"),
    (["--slo", "qoserve:shares=1-2"], "3 numbers"),
    (["--baseline", "sjf"], "sjf"),
    (["--scheduler", "edf", "--scheduler", "edf"], "twice"),
    (["--seeds", "0"], "--seeds"),
])  # fmt: skip
def test_wrong_input_is_one_line(servegym, tmp_path, arguments, right):
    assert right in servegym("goodput", "--scheduler", "vllm-fcfs", *arguments).refusal
    assert list(tmp_path.iterdir()) == []
