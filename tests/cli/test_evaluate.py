"""`servegym evaluate`: what it prints and writes, how it goes on after it was stopped, and what it refuses."""

import json

import pandas as pd
import pytest

ARGUMENTS = (
    "evaluate", "--scheduler", "edf", "--scheduler", "slide-batching:gamma=2", "--trace", "azure-code",
    "--device", "a100-llama3-8b", "--load", "light", "--load", "1.4", "--seeds", "2", "--requests", "60",
    "--out", "out",
)  # fmt: skip
FILES = ("runs.parquet", "cells.csv", "groups.csv", "differences.png", "profile.png", "report.html")


def test_what_is_printed_and_written(servegym, tmp_path):
    done = servegym(*ARGUMENTS)
    assert done.status == 0, done.stderr
    printed = " ".join(done.stdout.split())  # however wide the terminal
    for words in (
        "2 schedulers on panel held_out-changed: 1 trace x 1 device x 2 loads x 2 seeds, 60 requests a run",
        "All 2 cells", "Load 0.3 (light)", "slide-batching:gamma=2",
        "Load 1.4 (overload), by TDG ratio against edf: better: slide", "TTFT, s TPOT, ms",
    ):  # fmt: skip
        assert words in printed
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*FILES, "runs"}
    assert len(pd.read_parquet(tmp_path / "out/runs.parquet")) == 2 * 2 * 2
    assert (tmp_path / "out/profile.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_json_is_all_there_is_on_standard_output_and_the_same_again(servegym, tmp_path):
    first = json.loads(servegym(*ARGUMENTS, "--json", "-").stdout)
    done = servegym(*ARGUMENTS, "--json", "-")
    assert json.loads(done.stdout) == first
    assert "All 2 cells" in done.stderr
    assert first["baseline"] == "edf" and first["runs"] == 8 and first["no_bound"] is None
    assert first["evaluation"]["panel"]["first_seed"] == 1_000_000
    assert [(row["load"], row["policy"]) for row in first["cells"]] == [
        (load, policy) for load in (0.3, 1.4) for policy in ("edf", "slide-batching:gamma=2")
    ]
    over_all = [row for row in first["groups"] if row["by"] == "all"]
    runs = pd.read_parquet(tmp_path / "out/runs.parquet")
    assert over_all[1]["mean"] == pytest.approx(runs[runs["policy"] == "slide-batching:gamma=2"]["tdg_ratio"].mean())
    assert over_all[0]["difference"] is None and over_all[1]["difference"] > 0


@pytest.mark.slow
def test_the_share_of_the_bound(servegym, tmp_path):
    document = json.loads(servegym(*ARGUMENTS, "--bound", "--json", "-").stdout)
    assert document["no_bound"] is None
    assert {row["score"] for row in document["groups"]} == {"tdg_ratio", "share_of_bound", "slo_attainment"}
    runs = pd.read_parquet(tmp_path / "out/runs.parquet")
    assert runs["share_of_bound"].between(0, 1).all()
    assert (runs["share_of_bound"] >= runs["tdg_ratio"] * (1 - 1e-6)).all()
    assert len(list((tmp_path / "out/bounds").iterdir())) == 4


@pytest.mark.slow
def test_routers_on_engines_of_both_roles(servegym):
    arguments = [word for word in ARGUMENTS if word not in ("--scheduler", "edf", "slide-batching:gamma=2")]
    done = servegym(
        *arguments, "--router", "round-robin", "--router", "min-load", "--scheduler", "edf", "--prefill", "1",
        "--decode", "2", "--json", "-",
    )  # fmt: skip
    assert done.status == 0, done.stderr
    panel = json.loads(done.stdout)["evaluation"]["panel"]
    assert (panel["engines"], panel["prefill"], panel["decode"], panel["scheduler"]) == (1, 1, 2, "edf")
    assert "1 prefill + 2 decode engines" in " ".join(done.stderr.split())


@pytest.mark.parametrize("arguments, problem", [
    (("--scheduler", "edf"), "one scheduler is named; name two or more of a kind"),
    (("--router", "gorouting"), "name two or more of a kind, such as --router gorouting --router min-load"),
    (("--scaler", "polyserve"), "such as --scaler polyserve --scaler target-utilisation"),
    ((), "no policies are named; name two or more of a kind, such as --scheduler slide-batching --scheduler edf"),
    (
        ("--scheduler", "edf", "--scheduler", "sjf", "--router", "a", "--router", "b"),
        "policies of one kind are judged",
    ),
    (("--scheduler", "edf", "--scheduler", "eddf"), "unknown scheduler 'eddf'"),
    (("--scheduler", "edf", "--scheduler", "sjf", "--baseline", "srpf"), "baseline 'srpf' is not judged"),
    (("--scheduler", "edf", "--scheduler", "sjf", "--panel", "nowhere"), "unknown panel 'nowhere'"),
    (("--scheduler", "edf", "--scheduler", "sjf", "--trace", "nowhere"), "nowhere"),
    (("--scheduler", "edf", "--scheduler", "sjf", "--slo", "mine"), "mine"),
    (("--scheduler", "edf", "--scheduler", "sjf", "--device", "b200"), "unknown profile 'b200'"),
    (("--scheduler", "edf", "--scheduler", "sjf", "--load", "0"), "a load of '0'"),
    (("--scheduler", "edf", "--scheduler", "sjf", "--prefill", "2"), "no decode engines; give both"),
    (("--scheduler", "edf", "--scheduler", "sjf", "--out", "setup.cfg"), "--out setup.cfg"),
])  # fmt: skip
def test_wrong_input_is_one_line(servegym, tmp_path, arguments, problem):
    (tmp_path / "setup.cfg").write_text("")
    assert problem in servegym("evaluate", *arguments).refusal
    assert [path.name for path in tmp_path.iterdir()] == ["setup.cfg"]
