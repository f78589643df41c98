"""`servegym headroom`: what it prints and writes, how it goes on, and `evaluate --headroom` upon its ledgers."""

import json

import pandas as pd
import pytest

SCENARIO = (
    "--trace", "azure-code", "--device", "a100-llama3-8b", "--load", "overload", "--load", "1.2", "--requests", "50",
    "--seeds", "2", "--first-seed", "1000000", "--out", "out", "--scheduler", "slide-batching", "--scheduler", "edf",
)  # fmt: skip


@pytest.mark.slow
def test_what_is_printed_and_written_and_that_evaluate_finds_it(servegym, tmp_path):
    done = servegym("headroom", *SCENARIO, "--budget", "30", "--json", "one.json")
    assert done.status == 0, done.stderr
    printed = " ".join(done.stdout.split())
    for words in (
        "Headroom on panel headroom-changed: 2 cells x 2 seeds, 50 requests a run", "best found", "bound",
        "TDG ratio by cell", "Best found: of 32 runs of each scenario", "not a policy",
    ):  # fmt: skip
        assert words in printed
    rows = pd.read_csv(tmp_path / "out/headroom.csv")
    assert len(rows) == 2 * 2 * 4
    ratios = rows.pivot_table(index=["load", "seed"], columns="policy", values="tdg_ratio")
    assert (ratios["best found"] >= ratios[["slide-batching", "edf"]].max(axis=1)).all()
    assert (ratios["best found"] > ratios["slide-batching"]).any()
    assert (ratios["bound"] >= ratios["best found"]).all()
    assert set(rows[rows["policy"] == "best found"]["by"]) <= {"search", "slide-batching", "edf"}
    one = json.loads((tmp_path / "one.json").read_text())
    assert [search["evaluations"] for search in one["searches"]] == [32] * 4 and one["no_bound"] is None

    again = servegym("headroom", *SCENARIO, "--budget", "32", "--jobs", "2", "--json", "-")
    assert json.loads(again.stdout)["rows"] == one["rows"]
    more = json.loads(servegym("headroom", *SCENARIO, "--budget", "40", "--no-bound", "--json", "-").stdout)
    assert [search["evaluations"] for search in more["searches"]] == [44] * 4
    assert all(new["score"] >= old["score"] for new, old in zip(more["searches"], one["searches"], strict=True))
    assert {row["policy"] for row in more["rows"]} == {"slide-batching", "edf", "best found"}

    judged = servegym("evaluate", "--panel", "headroom", *SCENARIO, "--headroom", "--json", "-")
    assert judged.status == 0, judged.stderr
    groups = json.loads(judged.stdout)["groups"]
    assert "Share of the best found" in judged.stderr
    means = {row["policy"]: row["mean"] for row in groups if row["score"] == "share_of_best" and row["by"] == "all"}
    runs = pd.read_parquet(tmp_path / "out/runs.parquet").set_index(["policy", "load", "seed"])
    found = {(row["load"], row["seed"]): row["tdg_ratio"] for row in more["rows"] if row["policy"] == "best found"}
    for (policy, *cell), run in runs.iterrows():
        assert run["share_of_best"] == pytest.approx(run["tdg_ratio"] / found[tuple(cell)])
        assert run["share_of_best"] <= 1 and policy in means


def test_what_was_not_searched_is_said(servegym):
    arguments = [word for word in SCENARIO if word != "--seeds"]
    arguments.remove("2")
    done = servegym("evaluate", "--panel", "headroom", *arguments, "--headroom", "--json", "-")
    assert done.status == 0
    assert "for 2 of 2 scenarios there is no search in out/headroom" in " ".join(done.stderr.split())
    assert {row["score"] for row in json.loads(done.stdout)["groups"]} == {"tdg_ratio", "slo_attainment"}


@pytest.mark.parametrize("arguments, problem", [
    (("headroom", "--budget", "0"), "--budget"),
    (("headroom", "--panel", "nowhere"), "unknown panel 'nowhere'"),
    (("headroom", "--scheduler", "eddf"), "unknown scheduler 'eddf'"),
    (("headroom", "--scheduler", "edf", "--scheduler", "edf"), "two of the schedulers edf, edf are the same"),
    (
        ("headroom", "--router", "min-load", "--router", "silo", "--scheduler", "edf", "--scheduler", "sjf"),
        "several schedulers and several routers are named; name several of one kind only",
    ),
    (
        ("headroom", "--panel", "headroom", "--router", "min-load", "--router", "silo"),
        "panel headroom has one engine, where a router has no choice; name a panel with several, or how many with",
    ),
    (("headroom", "--gain", "ta-slo"), "headroom is of TDG; the gain is ta-slo"),
    (
        ("evaluate", "--engines", "2", "--router", "min-load", "--router", "round-robin", "--headroom"),
        "headroom is of schedulers; judged are policies of kind router",
    ),
])  # fmt: skip
def test_wrong_input_is_one_line(servegym, arguments, problem):
    assert problem in servegym(*arguments).refusal


@pytest.mark.slow
def test_routers_that_are_named_are_compared_with_the_best_assignment(servegym, tmp_path):
    words = ("--panel", "mixed_fleet", "--load", "1.8", "--requests", "60", "--seeds", "1", "--out", "out")
    done = servegym("headroom", *words, "--router", "min-load", "--router", "lost-gain", "--budget", "30", "--no-bound",
                    "--json", "one.json")  # fmt: skip
    assert done.status == 0, done.stderr
    assert "router" in done.stdout and "best found" in done.stdout
    rows = {row["policy"]: row for row in json.loads((tmp_path / "one.json").read_text())["rows"]}
    sums = {name: row["tdg_ratio"] + row["slo_attainment"] for name, row in rows.items()}
    assert list(sums) == ["min-load", "lost-gain", "best found"]
    assert sums["best found"] >= max(sums["min-load"], sums["lost-gain"])
