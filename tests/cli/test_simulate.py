"""`servegym simulate`."""

import json

import pandas as pd
import pytest

from servegym.api import simulate
from servegym.latency_models.profile import load_profile
from servegym.scenarios.saturation import saturation_rate_per_s
from servegym.simulator.policies.gains import Gain

NEEDED = {
    "requests", "finished", "tokens_emitted", "gain", "ideal_gain", "tdg_ratio", "slo_attainment",
    "ttft_s", "tpot_s", "evictions", "iterations", "wall_s",
}  # fmt: skip
TRACE = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i},{100 + i},{5 + i % 3}\n" for i in range(40))
ARGUMENTS = ("simulate", "--requests", "60", "--rate", "5")


def test_json_is_all_there_is_on_standard_output(servegym_process):
    done = servegym_process(*ARGUMENTS, "--json", "-")
    document = done.document
    assert set(document) >= NEEDED
    assert document["finished"] == document["requests"] == 60
    assert set(document["ttft_s"]) == set(document["tpot_s"]) == {"p50", "p90", "p99"}
    assert document["arguments"]["rate_per_s"] == 5
    assert "TDG ratio" in done.stderr


def test_table_on_standard_output(servegym):
    done = servegym(*ARGUMENTS)
    assert (done.status, done.stderr) == (0, "")
    for word in ("60 of 60", "TDG ratio", "SLO attainment", "TTFT", "p99"):
        assert word in done.stdout


def test_the_figures_are_those_of_a_script(servegym):
    document = servegym(*ARGUMENTS, "--scheduler", "edf", "--seed", "3", "--json", "-").document
    summary = simulate("azure-conv", scheduler="edf", requests=60, rate_per_s=5, seed=3).summary
    for name in NEEDED - {"wall_s"}:
        assert document[name] == summary[name]


def test_what_is_undefined_is_null(servegym, tmp_path):
    (tmp_path / "mine.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,100,1\n")
    document = servegym("simulate", "--trace", "mine.csv", "--json", "-").document
    assert document["tpot_s"] == {"p50": None, "p90": None, "p99": None}
    assert document["rate_per_s"] is None  # one arrival has no rate
    assert "NaN" not in json.dumps(document)


def test_a_trace_is_streamed(servegym, tmp_path):
    (tmp_path / "mine.csv").write_text(TRACE)
    arguments = ("simulate", "--trace", "mine.csv", "--slo", "given", "--stream")
    assert "--stream writes the tables" in servegym(*arguments).refusal
    document = servegym(*arguments, "--out", "out", "--json", "-").document
    assert document["finished"] == len(pd.read_parquet(tmp_path / "out" / "requests.parquet")) == 40
    assert json.loads((tmp_path / "out" / "run.json").read_text())["gain"] == document["gain"]
    assert servegym("simulate", "--stream", "--out", "out").stderr.count("\n") == 1  # of a family


def test_json_to_a_file(servegym, tmp_path):
    done = servegym(*ARGUMENTS, "--json", "figures.json")
    assert done.status == 0
    assert "TDG ratio" in done.stdout
    assert json.loads((tmp_path / "figures.json").read_text())["requests"] == 60


@pytest.mark.parametrize("csv", [False, True])
def test_tables_are_written_with_what_they_are(servegym, tmp_path, csv):
    done = servegym(*ARGUMENTS, "--engines", "2", "--timeline", "--out", "out", *(["--csv"] if csv else []))
    assert done.status == 0
    read = pd.read_csv if csv else pd.read_parquet
    ending = "csv" if csv else "parquet"
    tables = {name: read(tmp_path / "out" / f"{name}.{ending}") for name in ("requests", "engines", "timeline")}
    assert (len(tables["requests"]), len(tables["engines"])) == (60, 2)
    assert len(tables["timeline"]) > 60
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["arguments"]["engines"] == 2
    assert record["workload"]["digest"]
    assert {"servegym", "numba", "numpy", "python"} == set(record["versions"])
    assert str(tmp_path) not in json.dumps(record)


def test_load_is_relative_to_saturation(servegym):
    document = servegym("simulate", "--requests", "400", "--load", "medium", "--json", "-").document
    saturation = saturation_rate_per_s("azure-conv", load_profile("a100-llama3-8b"))
    expected = simulate("azure-conv", requests=400, rate_per_s=0.7 * saturation)
    assert document["rate_per_s"] == expected.scenario.workload.rate_per_s
    assert document["tdg_ratio"] == expected.summary["tdg_ratio"]


def test_medium_load_unless_told_otherwise(servegym):
    by_default = servegym("simulate", "--requests", "50", "--json", "-").document
    medium = servegym("simulate", "--requests", "50", "--load", "0.7", "--json", "-").document
    assert by_default["workload"]["digest"] == medium["workload"]["digest"]


def test_a_file_keeps_its_own_times(servegym, tmp_path):
    (tmp_path / "mine.csv").write_text(TRACE)
    document = servegym("simulate", "--trace", "mine.csv", "--json", "-").document
    assert document["requests"] == 40
    assert document["rate_per_s"] == 1


