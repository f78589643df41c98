"""Closed loops of models with latent and linear attention: which are taken, how they are named, and the page."""

import numpy as np
import pandas as pd
import pytest

from experiments.measured.library_page import PAGES, order, page
from experiments.measured.library_study import (
    BLACKWELL_CLAUSES,
    CLAUSES,
    OTHER_ENGINES_CLAUSES,
    loop_of,
    of_the_library,
    select,
    served_of,
    study,
)

ROW = {
    "id": "a", "series": "s", "collection": "2026-04-06.csv", "backend": "sglang", "mode": "agg", "gpu": "h200_sxm",
    "kind": "moe", "model": "deepseek-ai/DeepSeek-R1", "precision": "fp8", "wip": False, "isl": 1024, "osl": 128,
    "concurrency": 4, "gpus": 8, "tp_size": 8, "pp_size": 1, "attention_dp_size": 1, "moe_tp_size": 8, "moe_ep_size": 1,
    "ttft_s": 0.1, "tpot_s": 0.01,
}  # fmt: skip


def test_each_clause_leaves_out_its_own(tmp_path):
    others = [
        {"model": "Qwen/Qwen3-32B"}, {"gpu": "b200_sxm"}, {"mode": "disagg"}, {"wip": True}, {"concurrency": None},
        {"attention_dp_size": 8}, {"gpus": 16, "tp_size": 16, "moe_tp_size": 16}, {"moe_tp_size": 4},
        {"model": "deepseek-ai/DeepSeek-V3"},
    ]  # fmt: skip
    pd.DataFrame([ROW, ROW | {"backend": "trtllm"}, *(ROW | one for one in others)]).to_parquet(
        tmp_path / "closed_loop.parquet"
    )
    chosen, counts = select(tmp_path)
    assert [out for _, out, _ in counts] == [1] * len(CLAUSES) == [1] * len(others)
    assert list(chosen["backend"]) == ["sglang", "trtllm"]


def test_of_blackwell_the_points_of_vllm_are_taken(tmp_path):
    rows = [ROW | {"gpu": "b200_sxm", "backend": "vllm", "model": "MiniMaxAI/MiniMax-M2.5", "isl": n} for n in range(3)]
    others = [ROW, ROW | {"gpu": "b300_sxm"}, rows[0] | {"model": "Qwen/Qwen3-32B"}, rows[0] | {"mode": "disagg"}]
    pd.DataFrame([*rows, *others]).to_parquet(tmp_path / "closed_loop.parquet")
    chosen, counts = select(tmp_path, BLACKWELL_CLAUSES)
    assert list(chosen["isl"]) == [0, 1, 2]
    assert [out for _, out, _ in counts] == [1, 1, 1, 1, *([0] * 6)]
    assert served_of(chosen.iloc[0].to_dict()).text == "b200_sxm:MiniMaxAI/MiniMax-M2.5:tp=8"


def test_of_other_engines_the_points_of_no_other_page_are_taken(tmp_path):
    dense = {"kind": "dense", "model": "Qwen/Qwen3-32B", "moe_tp_size": 0, "moe_ep_size": 0}
    rows = [ROW | {"gpu": "b200_sxm"}, ROW | dense | {"gpu": "h100_sxm"}]
    others = [
        rows[0] | {"backend": "vllm"}, ROW, rows[0] | {"mode": "disagg"}, rows[0] | {"wip": True},
        rows[1] | {"precision": None}, rows[0] | {"pp_size": 2}, rows[0] | {"gpus": 16, "tp_size": 16},
        rows[0] | {"moe_tp_size": 4}, rows[0] | {"precision": "int4"}, rows[0] | {"model": "deepseek-ai/DeepSeek-V3"},
    ]  # fmt: skip
    pd.DataFrame([*rows, *others]).to_parquet(tmp_path / "closed_loop.parquet")
    chosen, counts = select(tmp_path, OTHER_ENGINES_CLAUSES)
    assert [out for _, out, _ in counts] == [1] * len(others)
    assert list(chosen["gpu"]) == ["b200_sxm", "h100_sxm"]
    assert served_of(chosen.iloc[1].to_dict()).text == "h100_sxm:Qwen/Qwen3-32B:tp=8:engine=sglang:weights=fp8"


