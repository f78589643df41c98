"""The plug-in with prefix caching, vLLM's default: it plans what will be found, and vLLM finds it."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.engines.fuzz_run import fail_now_and_then
from experiments.engines.plugin_prefixes import demanding_sessions, plugged_and_simulated
from experiments.engines.prefix_parity import first_difference, found_share
from experiments.engines.vllm_driving import Limits, block_hasher, make_request, token_ids
from servegym.adapters.vllm.block_log import chunk_numbers
from servegym.adapters.vllm.caching_mirror import CachingMirror, names
from servegym.simulator.policies.policy import get_policy
from tests.adapters.vllm.with_vllm.served import PROFILE, drive, drive_async, plugged, saved, stock

CRAMPED = Limits(400, max_num_batched_tokens=2**16, prefix_caching=True)
WORKLOAD = demanding_sessions(3, 40, 4.0)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return saved(get_policy("scheduler", "slide-batching"), WORKLOAD, tmp_path / "policy.json")


@pytest.mark.parametrize("policy", ["vllm-v1:max_num_batched_tokens=256", "slide-batching", "expected-gain"])
@pytest.mark.parametrize(("blocks", "seed", "preempts"), [(4000, 1, False), (900, 2, True), (400, 3, True)])
def test_plugged_in_decides_as_simulated(policy: str, blocks: int, seed: int, preempts: bool) -> None:
    workload = demanding_sessions(seed, 60 if blocks < 4000 else 30, 4.0)
    limits = dataclasses.replace(CRAMPED, blocks=blocks)
    served, steps, counts = plugged_and_simulated(policy, workload, limits, PROFILE)
    assert first_difference(served, steps, contents=False) is None
    assert found_share(served.steps, workload) > 0.2
    assert (sum(len(step.preempted) for step in served.steps) >= 10) == preempts
    assert counts["decisions"] == len(served.steps)
    for name in ("deviating_steps", "deviating_hits", "fallback_steps", "broken"):
        assert counts[name] == 0, name
    assert counts["found_tokens"] > 1000


def test_the_mirror_has_what_the_block_pool_has(policy: Path) -> None:
    """At every 50th step: which requests hold a block, what it holds, the queue of free ones, and requests' blocks."""
    made = plugged(CRAMPED, policy)
    plugin, pool = made.servegym, made.kv_cache_manager.block_pool
    mirror, before, looked = plugin.mirror, plugin.before, [0, 0]
    name_of_hash: dict[bytes, int] = {}
    assert isinstance(mirror, CachingMirror)

    def look() -> Any:
        decided = before()
        looked[0] += 1
        if looked[0] % 50:
            return decided
        looked[1] += 1
        plugin.enforcer.restore()
        plugin._follow_blocks()
        blocks, engine = mirror.run.cache.blocks[0], mirror.run.engines[0]
        for request in made.requests.values():
            known = names(chunk_numbers(request.block_hashes)).tolist() if request.block_hashes else []
            name_of_hash.update(zip(map(bytes, request.block_hashes), known, strict=True))
            row = plugin.row_of[request.request_id]
            held = [block.block_id - 1 for block in made.kv_cache_manager.get_blocks(request.request_id).blocks[0]]
            begin = row * mirror.context_blocks
            assert mirror.run.cache.tables[begin : begin + len(held)].tolist() == held
            assert mirror.run.requests["blocks"][row] == len(held)
        free, block = [], int(engine.cache.first_free)
        while block >= 0:
            free.append(block)
            block = int(blocks["after"][block])
        named = {block.block_id - 1: block.block_hash is not None for block in pool.blocks[1:]}
        queue = [block.block_id - 1 for block in pool.free_block_queue.get_all_free_blocks()]
        assert sorted(free) == sorted(queue)
        assert [b for b in free if named[b]] == [b for b in queue if named[b]]
        assert (blocks["name"] != 0).tolist() == [named[b] for b in range(len(blocks))]
        assert blocks["references"].tolist() == [block.ref_cnt for block in pool.blocks[1:]]
        for block in pool.blocks[1:]:
            name = name_of_hash.get(bytes(block.block_hash)[:-4]) if block.block_hash is not None else None
            assert name is None or blocks["name"][block.block_id - 1] == name
        return decided

    plugin.before = look
    drive(made, WORKLOAD, PROFILE.device)
    assert looked[1] > 20
    assert len(name_of_hash) > 500
    assert plugin.metrics.counts["broken"] == 0