def test_lengths_alone_arrive_at_medium_load(servegym, tmp_path):
    (tmp_path / "mine.csv").write_text("prompt_tokens,output_tokens\n" + "500,50\n" * 30)
    document = servegym("simulate", "--trace", "mine.csv", "--json", "-").document
    assert document["finished"] == 30
    assert document["workload"]["arrivals"] == "poisson"


@pytest.mark.slow
def test_a_policy_of_ones_own(servegym_process, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import dataclasses, servegym\nservegym.register(dataclasses.replace(servegym.scheduler('edf'), name='mine'))\n"
    )
    arguments = (*ARGUMENTS, "--load-policies", "mine.py", "--load-policies", "mine.py", "--json", "-")
    document = servegym_process(*arguments, "--scheduler", "mine").document
    assert document["arguments"]["scheduler"] == "mine"
    assert (
        document["tdg_ratio"] == simulate("azure-conv", scheduler="edf", requests=60, rate_per_s=5).summary["tdg_ratio"]
    )


def test_noise_drift_and_correction_reach_the_run(servegym) -> None:
    def figures(*arguments: str) -> dict:
        done = servegym("simulate", "--requests", "60", "--rate", "5", "--json", "-", *arguments)
        assert done.status == 0, done.stderr
        return json.loads(done.stdout)

    plain, drifting = figures(), figures("--drift", "0.05")
    noisy, corrected = figures("--noise", "0.2"), figures("--drift", "0.05", "--correct")
    assert drifting["span_s"] > plain["span_s"]
    assert len({run["span_s"] for run in (plain, drifting, noisy, corrected)}) == 4
    assert corrected["arguments"]["correction"] is True


@pytest.mark.slow
def test_host_memory_and_predictor(servegym):
    arguments = ("simulate", "--requests", "40", "--load", "high", "--scheduler", "semantic", "--slo", "semantic")
    document = servegym(
        *arguments, "--host-memory", "8", "--predictor", "latency_s=0.5,length_buckets=5", "--json", "-"
    ).document
    assert document["arguments"]["host_memory_gib"] == 8 and document["saved_tokens"] == document["loaded_tokens"]
    assert document["ttft_s"]["p50"] > 0.5
    for wrong, said in (("latency=1", "latency_s"), ("latency_s=x", "number"), ("length_error=2", "0 to 1")):
        assert said in servegym(*arguments, "--predictor", wrong).refusal


def test_violations_are_told_by_priority_and_class(servegym, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    arguments = ("--slo", "qoserve:shares=70-15-15,low_share=0.3", "--scheduler", "sarathi-fcfs", "--load", "overload")
    done = servegym("simulate", "--requests", "400", *arguments, "--json", "-")
    document = done.document
    shares = document["violations_by_class"]
    assert list(shares) == ["TTFT 6 s, TPOT 50 ms", "TTLT 600 s", "TTLT 1800 s"]
    assert 0 < document["violations"] < 1 and set(document["violations_by_priority"]) == {"0", "1"}
    for word in ("late-token share", "SLO attainment of TTFT 6 s, TPOT 50 ms", "late-token share of TTLT 600 s"):
        assert word in done.stderr


def test_arrivals_with_a_pace_of_their_own_need_no_rate(servegym):
    document = servegym("simulate", "--requests", "50", "--arrivals", "waves:n=5,gap_s=0.1", "--json", "-").document
    assert document["workload"]["arrivals"] == "waves:n=5,gap_s=0.1" and document["workload"]["rate_per_s"] is None
    assert document["rate_per_s"] > 15
    drawn = servegym("simulate", "--requests", "50", "--arrivals", "gamma:cv=3", "--json", "-").document
    poisson = servegym("simulate", "--requests", "50", "--json", "-").document
    assert drawn["workload"]["rate_per_s"] == poisson["workload"]["rate_per_s"] > 1  # load medium
    assert drawn["workload"]["digest"] != poisson["workload"]["digest"]


def test_another_gain(servegym):
    done = servegym(*ARGUMENTS, "--gain", "weighted-slo", "--json", "-")
    document = done.document
    assert document["tdg_ratio"] is None and document["arguments"]["gain"] == "weighted-slo"
    table = simulate("azure-conv", requests=60, rate_per_s=5, gain=Gain("weighted-slo"))
    assert (
        document["gain_ratio"] == table.summary["gain_ratio"] == table.requests["gain"].sum() / document["ideal_gain"]
    )
    assert "gain / ideal gain" in done.stderr and "TDG ratio" not in done.stderr


@pytest.mark.parametrize(("more", "words"), [
    (("--report", "run.pdf"), "run.pdf: its name should end with .html"),
    (("--perfetto", "run.txt"), "run.txt: its name should end with .json or .json.gz"),
])  # fmt: skip
def test_what_is_written_has_the_ending_of_its_format(servegym, tmp_path, more, words):
    assert words in " ".join(servegym("simulate", "--requests", "5", *more).refusal.split())
    assert not list(tmp_path.iterdir())
