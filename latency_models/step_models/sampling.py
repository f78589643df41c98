"""Samples the tables of the form `steps` from a step model, and measures the error of interpolation."""

from __future__ import annotations

import numpy as np

from servegym.latency_models.form import Values
from servegym.latency_models.model import LatencyModel
from servegym.latency_models.step_models.library import MOST_SEQUENCES, MOST_TOKENS, StepModel

REST_ERROR = 0.003  # largest relative error at a knot that is left out
DENSE, STRIDE = 1024, 8  # each number of tokens is sampled up to DENSE, every STRIDE-th one beyond
PREFILLS = (1, 2, 3, 4, 6, 8, 16)
PREFIXES = (0, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
DECODES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, MOST_SEQUENCES)
CONTEXTS = (1, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


def chunks() -> list[int]:
    """List the lengths of chunks: four in each doubling."""
    return sorted({round(2 ** (k / 4)) for k in range(4 * int(np.log2(MOST_TOKENS)) + 1)})


def tables(model: StepModel) -> Values:
    """Make the coefficients of the form `steps`."""
    steps = np.r_[np.arange(1, DENSE), np.arange(DENSE, MOST_TOKENS + 1, STRIDE)]
    rest_s = np.array([model.rest_s(int(tokens)) for tokens in steps])
    kept = knots(steps, rest_s, REST_ERROR)
    lengths = chunks()
    prefill_s = np.zeros((len(PREFILLS), len(lengths), len(PREFIXES)))
    for i, requests in enumerate(PREFILLS):
        for j, chunk in enumerate(lengths):
            if requests * chunk > MOST_TOKENS:  # no step has that many tokens: use the value for fewer prefills
                prefill_s[i, j] = prefill_s[i - 1, j]
                continue
            for k, prefix in enumerate(PREFIXES):
                prefill_s[i, j, k] = model.prefill_attention_s(requests, chunk, prefix) / (requests * chunk)
    return {
        "t_c": 0.0,
        "tokens": steps[kept].astype(float).tolist(),
        "rest_s": rest_s[kept].tolist(),
        "prefills": [float(n) for n in PREFILLS],
        "chunks": [float(n) for n in lengths],
        "prefixes": [float(n) for n in PREFIXES],
        "prefill_s": prefill_s.ravel().tolist(),
        "decodes": [float(n) for n in DECODES],
        "contexts": [float(n) for n in CONTEXTS],
        "decode_s": [model.decode_attention_s(n, context) for n in DECODES for context in CONTEXTS],
        "alone_s": [model.decode_s(n, context) for n in DECODES for context in CONTEXTS],
    }


def knots(x: np.ndarray, y: np.ndarray, error: float) -> np.ndarray:
    """Choose the knots, int64[...], between which linear interpolation has at most this relative error of y."""
    keep = np.zeros(len(x), bool)
    keep[[0, -1]] = True
    parts = [(0, len(x) - 1)]
    while parts:
        first, last = parts.pop()
        if last - first < 2:
            continue
        line = np.interp(x[first : last + 1], x[[first, last]], y[[first, last]])
        off = np.abs(line / y[first : last + 1] - 1)
        worst = int(np.argmax(off))
        if off[worst] > error:
            keep[first + worst] = True
            parts += [(first, first + worst), (first + worst, last)]
    return np.flatnonzero(keep)


def alike(batches: np.ndarray) -> np.ndarray:
    """Make BATCH[n], the batches with equal prefills and equal decodes, as the library requires."""
    same = batches.copy()
    some = batches["prefill_requests"] > 0
    requests, tokens = batches["prefill_requests"][some], batches["prefill_tokens"][some]
    chunk = np.maximum(1, np.round(tokens / requests))
    prefix = np.round(batches["prefill_tokens_cached"][some] / tokens)
    same["prefill_tokens"][some] = requests * chunk
    same["prefill_tokens_squared"][some] = requests * chunk**2
    same["prefill_tokens_cached"][some] = requests * chunk * prefix
    same["prefill_cached_tokens"][some] = requests * prefix
    same["longest_prefill_tokens"][some] = chunk
    some = batches["decode_requests"] > 0
    context = np.maximum(1, np.round(batches["decode_cached_tokens"][some] / batches["decode_requests"][some]))
    same["decode_cached_tokens"][some] = batches["decode_requests"][some] * context
    same["longest_decode_cached"][some] = context
    return same


def step_s(model: StepModel, batches: np.ndarray) -> np.ndarray:
    """Time a BATCH array[n] of equal prefills and equal decodes by the library, float64[n] s.

    The time of a mixed step is the sum of its parts, as with latent attention the library treats decodes in a mixed
    step as prefills of one token.
    """
    seconds = np.zeros(len(batches))
    for i, batch in enumerate(batches):
        prefills, decodes = int(batch["prefill_requests"]), int(batch["decode_requests"])
        if prefills:
            chunk = round(batch["prefill_tokens"] / prefills)
            prefix = round(batch["prefill_tokens_cached"] / batch["prefill_tokens"])
        if decodes:
            context = round(batch["decode_cached_tokens"] / decodes)
        if not decodes:
            seconds[i] = model.prefill_s(prefills, chunk, prefix)
        elif not prefills:
            seconds[i] = model.decode_s(decodes, context)
        else:
            seconds[i] = model.rest_s(prefills * chunk + decodes) + model.decode_attention_s(decodes, context)
            seconds[i] += model.prefill_attention_s(prefills, chunk, prefix)
    return seconds


def latency_model(model: StepModel) -> LatencyModel:
    return LatencyModel.from_values("steps", tables(model))
