"""PolyServe's optimal goodput (sections 3.4 and 3.5): what a steady state of full batches would serve.

A reference, not a bound: it knows no queue, no arrivals and no integer number of requests in a batch, charges decode
attention at mean lengths, and a real run may be above it.
"""

import dataclasses
import functools
import math

import numpy as np

from servegym.errors import ExperimentError
from servegym.latency_models.model import LatencyModel
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.types import BATCH

FORMS = ("linear", "piecewise", "roofline")  # their tokens, prefill attention and decode attention are apart
MOST_BATCH_TOKENS = 8192
PREFILL_ATTENTION = ("approximate", "as-printed-corrected")


@dataclasses.dataclass(frozen=True, eq=False)
class SteadyDevice:
    """A device as the paper's three functions, read off differences of its batch times.

    GEMM(B): a batch of B tokens with nothing cached, prefill tokens in chunks of one: so it holds all that is
    constant. DcAttn(x): time that x cached tokens add to a decode. PF(n): extra time of one prompt of n tokens over n
    prompts of one token.

    capacity_tokens: KV of an engine, C. Raises ExperimentError for a form in which these are not apart.
    """

    device: LatencyModel
    capacity_tokens: int
    most_batch_tokens: int = MOST_BATCH_TOKENS

    def __post_init__(self) -> None:
        if self.device.form not in FORMS:
            raise ExperimentError(
                f"device form '{self.device.form}' does not keep tokens and attention apart; "
                f"the optimal goodput is known for {', '.join(FORMS)}"
            )
        if self.most_batch_tokens < 1:
            raise ExperimentError(f"most_batch_tokens is {self.most_batch_tokens}; it should be 1 or more")

    @functools.cached_property
    def batch_tokens(self) -> np.ndarray:
        """The B that are tried: 1, 2, ..., most_batch_tokens."""
        return np.arange(1.0, self.most_batch_tokens + 1)

    @functools.cached_property
    def gemm_of_decodes_s(self) -> np.ndarray:
        """GEMM(B) of decodes, for each B."""
        return self._gemm(0.0)

    @functools.cached_property
    def gemm_of_prefills_s(self) -> np.ndarray:
        """GEMM(B) of prefill tokens, for each B."""
        return self._gemm(1.0)

    def gemm_of_both_s(self, prefill_share: float) -> np.ndarray:
        """GEMM(B) of batches of which that share, above 0 and below 1, are prefill tokens, for each B.

        Read off at a half; a token of one kind in place of one of the other changes it by the same anywhere.
        """
        return self._half_s + (prefill_share - 0.5) * self._exchange_s * self.batch_tokens

    @functools.cached_property
    def _half_s(self) -> np.ndarray:
        return self._gemm(0.5)

    @functools.cached_property
    def _exchange_s(self) -> float:
        """Extra time of a prefill token over a decode with nothing cached."""
        both = self.device.evaluate(np.concatenate([_batch(2.0, 1.0), _batch(1.0, 2.0)]))
        return float(both[0] - both[1])

    def _gemm(self, prefill_share: float) -> np.ndarray:
        tokens = self.batch_tokens
        return self.device.evaluate(_batch(tokens * prefill_share, tokens * (1 - prefill_share)))

    def decode_attention_s(self, cached_tokens: np.ndarray | float) -> np.ndarray:
        """DcAttn(x), which is linear in these forms."""
        return np.asarray(cached_tokens) * self._decode_token_s

    @functools.cached_property
    def _decode_token_s(self) -> float:
        """Time of one cached token, measured over many so that the difference of two times keeps its digits."""
        many = 2.0**20
        pair = self.device.evaluate(np.concatenate([_batch(0.0, 1.0, many), _batch(0.0, 1.0)]))
        return float(pair[0] - pair[1]) / many

    def prefill_attention_s(self, tokens: float) -> float:
        """PF(n) of one prompt of n tokens, nothing cached."""
        whole = np.zeros(1, BATCH)
        whole["prefill_requests"] = 1
        whole["prefill_tokens"] = whole["longest_prefill_tokens"] = tokens
        whole["prefill_tokens_squared"] = tokens * tokens
        single = _batch(tokens, 0.0)
        return float(np.diff(self.device.evaluate(np.concatenate([single, whole])))[0])


def _batch(prefill_tokens: np.ndarray | float, decodes: np.ndarray | float, cached: float = 0.0) -> np.ndarray:
    """BATCH[n] of prefill tokens in chunks of one with nothing cached, and decodes with so many cached in all."""
    prefill, decode = np.broadcast_arrays(np.atleast_1d(prefill_tokens), np.atleast_1d(decodes))
    batch = np.zeros(len(prefill), BATCH)
    batch["prefill_requests"] = batch["prefill_tokens"] = batch["prefill_tokens_squared"] = prefill
    batch["longest_prefill_tokens"] = prefill > 0
    batch["decode_requests"] = decode
    batch["decode_cached_tokens"] = batch["longest_decode_cached"] = cached
    return batch


@dataclasses.dataclass(frozen=True)
class Optimal:
    """requests_per_s of the engines, over the requests that some batch size serves; infeasible: those it left out.

    engine_s: mean engine-seconds of a request. prefill_engines: of the best integer split of a disaggregated
    deployment, and requests_per_s is what that split serves; unsplit_per_s: with any fraction of an engine.
    """

    requests_per_s: float
    engine_s: float
    infeasible: int
    prefill_engines: int | None = None
    unsplit_per_s: float | None = None


