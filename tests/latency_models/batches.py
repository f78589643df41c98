"""Values of each form, and batches of requests."""

import numpy as np

from servegym.simulator.records.types import BATCH

LINEAR = {"a_p": 1e-9, "b_p": 2e-9, "c_p": 3e-5, "a_d": 4e-8, "b_d": 5e-5, "t_c": 0.01}


PIECEWISE = {
    "a_p": 1e-9, "b_p": 2e-9, "f_p": 1e-4, "a_d": 4e-8, "f_d": 2e-4, "t_c": 1e-3,
    "knots_tokens": [1.0, 101.0, 201.0], "base_s": [0.01, 0.01, 0.03],
}  # fmt: skip


MIXED = {
    "a_p": 1e-9, "b_p": 2e-9, "f_p": 1e-4, "a_d": 4e-8, "f_d": 2e-4, "a_m": 5e-8, "b_m": 1e-5, "t_c": 1e-3,
    "knots_tokens": [1.0, 101.0, 201.0], "base_s": [0.01, 0.01, 0.03],
}  # fmt: skip


REQUESTS = {
    "a_p": 1e-9, "b_p": 2e-9, "f_p": 1e-4, "a_d": 4e-8, "f_d": 2e-4, "a_m": 5e-8, "b_m": 1e-5, "t_r": 3e-5, "t_c": 1e-3,
    "knots_tokens": [1.0, 101.0, 201.0], "base_s": [0.01, 0.01, 0.03],
}  # fmt: skip


TABLE = {
    "t_c": 1e-3, "tokens": [1.0, 11.0, 21.0], "cached_tokens": [0.0, 100.0],
    "table_s": [0.01, 0.02, 0.03, 0.05, 0.04, 0.10],
}  # fmt: skip


SHARES = {
    "f_p": 3e-4, "f_d": 5e-4, "t_c": 1e-3, "reads": 0.5, "tokens": [1.0, 11.0, 21.0], "cached_tokens": [0.0, 100.0],
    "table_s": [0.01, 0.02, 0.03, 0.05, 0.04, 0.10], "prefill_s": [0.0, 0.0, 1e-4, 3e-4, 2e-4, 4e-4],
}  # fmt: skip


STEPS = {
    "t_c": 1e-3, "tokens": [1.0, 101.0], "rest_s": [0.01, 0.03], "prefills": [1.0, 4.0], "chunks": [1.0, 100.0],
    "prefixes": [0.0, 1000.0], "prefill_s": [1e-6, 2e-6, 3e-6, 4e-6, 5e-6, 6e-6, 7e-6, 8e-6], "decodes": [1.0, 8.0],
    "contexts": [1.0, 1000.0], "decode_s": [1e-4, 2e-4, 3e-4, 4e-4], "alone_s": [0.01, 0.02, 0.03, 0.04],
}  # fmt: skip


SLOWEST = {"alpha_1": 1e-9, "alpha_2": 1e-4, "gamma_1": 1e-8, "gamma_2": 0.012, "t_c": 1e-3}


POLYNOMIAL = {"c_3": 1e-12, "c_2": 1e-9, "c_1": 1e-5, "t_c": 0.01}


ROOFLINE = {
    "token_flop": 1e10, "pair_flop": 1e6, "weight_bytes": 1e10, "cache_bytes": 1e5, "link_bytes": 1e5,
    "peak_flop_per_s": 1e14, "memory_bytes_per_s": 1e12, "link_bytes_per_s": 1e11,
    "compute_efficiency": 0.5, "prefix_efficiency": 0.25, "memory_efficiency": 0.8, "t_c": 1e-3,
}  # fmt: skip


VALUES = {
    "linear": LINEAR, "piecewise": PIECEWISE, "piecewise-mixed": MIXED, "piecewise-requests": REQUESTS,
    "polynomial": POLYNOMIAL, "roofline": ROOFLINE, "slowest": SLOWEST, "steps": STEPS,
    "table": TABLE, "table-shares": SHARES,
}  # fmt: skip


def batch_of(prefills=(), decodes=()):
    """BATCH array[1] of (tokens, cached) prefills and decodes of these cached tokens."""
    tokens = np.array([pair[0] for pair in prefills], dtype=float)
    cached = np.array([pair[1] for pair in prefills], dtype=float)
    batch = np.zeros(1, dtype=BATCH)
    batch["prefill_requests"] = len(prefills)
    batch["prefill_tokens"] = tokens.sum()
    batch["prefill_tokens_squared"] = (tokens**2).sum()
    batch["prefill_tokens_cached"] = (tokens * cached).sum()
    batch["prefill_cached_tokens"] = cached.sum()
    batch["longest_prefill_tokens"] = tokens.max(initial=0)
    batch["decode_requests"] = len(decodes)
    batch["decode_cached_tokens"] = sum(decodes)
    batch["longest_decode_cached"] = max(decodes, default=0)
    return batch
