"""Settings under which each scheduler is compared with its reference, and that reference."""

from typing import Any

from servegym.simulator.policies.policy import Policy
from tests.reference.schedulers import SCHEDULERS

# Settings of each scheduler, and what the reference calls a setting of another name.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "vllm-fcfs": [{}, {"max_num_batched_tokens": 256, "max_num_seqs": 5}],
    "vllm-v1": [
        {"max_num_batched_tokens": 64},
        {"policy": "priority", "max_num_batched_tokens": 96, "max_num_seqs": 7},
        {"policy": "priority", "max_num_batched_tokens": 48, "reserve_full": 0},
        {"max_num_batched_tokens": 128, "watermark": 0.2},
        {"max_num_batched_tokens": 96, "long_prefill_token_threshold": 20},
        {"policy": "priority", "max_num_batched_tokens": 64, "long_prefill_token_threshold": 7, "reserve_full": 0},
    ],
    "sarathi-fcfs": [{}, {"max_num_batched_tokens": 48, "max_num_seqs": 6}],
    "sarathi-priority": [{"max_num_batched_tokens": 64}, {"max_num_batched_tokens": 96, "max_num_seqs": 5}],
    "sarathi-edf": [{}, {"max_num_batched_tokens": 48, "max_num_seqs": 6}],
    "sarathi-srpf": [{}, {"max_num_batched_tokens": 48, "max_num_seqs": 6}],
    "sarathi-sjf": [{}, {"max_num_batched_tokens": 48, "max_num_seqs": 6}],
    "distserve": [
        {},
        {"max_num_batched_tokens": 128, "prefill_batch_size": 3},
        {"max_num_batched_tokens": 256, "decode_batch_size": 2},
    ],
    "distserve-cp2k": [{}, {"max_num_batched_tokens": 48, "decode_batch_size": 4}],
    "distserve-cp8k": [{}, {"max_num_batched_tokens": 24}],
    "edf": [{"max_num_batched_tokens": 96}, {"batch_size": 4}],
    "sjf": [{"max_num_batched_tokens": 96}, {"batch_size": 4}],
    "slide-batching": [
        {},
        {"load": "c"},
        {"load": "p", "gamma": 0.5},
        {"gamma": 3.0, "eta": 0.02},
        {"eta": 0.006},
        {"hopeless": "exclude"},
        {"hopeless": "exclude", "eta": 0.006, "load": "c"},
        {"deadlines": "early-first-token"},
        {"deadlines": "first-token", "gamma": 3.0},
        {"deadlines": "first-token", "hopeless": "exclude", "load": "c"},
        {"ablation": "only-deadline"},
        {"ablation": "only-density"},
        {"ablation": "no-latency", "max_num_batched_tokens": 64},
        {"variant": "xllm"},
        {"variant": "xllm", "starve_threshold": 0.1, "load": "c"},
        {"variant": "xllm", "ablation": "no-latency", "max_num_batched_tokens": 48},
        {"variant": "xllm", "hopeless": "include", "deadlines": "slo", "eta": 0.02},
        {"density_exponent": 0.5, "gamma": 3.0},
        {"step_tokens": 16},
        {"step_tokens": 64, "eta": 0.02, "deadlines": "early-first-token"},
        {"step_tokens": 48, "variant": "xllm"},
    ],
    "expected-gain": [
        {},
        {"gamma": 0.2, "eta": 0.02},
        {"eta": 0.02, "deadlines": "slo"},  # with a smaller one values come to differ by rounding alone
        {"eta": 0.5, "output_tokens": 3.0},
        {"deadlines": "first-token", "output_tokens": 20.0, "gamma": 10.0},
        {"hopeless": "leave-out"},
        {"hopeless": "leave-out", "gamma": 0.1, "eta": 0.02, "reserve": 0.4},
        {"step_tokens": 32, "eta": 0.02},
    ],
    "slos-serve": [
        {},
        {"deadlines": "slo", "max_num_batched_tokens": 96},
        {"deadlines": "first-token", "output_tokens": 4.0, "max_num_seqs": 5},
    ],
    "fairbatching": [{}, {"near": 0.0}, {"near": 1.0, "eta": 0.03}, {"near": 1000.0, "eta": 0.006}],
    "fixed-drafts": [{}, {"most_drafts": 0, "max_num_batched_tokens": 64}, {"most_drafts": 2, "max_num_seqs": 5}],
    "smartspec": [
        {},
        {"acceptance": 0.0, "memory": 4.0},
        {"acceptance": 1.0, "memory": 1.0, "max_num_batched_tokens": 64},
    ],
    "fastserve-mlfq": [
        {},
        {"promote_after_s": 0.1, "batch_size": 4},
        {"quantum_s": 0.002, "promote_after_s": 0.4, "max_num_batched_tokens": 200},
        {"quantum_s": 0.1, "batch_size": 2},
    ],
    "flow-prefill": [
        {},
        {"batch_token_budget": 200, "margin": 0.1, "longest_batched_tokens": 90, "misfit": "stop"},
        {"priority": "d-edf", "boundary": "layer", "chunk_tokens": 48},
        {"priority": "edf", "late_order": "edf", "batch_token_budget": 0, "tbt_share": 0.3, "least_slice_s": 0.001},
        {"late_order": "edf", "chunk_tokens": 100, "tbt_share": 2.0},
        {"boundary": "none"},
    ],
    "llumnix-reserve": [{}, {"reserve": 0.4, "max_num_seqs": 6}, {"reserve": 1.0, "max_num_batched_tokens": 200}],
    "weighted-vtc": [
        {},
        {"max_num_batched_tokens": 64, "max_num_seqs": 4},
        {"max_num_batched_tokens": 64, "output_weight": 0.0},
        {"max_num_batched_tokens": 96, "max_num_seqs": 3, "input_weight": 0.0},
        {"max_num_batched_tokens": 96, "max_num_seqs": 2},
        {"max_num_batched_tokens": 200, "max_num_seqs": 3, "output_weight": 0.5},
    ],
    "medha": [{}, {"tbt_s": 0.015, "max_num_seqs": 6}, {"safety": 2.0, "largest_chunk_tokens": 32}],
    "qoserve": [
        {},
        {"largest_chunk_tokens": 100, "safety": 1.5, "max_num_seqs": 6},
        {"step_tokens": 32},
        {"dynamic_chunking": "code"},
        {"dynamic_chunking": "code", "relegation": "code", "ttlt_slack": "paced", "importance": "spare"},
        {"dynamic_chunking": "off", "max_num_batched_tokens": 64},
        {"dynamic_chunking": "off", "max_num_batched_tokens": 64, "relegation": "off", "alpha_s_per_token": 0.001},
        {"ttlt_slack": "paced", "late_limit": 0.2, "relegated_order": "low-first"},
        {"alpha_s_per_token": 0.002, "low_load_tokens": 200, "low_load_alpha_s_per_token": 0.0005},
        {"relegation": "code", "relegated_order": "low-first", "selective_preemption": "off"},
        {"relegation": "code", "importance": "ignore", "alpha_s_per_token": 0.0, "largest_chunk_tokens": 64},
        {"importance": "spare", "late_limit": 1e9},
        {"importance": "ignore", "selective_preemption": "off", "late_limit": 0.0},
        {"relegation": "off", "largest_chunk_tokens": 48, "least_chunk_tokens": 100},
        {"least_chunk_tokens": 40, "importance": "ignore"},
        {"least_chunk_tokens": 200, "late_limit": 1e9, "importance": "ignore"},
        {"dynamic_chunking": "off", "max_num_batched_tokens": 16, "relegation": "off", "alpha_s_per_token": 0.05},
        {
            "largest_chunk_tokens": 24, "relegation": "off", "alpha_s_per_token": 0.05, "late_limit": 1e9,
            "least_chunk_tokens": 16,
        },
    ],
    "plas": [{"quantum_tokens": 32}, {"quantum_tokens": 8, "promote_after_s": 0.25, "max_num_batched_tokens": 64}],
    "polyserve": [
        {"max_num_batched_tokens": 64},
        {"max_num_batched_tokens": 20},
        {},
        {"max_num_batched_tokens": 64, "margin": 0.3},
    ],
    "semantic": [
        {},
        {"slots": 4},
        {"slots": 6, "batching": "prefill-first", "accounting": "prefill"},
        {"slots": 5, "candidates": "decodes", "remaining_time": "current"},
        {"slots": 8, "level": "priority", "accounting": "as-printed", "remaining_time": "current"},
        {"slots": 6, "transfer_cost": "load", "accounting": "prefill"},
        {"slots": 6, "transfer_cost": "load", "accounting": "as-printed"},
        {"slots": 1},
        {"slots": 2, "remaining_time": "current"},
        {"slots": 3, "accounting": "as-printed", "candidates": "decodes"},
    ],
    "hpjf": [{"slots": 4}, {"slots": 6, "level": "urgency", "candidates": "decodes"}, {"batching": "prefill-first"}],
    "slots-fcfs": [{}, {"slots": 4, "candidates": "decodes"}, {"slots": 6, "batching": "prefill-first"}],
    "slots-sjf": [
        {"slots": 5},
        {"slots": 4, "remaining_time": "current", "candidates": "decodes"},
        {"batching": "prefill-first"},
    ],
}  # fmt: skip


CASES = [(name, settings) for name, variants in SETTINGS.items() for settings in variants]


def reference_scheduler(name: str, settings: dict[str, Any], total_blocks: int) -> Any:
    keywords = {"phi" if key == "load" else key: value for key, value in settings.items()}
    if keywords.pop("variant", "paper") == "xllm":
        keywords["xllm"] = True
    if "reserve_full" in keywords:
        keywords["reserve_context"] = bool(keywords.pop("reserve_full"))
    if "watermark" in keywords:  # vLLM counts its null block
        keywords["watermark_blocks"] = int(keywords.pop("watermark") * (total_blocks + 1))
    return SCHEDULERS[name](**keywords)


def is_a_score(policy: Policy) -> bool:
    return policy.function.written is not policy.function.py_func
