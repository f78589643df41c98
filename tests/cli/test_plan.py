"""`servegym plan`."""

import json

import pandas as pd
import pytest

ARGUMENTS = (
    "plan", "--device", "a100-llama3-8b", "--device", "h100-llama3-8b", "--scheduler", "edf", "--router", "min-load",
    "--seeds", "2", "--duration", "60", "--target", "attainment=0.8", "--out", "out",
)  # fmt: skip


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """A terminal in which no line of a table is broken."""
    monkeypatch.setenv("COLUMNS", "200")


def test_engines_for_a_rate(servegym, tmp_path):
    prices = ("--price", "a100-llama3-8b=2", "--price", "h100-llama3-8b=3")
    done = servegym(*ARGUMENTS, "--rate", "20", *prices, "--json", "plan.json")
    assert done.status == 0, done.stderr
    title = "azure-conv, SLOs proserve: fewest engines at 20 requests/s by edf, SLO attainment of at least 0.8"
    assert title in done.stdout
    for words in (
        "engines",
        "8.00",
        "million",
        "enough in every run",
        "TTFT,\xa0s",
        "TPOT,\xa0ms",
        "plan.csv",
        "plan.png",
    ):
        assert words in done.stdout
    document = json.loads((tmp_path / "plan.json").read_text())
    a100, h100 = document["summary"]
    assert 1 <= h100["engines"] <= a100["engines"] <= 20 and a100["cost_per_hour"] == 2 * a100["engines"]
    assert len(document["searches"]) == 4 and (tmp_path / "out/plan.png").exists()
    assert list(pd.read_csv(tmp_path / "out/plan.csv")["engines"]) == [a100["engines"], h100["engines"]]
    again = servegym(*ARGUMENTS, "--rate", "20")
    assert again.status == 0 and "million" not in again.stdout  # found again, and no price is known


@pytest.mark.slow
def test_a_rate_for_engines(servegym):
    done = servegym(*ARGUMENTS, "--engines", "2", "--json", "-")
    assert done.status == 0, done.stderr
    rates = [row["rate_per_s"] for row in json.loads(done.stdout)["summary"]]
    assert 0 < rates[0] < rates[1] and "highest rate of 2 engines" in done.stderr


@pytest.mark.parametrize(("more", "words"), [
    (("--rate", "5", "--engines", "2"), "--rate and --engines are both given"),
    (("--price", "2"), "a price of '2': it should be DEVICE=PER_HOUR"),
    (("--price", "a100-llama3-8b=dear"), "it should be DEVICE=PER_HOUR"),
    (("--price", "b200=2"), "a price of b200; it should be of"),
    (("--price", "a100-llama3-8b=1", "--price", "a100-llama3-8b=2"), "two prices of a100-llama3-8b"),
    (("--target", "ttft=1"), "attainment=0.99 or violations=0.01"),
    (("--device", "a100-llama3-8b"), "named twice"), (("--rate", "0"), "above 0"), (("--device", "b300"), "b300"),
])  # fmt: skip
def test_wrong_arguments_are_said_in_one_line(servegym, more, words):
    assert words in servegym(*ARGUMENTS, *more).refusal
