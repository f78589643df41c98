"""Closed loops of models with latent and linear attention: which are taken, how they are named, and the page."""

import pandas as pd
import pytest

from experiments.measured.library_page import order, page
from experiments.measured.library_study import (
    BLACKWELL_CLAUSES,
    CLAUSES,
    loop_of,
    of_the_library,
    select,
    served_of,
)

ROW = {
    "id": "a", "series": "s", "collection": "2026-04-06.csv", "backend": "sglang", "mode": "agg", "gpu": "h200_sxm",
    "model": "deepseek-ai/DeepSeek-R1", "precision": "fp8", "wip": False, "isl": 1024, "osl": 128, "concurrency": 4,
    "gpus": 8, "tp_size": 8, "pp_size": 1, "attention_dp_size": 1, "moe_tp_size": 8, "moe_ep_size": 1, "ttft_s": 0.1,
    "tpot_s": 0.01,
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


def test_points_are_named_as_the_library_has_them():
    assert served_of(ROW).text == "h200_sxm:deepseek-ai/DeepSeek-R1:tp=8:engine=sglang"
    other = ROW | {"model": "zhipuai/GLM-5", "moe_ep_size": 8, "moe_tp_size": 1, "backend": "vllm"}
    assert served_of(other).text == "h200_sxm:zai-org/GLM-5:tp=8:ep=8:weights=fp8_block"
    loop = loop_of(ROW)
    assert (loop.shortest_share, loop.sequences, loop.asynchronous) == (0.8, 1024, True)


def test_the_page_has_medians_and_what_has_no_tables():
    points = pd.DataFrame({
        "model": ["a/b"] * 3, "engine": ["vllm"] * 3, "precision": ["fp8"] * 3, "gpus": [8] * 3, "isl": [1024] * 3,
        "osl": [128] * 3, "clients": [1, 2, 4], "ttft": [1.0, 2.0, 3.0], "tpot": [0.1, 0.2, 0.3],
        "simulated_ttft": [1.1, 2.4, 3.0], "simulated_tpot": [0.2, 0.1, 0.3], "own_ttft": [1.0, 1.0, 1.0],
        "own_tpot": [0.1, 0.2, 0.3],
    })  # fmt: skip
    assert order(points, "ttft") == pytest.approx(1.0) and order(points, "tpot") == pytest.approx(1 / 3)
    text = page(points, [("clause", 1, 3)], {"x:y": "no tables"}, "0.12")
    assert "| b, vllm, fp8, 8 | 3 | 50.0 (+0.0) | 0.0 (+0.0) | 10.0 (+10.0) | 50.0 (-50.0) |" in text
    assert "- `x:y`: no tables" in text
    assert "| 1 to 4 | 3 | 2,000 ms | +100 ms | 10.0 % | +10.0 % | 11.1 % |" in text


def test_the_library_predicts_a_loop_itself():
    pytest.importorskip("aiconfigurator_core", reason="needs aiconfigurator-core (the extra devices)")
    one, many = (of_the_library(served_of(ROW | {"backend": "vllm"}), 1024, 128, clients) for clients in (1, 32))
    assert 0.005 < one["tpot"] < many["tpot"] < 0.1 and 0.03 < one["ttft"] < many["ttft"] < 3
