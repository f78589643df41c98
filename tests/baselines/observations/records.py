"""Records of requests and engines that no run would reach: every field anything it may hold."""

import numpy as np

from servegym.simulator.records.types import ENGINE, ENGINE_SNAPSHOT, LEAVE_OUT, RANK, REQUEST

LENGTHS = [1, 2, 100, 2**20]
TIMES_S = [0.0, 1e-9, 0.02, 1.0, 1e3, 1e9]


def random_requests(random: np.random.Generator, n: int) -> np.ndarray:
    """REQUEST[n]: late by ages or due in ages, worth nothing or much, of unknown or endless length."""
    table = np.zeros(n, REQUEST)
    table["arrival_s"] = random.choice(TIMES_S, n)
    ttlt = random.random(n) < 0.3
    for field in ("ttft_slo_s", "tpot_slo_s"):
        table[field] = random.choice([1e-9, 0.02, 1.0, 1e9], n)
    table["ttlt_slo_s"] = np.where(ttlt, random.choice([1e-9, 1.0, 1e9], n), np.inf)
    first_slo_s = np.where(ttlt, table["ttlt_slo_s"], table["ttft_slo_s"])
    table["first_deadline_s"] = table["arrival_s"] + first_slo_s
    table["token_interval_s"] = np.where(ttlt, 0.0, table["tpot_slo_s"])
    for field in ("first_token_gain", "decode_token_gain", "weight"):
        table[field] = random.choice([0.0, 1e-9, 1.0, 1e9], n)
    table["prompt_tokens"] = random.choice(LENGTHS, n)
    table["num_output_tokens"] = random.choice([0, 0, 1, 7, 2**20], n)
    context = table["prompt_tokens"] + table["num_output_tokens"]
    table["computed_tokens"] = np.where(random.random(n) < 0.4, context - 1, random.integers(0, context))
    table["blocks"] = random.choice([0, 1, 2**20], n)
    table["offloaded_tokens"] = np.where(table["blocks"] == 0, table["computed_tokens"], 0)
    table["computed_tokens"] -= table["offloaded_tokens"]
    table["predicted_output_tokens"] = random.choice([np.nan, 1e-6, 3.5, 1e9, np.inf], n)
    table["priority"] = random.choice([-3, 0, 1, 2**31 - 1], n)
    table["task"] = random.choice([-1, 0, 1], n)
    return table


def random_engine(random: np.random.Generator) -> np.record:
    """An ENGINE without memory or with all of it free."""
    engine = np.zeros(1, ENGINE)[0]
    engine.total_blocks = random.choice([0, 1, 10**6])
    engine.free_blocks = random.choice([0, engine.total_blocks])
    engine.block_tokens = random.choice([1, 16])
    engine.estimate_scale = random.choice([0.0, 1e-9, 1.0, 1e9])
    engine.running_task, engine.suspended = random.choice([-1, 0, 1]), random.choice([0, 3])
    return engine


def random_plan(random: np.random.Generator, n: int) -> np.ndarray:
    plan = np.zeros(n, RANK)
    plan["tier"] = random.choice([-1, 0, 1, LEAVE_OUT], n)
    plan["key"] = random.choice([-np.inf, -1.0, 0.0, 2.0, np.inf], n)
    return plan


def disturb_snapshots(random: np.random.Generator, snapshots: np.ndarray, tiers: int) -> None:
    """What a router knows of engines becomes anything; the lengths of its lists stay as they are."""
    assert snapshots.dtype == ENGINE_SNAPSHOT
    n = len(snapshots)
    snapshots["role"], snapshots["tier"] = random.integers(0, 3, n), random.integers(-1, tiers, n)
    snapshots["up"], snapshots["closed"] = random.random(n) < 0.8, random.random(n) < 0.2
    for field in ("free_blocks", "total_blocks"):
        snapshots[field] = random.choice([0, 1, 10**6], n)
    snapshots["changed_s"], snapshots["busy_until_s"] = random.choice(TIMES_S, n), random.choice(TIMES_S, n)
    snapshots["decode_tokens"], snapshots["requests"] = random.choice([0, 5, 2**30], n), random.choice([0, 3, 10**6], n)
    snapshots["prefill_tokens"] = random.choice([0, 5, 2**30], n)