def colocated_cost_s(
    steady: SteadyDevice, p: float, d: float, ttft_s: float, tpot_s: float, prefill_attention: str = "approximate"
) -> float:
    """Least engine-seconds of a request with p prompt and d output tokens, over the batch sizes B that are feasible:

    T_iter = GEMM(B) + DcAttn(d/(p+d) B (p + d/2) + p) < TPOT, ceil((p+d)/B) T_iter < TTFT,
    d/(p+d) B (p + d/2) + p < C. Cost: (p+d) GEMM(B)/B + PF(p) + DcAttn(d (p + d/2)).

    prefill_attention "as-printed-corrected": T_iter has PF(p/(p+d) B) in place of the + p (the print has d there).
    inf where no B is feasible.
    """
    if prefill_attention not in PREFILL_ATTENTION:
        raise ExperimentError(
            f"prefill_attention is {prefill_attention!r}; it should be one of {', '.join(PREFILL_ATTENTION)}"
        )
    tokens = steady.batch_tokens
    gemm_s = steady.gemm_of_both_s(p / (p + d))
    decoded = d / (p + d) * tokens * (p + d / 2)
    if prefill_attention == "approximate":
        iteration_s = gemm_s + steady.decode_attention_s(decoded + p)
    else:
        # PF is quadratic, less its linear part: read off at two lengths.
        one, two = steady.prefill_attention_s(1024.0), steady.prefill_attention_s(2048.0)
        square = (two - 2 * one) / (2 * 1024.0**2)
        chunk = p / (p + d) * tokens
        iteration_s = gemm_s + steady.decode_attention_s(decoded) + np.maximum(square * (chunk**2 - chunk), 0.0)
    feasible = (
        (iteration_s < tpot_s)
        & (np.ceil((p + d) / tokens) * iteration_s < ttft_s)
        & (decoded + p < steady.capacity_tokens)
    )
    if not feasible.any():
        return math.inf
    fixed_s = steady.prefill_attention_s(p) + float(steady.decode_attention_s(d * (p + d / 2)))
    return float((p + d) * (gemm_s / tokens)[feasible].min() + fixed_s)


def disaggregated_costs_s(
    steady: SteadyDevice, p: float, d: float, ttft_s: float, tpot_s: float
) -> tuple[float, float]:
    """Least engine-seconds of a request on prefill and on decode engines; inf where no batch size is feasible.

    Decode, section 3.4: GEMM(B) + DcAttn(B (p + d/2)) < TPOT and B (p + d/2) < C; d GEMM(B)/B + DcAttn(d (p + d/2)).
    Prefill: p GEMM(B)/B + PF(p). The paper says only that B is bounded by TTFT and memory; here B < C, and the
    ceil(p/B) iterations of GEMM(B) with the attention of the max(1, B/p) prompts in them < TTFT.
    """
    tokens = steady.batch_tokens
    attention_s = steady.prefill_attention_s(p)
    gemm_s = steady.gemm_of_prefills_s
    first_s = np.ceil(p / tokens) * gemm_s + attention_s * np.maximum(1.0, tokens / p)
    feasible = (first_s < ttft_s) & (tokens < steady.capacity_tokens) & (p < steady.capacity_tokens)
    prefill_s = p * (gemm_s / tokens)[feasible].min() + attention_s if feasible.any() else math.inf
    gemm_s = steady.gemm_of_decodes_s
    cached = tokens * (p + d / 2)
    feasible = (gemm_s + steady.decode_attention_s(cached) < tpot_s) & (cached < steady.capacity_tokens)
    if not feasible.any():
        return float(prefill_s), math.inf
    decode_s = d * (gemm_s / tokens)[feasible].min() + float(steady.decode_attention_s(d * (p + d / 2)))
    return float(prefill_s), float(decode_s)


def optimal_goodput(
    workload: Workload, steady: SteadyDevice, engines: int, disaggregated: bool = False,
    prefill_attention: str = "approximate",
) -> Optimal:  # fmt: skip
    """Goodput = engines / mean cost over the requests of a workload; TTFT and TPOT are each request's.

    disaggregated: by the integer split that serves most, the smaller of prefill engines / mean prefill cost and
    decode engines / mean decode cost. Raises ExperimentError where no request has a feasible batch size.
    """
    if engines < (2 if disaggregated else 1):
        raise ExperimentError(f"{engines} engines; there should be at least {2 if disaggregated else 1}")
    names = ("prompt_tokens", "output_tokens", "ttft_slo_s", "tpot_slo_s")
    requests = np.column_stack([workload.table[name] for name in names]).astype("f8").tolist()
    costs = np.array([
        disaggregated_costs_s(steady, p, d, ttft_s, tpot_s)
        if disaggregated
        else (colocated_cost_s(steady, p, d, ttft_s, tpot_s, prefill_attention),)
        for p, d, ttft_s, tpot_s in requests
    ])  # fmt: skip
    served = np.isfinite(costs).all(axis=1)
    if not served.any():
        raise ExperimentError(f"workload '{workload.name}': no request meets its SLOs at any batch size")
    mean_s = costs[served].mean(axis=0)
    infeasible, engine_s = int((~served).sum()), float(mean_s.sum())
    if not disaggregated:
        return Optimal(engines / engine_s, engine_s, infeasible)
    prefill = np.arange(1, engines)
    rates = np.minimum(prefill / mean_s[0], (engines - prefill) / mean_s[1])
    best = int(rates.argmax())
    return Optimal(float(rates[best]), engine_s, infeasible, int(prefill[best]), engines / engine_s)
