"""What policies are recorded in: small runs in which something happens. Evictions, failures, late news, wrong beliefs.

Each is what `servegym.simulate` is to be called with. Requests are few and memory is little: a run takes milliseconds.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

import servegym
from servegym.simulator.inputs.predictors import Predictor
from servegym.simulator.memory.prefixes import Prompts

REQUESTS = 60
BLOCKS = 700  # of 16 tokens, in engines that are to run out of memory
TOKENS = 6000  # prompt and output together, at most
CHUNK_TOKENS = 256


@functools.cache
def recorded_scenarios() -> dict[str, Mapping[str, Any]]:
    """By name, arguments of `servegym.simulate`, without a scheduler."""
    a100, h100 = (servegym.load_profile(f"{device}-llama3-8b") for device in ("a100", "h100"))
    narrow = dataclasses.replace(a100.deployment(), total_blocks=BLOCKS)
    four = dataclasses.replace(narrow, engines=4)
    pairs = (
        dataclasses.replace(h100.deployment(2), role="prefill"),
        dataclasses.replace(four, engines=2, role="decode", scheduler=servegym.scheduler("vllm-v1")),
    )
    link = servegym.Link(a100.kv.bytes_per_token, 10e9, latency_s=0.001, shared=True)
    pair_cluster = servegym.Cluster(pairs, link, signal_delay_s=0.02)
    mixed = (dataclasses.replace(four, engines=2, scheduler=servegym.scheduler("sarathi-fcfs")), h100.deployment(1))
    tiered = servegym.Cluster((h100.deployment(4),), tiers=(0.02, 0.03, 0.05, 0.1))
    store = servegym.PrefixStore(8 * CHUNK_TOKENS, load_s_per_token=1e-5)
    stores = dataclasses.replace(h100.deployment(4), prefix_store=store)
    incidents = (
        servegym.Incident(0.4, 0, "fail"), servegym.Incident(1.2, 0, "return"), servegym.Incident(0.8, 3, "fail"),
        servegym.Incident(2.0, 1, "drain"), servegym.Incident(2.5, 3, "return"),
    )  # fmt: skip
    drifting = {"noise": 0.2, "drift_per_s": 0.02, "shift_s": 3.0, "shift_ratio": 1.5, "noise_seed": 3}
    guessing = Predictor(0.3, 0.3, length_buckets=5, processing="full-batch", batch_size=4, latency_s=0.05, seed=2)
    return {
        "one": {"workload": served("azure-conv", "proserve", 3.0), "deployment": a100.deployment()},
        "overload": {"workload": served("sharegpt", "qoserve:low_share=0.3", 25.0, 150), "deployment": narrow},
        "host": {
            "workload": served("semantic", "semantic", 25.0, 150),
            "deployment": dataclasses.replace(narrow, total_blocks=200, host=a100.host_memory(0.5, 10.0)),
        },
        "disturbed": {
            "workload": served("azure-code", "industrial", 6.0), "deployment": narrow, **drifting,
            "correction": servegym.Correction(0.8, 5), "until_s": 9.0,
        },
        "predicted": {
            "workload": served("azure-conv", "semantic", 8.0), "deployment": narrow, "predictor": guessing,
        },
        "four": {
            "workload": served("qoserve-conv", "qoserve:low_share=0.3", 40.0, 120), "router": "min-load",
            "deployment": servegym.Cluster((four,), signal_delay_s=0.05),
        },
        "pairs": {
            "workload": served("flowprefill", "flowprefill", 60.0, 120), "deployment": pair_cluster,
            "router": "gorouting",
        },
        "mixed": {
            "workload": served("azure-conv", "proserve", 25.0), "deployment": servegym.Cluster(mixed),
            "router": "min-tokens",
        },
        "incidents": {
            "workload": served("sharegpt", "proserve", 20.0), "deployment": pair_cluster, "router": "gorouting",
            "incidents": incidents,
        },
        "prefixes": {"workload": beginning_alike(), "deployment": stores, "router": "prefix-affinity"},
        "tiers": {
            "workload": served("azure-conv", "polyserve", 20.0), "deployment": tiered, "router": "polyserve",
            "scaler": "polyserve:interval_s=0.25",
        },
        "tiers-incidents": {
            "workload": served("sharegpt", "polyserve", 20.0), "deployment": tiered, "router": "polyserve",
            "scaler": "polyserve:interval_s=0.25", "incidents": incidents,
        },
    }  # fmt: skip


def served(trace: str, slo: str, rate_per_s: float, requests: int = REQUESTS) -> servegym.Workload:
    return servegym.build_workload(
        trace, requests=requests, rate_per_s=rate_per_s, slo=slo, seed=7, max_total_tokens=TOKENS, idle_tpot_s=0.01
    )


def beginning_alike() -> servegym.Workload:
    """Prompts that begin as one in four of the others does, more of them than a store has room for."""
    workload, random = served("azure-conv", "proserve", 30.0), np.random.default_rng(5)
    lengths = workload.table["prompt_tokens"] // CHUNK_TOKENS
    family = random.integers(0, 4, REQUESTS)
    chunks = [1000 * family[r] + np.arange(lengths[r]) for r in range(REQUESTS)]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return dataclasses.replace(workload, prefixes=Prompts(CHUNK_TOKENS, offsets, np.concatenate(chunks)))
