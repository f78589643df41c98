"""`servegym recommend`."""

import json

import numpy as np
import pandas as pd
import pytest

from servegym.evaluation.recommend.recording import Served


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """A terminal in which no line of a table is broken."""
    monkeypatch.setenv("COLUMNS", "220")


@pytest.fixture
def recording(tmp_path):
    """Long prompts at a rate that one engine does not serve as it is."""
    numbers = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "arrival_s": np.cumsum(numbers.exponential(0.2, 120)), "prompt_tokens": numbers.integers(1000, 4000, 120),
            "output_tokens": numbers.integers(10, 80, 120),
        }
    )  # fmt: skip
    table.to_csv(tmp_path / "mine.csv", index=False)
    return table


DEVICE = ("--device", "a100-llama3-8b", "--scheduler", "vllm-v1", "--router", "min-load", "--jobs", "1")


def test_what_to_run(servegym, tmp_path, recording):
    done = servegym("recommend", "mine.csv", *DEVICE, "--slo", "ttft_s=1,tpot_s=0.05", "--price", "a100-llama3-8b=2",
                    "--export", "files", "--report", "page.html")  # fmt: skip
    assert done.status == 0, done.stderr
    for words in (
        "does not say how its requests were served", "SLO attainment of at least 0.95", "1 of 1", "million", "Run ",
        "engines of a100-llama3-8b",
    ):  # fmt: skip
        assert words in done.stdout
    document = json.loads(next(tmp_path.glob("results/recommend-mine-*/recommendation.json")).read_text())
    best, device = document["recommended"], document["devices"][0]
    assert device["setups"][0]["role"] == "recommended" and device["setups"][0]["engines"] == best["engines"]
    assert device["least_engines"] <= best["engines"] and device["setups"][0]["cost_per_hour"] == 2 * best["engines"]
    assert document["windows"] == {"to_choose": 1, "to_judge": 1, "requests_of_each": 60}
    assert document["match"] is None
    assert "One window judges" in done.stdout
    assert (tmp_path / "files/vllm.sh").exists() and (tmp_path / "files/kubernetes.yaml").exists()
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") >= 1 and "How many engines" in page and "nothing is fitted" in page


def test_a_recording_with_times_is_held_against_its_simulation(servegym, tmp_path, recording):
    recording.assign(ttft_s=0.3, e2e_s=2.0)[:30].to_csv(tmp_path / "mine.csv", index=False)
    done = servegym("recommend", "mine.csv", *DEVICE, "--engines", "1", "--report", "page.html", "--json", "-")
    assert done.status == 0, done.stderr
    match = json.loads(done.stdout)["match"]
    assert [figure["metric"] for figure in match["figures"]] == ["ttft"] * 2 + ["itl"] * 2 + ["e2e"] * 2
    assert "Nothing is fitted: 30 requests are too few" in done.stderr and "The largest error is that of" in done.stderr
    assert "The largest error is that of" in (tmp_path / "page.html").read_text()


def test_a_fleet_of_unequal_engines(servegym, tmp_path, recording):
    """The router that knows how fast engines are serves more in time; the fleet stays as it is."""
    (tmp_path / "fleet.yaml").write_text(
        "pools: [{device: h100-llama3-8b, engines: 1}, {device: a6000-llama3.1-8b, engines: 2}]\n", "utf-8"
    )
    fleet = ("recommend", "mine.csv", "--spec", "fleet.yaml", "--slo", "ttft_s=1,tpot_s=0.05", "--jobs", "1",
             "--scheduler", "vllm-v1", "--router", "predicted-cost")  # fmt: skip
    done = servegym(*fleet, "--json", "-")
    assert done.status == 0, done.stderr
    assert "Run 1 x h100-llama3-8b + 2 x a6000-llama3.1-8b with vllm-v1 + predicted-cost" in done.stderr
    best, *others = done.document["devices"][0]["setups"]
    assert best["setup"]["router"] == "predicted-cost" and {row["engines"] for row in (best, *others)} == {3}
    assert best["share"] > others[0]["share"]
    (command,) = [line for line in done.stderr.splitlines() if line.startswith("How much load it carries: servegym ")]
    found = servegym(*command.partition("servegym ")[2].split(), "--seeds", "1", "--jobs", "1")
    assert found.status == 0 and "predicted-cost" in found.stdout, found.stderr
    assert len(list(tmp_path.glob("results/recommend-mine-*"))) == 1
    for more, words in (
        (("--price", "h100-llama3-8b=4"), "given by its pools"),
        (("--export", "files"), "of equal engines"),
        (("--served", "engines=2"), "leave --price, --disaggregated and the engines of --served out"),
        (("--engines", "2"), "the pools of fleet.yaml have their own numbers of engines; leave --engines out"),
        (("--device", "a100-llama3-8b"), "the pools of fleet.yaml have their own devices; leave --device out"),
    ):
        assert words in servegym(*fleet, *more).refusal


@pytest.mark.parametrize(("more", "words"), [
    (("--served", "max_num_seqs"), "--served 'max_num_seqs': it should be engines, max_num_seqs"),
    (("--served", "max_num_seqs=0"), "--served max_num_seqs=0: it should be a whole number of 1 or more"),
    (("--served", "engines=2,engines=3"), "each KEY=VALUE and once"),
    (("--served", "router=nearest"), "unknown router 'nearest'"),
    (("--price", "b200=2"), "a price of b200; it should be of a100-llama3-8b"),
    (("--device", "a100-llama3-8b"), "device a100-llama3-8b is named twice"),
    (("--export", "mine.csv"), "--export mine.csv: "),
    (("--target", "soon"), "it should be attainment=0.99"),
    (("--requests", "10"), "a recommendation takes 20 or more"),
    (("--columns", "prompt=length"), "has no column length"),
])  # fmt: skip
def test_what_cannot_be_recommended(servegym, recording, more, words):
    assert words in servegym("recommend", "mine.csv", *DEVICE, *more).refusal


def test_a_file_that_is_not_there(servegym):
    assert "gone.csv" in servegym("recommend", "gone.csv", *DEVICE).refusal


def test_the_default_of_how_it_was_served_is_in_the_help(servegym):
    served = Served()
    text = f"engines={served.engines},max_num_seqs={served.max_num_seqs},"
    assert text in servegym("recommend", "--help").stdout.replace("\n", "")
