"""A policy in SGLang's own scheduler: what it can be brought to; where SGLang is installed, whole runs of it."""

import importlib.util
import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.adapters.sglang.following import scheduled_tokens
from servegym.adapters.sglang.imposing import put_first, with_one_cut
from servegym.adapters.sglang.plugin import what_is_unfit

RIDS = ("a", "b", "c", "d")
COUNTS = st.dictionaries(st.sampled_from(RIDS), st.integers(1, 50), min_size=1)


@given(COUNTS, COUNTS, st.sampled_from((None, *RIDS)))
def test_one_prompt_is_cut(wanted: dict[str, int], left_of: dict[str, int], cut: str | None) -> None:
    """No more than was decided in all, and no more than one part; whoever is whole in the plan stays whole."""
    if cut is not None and cut not in left_of:
        cut = None
    wanted = {rid: min(tokens, left_of.get(rid, tokens)) for rid, tokens in wanted.items()}
    done = with_one_cut(wanted, left_of, cut)
    assert sum(done.values()) <= sum(wanted.values())
    assert all(0 < tokens <= left_of.get(rid, tokens) for rid, tokens in done.items())
    parts = {rid for rid, tokens in done.items() if tokens < left_of.get(rid, 0)}
    assert len(parts) <= 1
    if cut is not None and done.get(cut, 0) < left_of[cut]:
        assert parts <= {cut}
    assert all(
        done.get(rid) == tokens for rid, tokens in wanted.items() if rid != cut and tokens >= left_of.get(rid, 0)
    )


def test_what_sglang_can_do_is_left_alone() -> None:
    wanted = {"running": 1, "a": 10, "b": 5}
    assert with_one_cut(wanted, {"a": 10, "b": 9}, None) == wanted
    assert with_one_cut({"b": 5}, {"a": 9, "b": 9}, "a") == {"a": 5}, "it would not run otherwise, for ever"


def test_order_and_batches() -> None:
    waiting = [SimpleNamespace(rid=rid) for rid in RIDS]
    assert [req.rid for req in put_first(waiting, ["c", "a"])] == ["c", "a", "b", "d"]
    req = SimpleNamespace(origin_input_ids=[1, 2, 3], output_ids=[4])
    mode = SimpleNamespace(is_decode=lambda: True)
    assert scheduled_tokens(SimpleNamespace(forward_mode=mode, reqs=[req])) == [(req, 1, 4)]
    mixed = SimpleNamespace(is_decode=lambda: False)
    batch = SimpleNamespace(forward_mode=mixed, reqs=["new", "old"], prefix_lens=[16, 3], extend_lens=[8, 1])
    assert scheduled_tokens(batch) == [("new", 8, 24), ("old", 1, 4)]


def test_what_it_cannot_decide_for_is_said() -> None:
    fit = {
        "enable_overlap": False, "is_mixed_chunk": True, "spec_algorithm": SimpleNamespace(is_none=lambda: True),
        "disaggregation_mode": SimpleNamespace(name="NULL"), "is_hybrid_swa": False, "is_hybrid_ssm": False,
        "enable_hierarchical_cache": False, "dllm_config": None,
    }  # fmt: skip
    assert what_is_unfit(SimpleNamespace(**fit)) is None
    assert "--disable-overlap-schedule" in (what_is_unfit(SimpleNamespace(**fit | {"enable_overlap": True})) or "")
    assert "--enable-mixed-chunk" in (what_is_unfit(SimpleNamespace(**fit | {"is_mixed_chunk": False})) or "")


def run(*arguments: str) -> dict[str, Any]:
    """A run of SGLang's scheduler in a process of its own, since a process can have one."""
    if importlib.util.find_spec("sglang") is None:
        pytest.skip("SGLang is not installed")
    command = [sys.executable, "-m", "experiments.engines.sglang_parity", "--requests", "40", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr[-2000:]
    return dict(json.loads(lines[-1]))


def test_decisions_are_the_simulators() -> None:
    """Step by step, with requests that are retracted."""
    found = run("--policy", "vllm-v1:max_num_batched_tokens=1024,watermark=0", "--tokens", "9000")
    assert found["first_difference"] is None and found["steps"] == found["simulated_steps"]
    assert found["retractions"] > 0 and found["not_as_decided"] == 0
    assert found["gain"] == pytest.approx(found["simulated_gain"], rel=1e-9)


@pytest.mark.parametrize("policy", ["sarathi-edf:max_num_batched_tokens=512", "slide-batching:eta=0.03"])
def test_nothing_is_lost_where_sglang_cannot_follow(policy: str) -> None:
    found = run("--policy", policy, "--tokens", "9000", "--shared", "600")
    assert found["wrong_tokens"] == found["memory_not_returned"] == found["broken"] == found["fallback_steps"] == 0
    assert found["not_as_decided"] > 0