def test_points_are_named_as_the_library_has_them():
    assert served_of(ROW).text == "h200_sxm:deepseek-ai/DeepSeek-R1:tp=8:engine=sglang"
    other = ROW | {"model": "zhipuai/GLM-5", "moe_ep_size": 8, "moe_tp_size": 1, "backend": "vllm"}
    assert served_of(other).text == "h200_sxm:zai-org/GLM-5:tp=8:ep=8:weights=fp8_block"
    loop = loop_of(ROW)
    assert (loop.shortest_share, loop.sequences, loop.asynchronous) == (0.8, 1024, True)


def test_the_page_has_medians_and_what_has_no_tables():
    points = pd.DataFrame({
        "model": ["a/b"] * 3, "engine": ["sglang"] * 3, "precision": ["fp8"] * 3, "dense": [True, False, False],
        "gpus": [8] * 3, "isl": [1024] * 3, "osl": [128] * 3, "clients": [1, 2, 4], "ttft": [1.0, 2.0, 3.0],
        "tpot": [0.1, 0.2, 0.3], "simulated_ttft": [1.1, 2.4, 3.0], "simulated_tpot": [0.2, 0.1, 0.3],
        "own_ttft": [1.0, 1.0, 1.0], "own_tpot": [0.1, 0.2, 0.3], "other_ttft": [1.0, 2.0, 6.0],
        "other_tpot": [0.1, 0.2, 0.3], "admission": [0.1, 0.2, np.nan], "queue": [0.0, 0.4, np.nan],
        "prefill": [1.0, 1.8, np.nan],
    })  # fmt: skip
    assert order(points, "ttft") == pytest.approx(1.0) and order(points, "tpot") == pytest.approx(1 / 3)
    text = page(points, [("clause", 1, 7)], {"x:y": "device 'x:y': no tables at /root/x"}, "0.12", PAGES["--engines"])
    assert "| b, sglang, fp8, 8 | 3 | 50.0 (+0.0) | 0.0 (+0.0) | 10.0 (+10.0) | 50.0 (-50.0) |" in text
    words = " ".join(text.split())
    assert "the error is 15.0 % already: of 2 points admission takes 150 ms, queue 200 and prefill 1,400" in words
    assert "What lacks is -250 ms in the median (-250 under sglang), of which" in words
    assert "Not simulated, 4 points:\n\n- `x:y`: no tables\n" in text
    assert "| 1 to 4 | 3 | 2,000 ms | +100 ms | 10.0 % | +10.0 % | 11.1 % |" in text
    assert "| TPOT, median, dense | 100.0 % | 10 % | missed |" in text
    assert "| TPOT, median, others | 25.0 % | 15 % | missed |" in text
    assert "| sglang | 1 to 4 | 2 | 0 | 150 | 200 | 1,400 | 1,750 | 1,500 |" in text  # the third kept no timeline
    assert "| `vllm-fcfs` | 50.0 (+0.0) | 10.0 (+10.0) |\n| `vllm-v1` | 0.0 (+0.0) | 0.0 (+0.0) |" in text
    assert "| `vllm-fcfs` | 0.0 (+0.0) | 0.0 (+0.0) |\n| `vllm-v1` | 50.0 (+0.0) |" in page(
        points, [("a", 1, 3)], {}, ""
    )


def test_parts_add_up_to_the_time_and_prefills_first_are_sooner():
    pytest.importorskip("aiconfigurator_core", reason="needs aiconfigurator-core (the extra devices)")
    row = ROW | {"isl": 8192, "concurrency": 8}
    (mixed, _), (first, _) = study([row]), study([row], {"sglang": "vllm-fcfs"})
    for points in (mixed, first):
        parts = points[["admission", "queue", "prefill"]].iloc[0]
        assert parts.sum() == pytest.approx(points["simulated_ttft"][0]) and (parts > 0).all()
    points, without = study([row | {"osl": 10_000_000}])
    assert points.empty and "less than a request" in without[served_of(row).text]
    assert first["simulated_tpot"][0] > mixed["simulated_tpot"][0]
    assert first["other_ttft"][0] == mixed["simulated_ttft"][0] != mixed["other_ttft"][0]


def test_the_library_predicts_a_loop_itself():
    pytest.importorskip("aiconfigurator_core", reason="needs aiconfigurator-core (the extra devices)")
    one, many = (of_the_library(served_of(ROW | {"backend": "vllm"}), 1024, 128, clients) for clients in (1, 32))
    assert 0.005 < one["tpot"] < many["tpot"] < 0.1 and 0.03 < one["ttft"] < many["ttft"] < 3
