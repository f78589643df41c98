"""What a GPU brought back, beside simulations: the same requests come out of the lines, and a rehearsal says so."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.gpu.compare import believed_by, measured_run, workload_again
from experiments.gpu.driving import Served
from experiments.gpu.page import main, tables
from experiments.gpu.records import RUNS, coded
from experiments.gpu.workloads import PROFILE, STOCK, profile_of, workload_of
from servegym.latency_models.profile import load_profile, profile_document

CONTEXT, STEP_S = 2048, 0.1
ENGINE = {
    "kv_blocks": 500, "kv_block_tokens": 16, "space": {"batch_tokens": 512, "sequences": 32, "context_tokens": CONTEXT},
    "shape": {"asynchronous": False, "more": {}},
}  # fmt: skip


def line_of(trace: str, policy: str = STOCK, unsent: int = 0) -> dict[str, Any]:
    """Six requests whose tokens come one a tenth of a second."""
    workload = workload_of(trace, 6, 2.0, 0, CONTEXT, profile_of(None))
    arrival_s = workload.table["arrival_s"].copy()
    arrival_s[6 - unsent :] = np.nan
    tokens = [[] if np.isnan(at) else (at + STEP_S * np.arange(1, n + 1)).tolist()
              for at, n in zip(arrival_s, workload.table["output_tokens"], strict=True)]  # fmt: skip
    served = Served(arrival_s, tokens, np.zeros(0), np.zeros(0, "i8"), {}, unsent > 0)
    return {
        "run": f"{trace}, load 1.4, {policy}", "done": True, "rehearsal": True, "machine": {"gpu": "none"},
        "trace": trace, "policy": policy, "rate_per_s": 2.0, "seed": 0, "requests": 6, "digest": workload.digest,
        "profile": PROFILE, "arrays": coded(served.arrays(workload)),
    }  # fmt: skip


@pytest.mark.parametrize("known", [True, False])
def test_a_line_is_judged_as_a_replay_is(known: bool) -> None:
    line = line_of("azure-conv")
    again = workload_again(line, CONTEXT)
    assert again is not None
    found = measured_run(line, again if known else None)
    assert found.summary["finished"] == 6
    for name in ("ttft_s", "tpot_s"):
        assert found.requests[name].dropna().to_numpy() == pytest.approx(STEP_S, abs=2e-6)


def test_a_workload_that_comes_out_otherwise_is_not_taken_for_it() -> None:
    assert workload_again({**line_of("azure-conv"), "seed": 1}, CONTEXT) is None


def test_a_profile_that_does_not_ship_is_in_the_line() -> None:
    document = profile_document(PROFILE) | {"name": "measured-there"}
    line = {**line_of("azure-conv"), "profile": "measured-there", "believed": document}
    assert believed_by(line).name == "measured-there"
    assert workload_again(line, CONTEXT) is not None


def test_what_was_not_sent_does_not_count() -> None:
    found = measured_run(line_of("azure-conv", unsent=2), None)
    assert found.summary["requests"] == found.summary["finished"] == 4


def test_the_page_has_both_tables_and_calls_a_rehearsal_by_its_name(tmp_path: Path) -> None:
    start = {"run": "start eager", "done": True, "rehearsal": True, "machine": {"gpu": "none"}, "engine": ENGINE}
    lines = [start, line_of("azure-conv"), line_of("sharegpt", "sarathi-fcfs")]
    (tmp_path / RUNS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    batches = pd.DataFrame({"decode_requests": [1, 8], "decode_cached_tokens": [100, 4000], "duration_s": [0.01, 0.02]})
    batches.to_csv(tmp_path / "batches.csv", index=False)
    text, runs = tables(tmp_path, [load_profile(PROFILE)])
    assert text.startswith("**Rehearsed on a CPU with a tiny model: no measurement.**")
    assert f"| {PROFILE} | decode | 2 |" in text
    for line in lines[1:]:
        served = f"| {line['run']} | **served** | "
        assert sum(row.startswith(served) and " | 0.1 / 0.1 / 0.1 / 0.1 | " in row for row in text.splitlines()) == 1
    assert text.count(f"|  | {PROFILE} | ") == len(runs) == 2
    assert len(list((tmp_path / "requests").glob("*.parquet"))) == 2


def test_runs_behind_a_router_are_not_simulated_and_those_of_a_shape_have_a_page_of_their_own(tmp_path: Path) -> None:
    start = {"run": "start eager", "done": True, "rehearsal": True, "machine": {"gpu": "none"}, "engine": ENGINE}
    stock = {**line_of("azure-conv"), "load": 1.4}
    routed = {name: value for name, value in stock.items() if name != "policy"}
    routed |= {"run": "two engines", "router": "min-load", "context_tokens": CONTEXT}
    shape = [{**line, "run": f"experts: {line['run']}", "shape": "experts"} for line in (start, stock)]
    lines = [start, stock, routed, {**routed, "run": "two engines, saturation", "load": None}, *shape]
    (tmp_path / RUNS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    page, picture = tmp_path / "page.md", tmp_path / "picture.png"
    page.write_text("<!-- tables --><!-- /tables -->\n")
    for more, titles in ([], (stock["run"], routed["run"])), (["--shape", "experts"], (shape[1]["run"],)):
        main([str(tmp_path), "--profile", PROFILE, "--page", str(page), "--picture", str(picture), *more])
        rows = page.read_text().splitlines()
        for title in (stock["run"], routed["run"], shape[1]["run"]):
            assert any(row.startswith(f"| {title} | **served** | ") for row in rows) == (title in titles)
        assert sum(row.startswith(f"|  | {PROFILE} | ") for row in rows) == 1
        assert picture.exists()