def test_a_policy_that_fails_on_the_way_leaves_the_mirror_true(policy: Path) -> None:
    made = plugged(CRAMPED, policy)
    fail_now_and_then(made.servegym.mirror, 7)
    served = drive(made, WORKLOAD, PROFILE.device)
    counts = made.servegym.metrics.counts
    assert [len(times) for times in served.token_s] == WORKLOAD.table["output_tokens"].tolist()
    assert counts["failures"] > 10
    assert counts["broken"] == counts["deviating_hits"] == counts["deviating_steps"] == 0
    assert made.kv_cache_manager.block_pool.get_num_free_blocks() == CRAMPED.blocks


def test_what_the_mirror_does_not_see_ends_its_work_and_is_said(policy: Path) -> None:
    """Blocks that somebody takes past what is watched: vLLM goes on alone, and all requests are served."""
    made = plugged(CRAMPED, policy)
    pool, turn, before = made.kv_cache_manager.block_pool, [0], made.servegym.before

    def taken() -> Any:
        turn[0] += 1
        if turn[0] == 100:
            type(pool).get_new_blocks(pool, 1)
        return before()

    made.servegym.before = taken
    lines: list[str] = []
    made.servegym.warn = lines.append
    served = drive(made, WORKLOAD, PROFILE.device)
    assert [len(times) for times in served.token_s] == WORKLOAD.table["output_tokens"].tolist()
    assert made.servegym.broken and made.servegym.metrics.counts["broken"] == 1
    assert len(lines) == 1 and "free blocks" in lines[0]
    assert made.servegym.block_log.operations == []


@pytest.mark.parametrize("depth", [1, 2])
def test_asynchronous_scheduling(policy: Path, depth: int) -> None:
    limits = dataclasses.replace(CRAMPED, async_scheduling=True)
    made = plugged(limits, policy, "AsyncScheduler")
    hasher = block_hasher(16)
    prompts = [token_ids(WORKLOAD, i)[: int(row.prompt_tokens)] for i, row in enumerate(WORKLOAD.table)]
    tokens = drive_async(made, WORKLOAD, depth, requests=lambda row, i: make_request(row, i, prompts[i], hasher))
    assert tokens == WORKLOAD.table["output_tokens"].tolist()
    counts = made.servegym.metrics.counts
    assert counts["found_tokens"] > 1000
    assert counts["broken"] == counts["fallback_steps"] == 0
    assert counts["deviating_hits"] <= 0.01 * counts["decisions"]
    assert made.kv_cache_manager.block_pool.get_num_free_blocks() == limits.blocks


def test_a_reset_of_the_cache_is_followed(policy: Path) -> None:
    made = plugged(CRAMPED, policy)
    drive(made, WORKLOAD, PROFILE.device)
    mirror = made.servegym.mirror
    assert (mirror.run.cache.blocks["name"] != 0).any()
    assert made.kv_cache_manager.reset_prefix_cache()
    made.servegym._follow_blocks()
    assert not (mirror.run.cache.blocks["name"] != 0).any()
    assert np.array_equal(mirror.run.cache.blocks["references"], np.zeros_like(mirror.run.cache.blocks["references"]))


def test_order_alone_plans_hits_too(policy: Path) -> None:
    made = plugged(CRAMPED, policy, enforce="order")
    served = drive(made, WORKLOAD, PROFILE.device)
    counts = made.servegym.metrics.counts
    assert [len(times) for times in served.token_s] == WORKLOAD.table["output_tokens"].tolist()
    assert counts["found_tokens"] > 1000 and counts["broken"] == 0
    assert counts["deviating_hits"] <= 0.1 * counts["decisions"]


def test_without_caching_nothing_of_it_is_there(policy: Path) -> None:
    made = plugged(dataclasses.replace(CRAMPED, prefix_caching=False), policy)
    assert not isinstance(made.servegym.mirror, CachingMirror)
    assert made.servegym.block_log is made.servegym.enforcer.hits is None
    assert "get_new_blocks" not in vars(made.kv_cache_manager.block_pool)


def test_vllms_own_scheduler_finds_the_same_share_of_a_session_trace() -> None:
    """Within 2 % of the simulator's vllm-v1 (it is equal)."""
    from experiments.engines.plugin_prefixes import session_workload
    from experiments.engines.prefix_parity import compared

    limits = Limits(1500, max_num_batched_tokens=2048, prefix_caching=True)
    workload = session_workload("chat-sessions", 8.0, 80, limits, PROFILE)
    assert stock(limits).kv_cache_manager.enable_caching
    served, steps, _ = compared(workload, limits, PROFILE, contents=False)
    theirs, ours = found_share(served.steps, workload), found_share(steps, workload)
    assert theirs > 0.2
    assert ours == pytest.approx(theirs, rel=0.02)
