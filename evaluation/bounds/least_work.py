"""The least time that work takes on a device, as inequalities that are linear in the work.

Of every batch that fits the memory of an engine and each `Line` of its device:

    duration >= constant_s + prefill_s * (prefill tokens) + decode_s * (decodes)
                + a_p * sum lq^2 + b_p * sum lq lkv + a_d * sum over decodes lkv.

Linear inequalities may be summed over the batches of a run, in whole or in part. docs/results/bounds.md has the proofs.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import NamedTuple

import numpy as np

from servegym.errors import ExperimentError
from servegym.latency_models.model import LatencyModel
from servegym.simulator.inputs.deployment import Deployment

POLYNOMIAL_TANGENTS_TOKENS = (0.0, 256.0, 1024.0, 2048.0, 4096.0, 8192.0)
SIZES_TOKENS = (1, 64, 256, 1024, 4096, 16384)
FORMS = ("linear", "piecewise", "polynomial", "roofline")


class Line(NamedTuple):
    """One inequality, without attention. constant_s may be negative, the others may not."""

    constant_s: float
    prefill_s: float
    decode_s: float


@dataclasses.dataclass(frozen=True)
class LeastWork:
    """The least time of work on any of some engines.

    lines: all hold at once. a_p, b_p, a_d: attention as in the form `linear`. capacity_tokens: KV of an engine.
    kept: KV can be moved to host memory and back.
    """

    lines: tuple[Line, ...]
    a_p: float
    b_p: float
    a_d: float
    capacity_tokens: int
    kept: bool

    def times(self, factor: float) -> LeastWork:
        """The same with every time multiplied by a factor."""
        lines = tuple(Line(*(factor * number for number in line)) for line in self.lines)
        attention = {name: factor * getattr(self, name) for name in ("a_p", "b_p", "a_d")}
        return dataclasses.replace(self, lines=lines, **attention)

    @property
    def iteration_s(self) -> float:
        """Least duration of any iteration."""
        return max(line.constant_s + min(line.prefill_s, line.decode_s) for line in self.lines)

    @property
    def without_constants(self) -> list[Line]:
        """Lines with a constant of 0: those with a constant of 0 or more, without it, and mixtures of two lines whose
        constants cancel.
        """
        above = [line for line in self.lines if line.constant_s >= 0]
        below = [line for line in self.lines if line.constant_s < 0]
        found = [Line(0.0, line.prefill_s, line.decode_s) for line in above]
        for high, low in itertools.product(above, below):
            share = low.constant_s / (low.constant_s - high.constant_s)  # of the high one
            mixed = (share * a + (1 - share) * b for a, b in zip(high[1:], low[1:], strict=True))
            found.append(Line(0.0, *mixed))
        return found

    @property
    def alone_s_per_token(self) -> float:
        """The largest c for which iterations with n prefill tokens in all, however many, take c n at least."""
        return max((line.prefill_s for line in self.without_constants), default=0.0)

    def prompt_attention_s(self, tokens: np.ndarray) -> np.ndarray:
        """Least attention of a prompt, however it is cut into chunks.

        Chunks of l_j tokens in all n: sum a_p l_j^2 + b_p (n^2 - sum l_j^2) / 2. The sum of squares lies between n
        (single tokens) and n^2 (one chunk), and the time is linear in it.
        """
        whole = self.a_p * tokens**2
        single = self.a_p * tokens + self.b_p * tokens * (tokens - 1) / 2
        return np.minimum(whole, single)

    def prompt_alone_s(self, tokens: np.ndarray) -> np.ndarray:
        """Least time from the start of a prompt to its first token."""
        core = [line.constant_s + line.prefill_s * tokens for line in self.lines if line.constant_s >= 0]
        return np.maximum.reduce([self.alone_s_per_token * tokens, *core]) + self.prompt_attention_s(tokens)

    def later_token_s(self, line: Line, prompt_tokens: np.ndarray) -> np.ndarray:
        """Least time, beyond constants, of one token after the first: by a decode, or after an eviction by a prefill.

        At the second token: both take longer for those after it.
        """
        context = prompt_tokens + 1
        decode_s = line.decode_s + self.a_d * prompt_tokens
        token_s = min(other.prefill_s for other in self.lines)
        again_s = token_s * context + self.prompt_attention_s(context)
        if self.kept:
            # Two tokens at least are computed again, each with all but those cached before it.
            two_s = 2 * (token_s + self.a_p + self.b_p * (context - 2))
            again_s = np.minimum(again_s, np.minimum(two_s, context * (token_s + self.a_p)))
        return np.minimum(decode_s, again_s)

    def later_token_memory(self, prompt_tokens: np.ndarray) -> np.ndarray:
        """KV tokens held in an engine, at least, for each token after the first that an iteration works on."""
        if self.kept or self.b_p < 2 * self.a_p:
            return np.ones(len(prompt_tokens))
        return prompt_tokens + 1.0


def least_work(pools: list[Deployment]) -> LeastWork:
    """What holds for every engine of these pools.

    Raises ExperimentError for a device form without such lines, and where an iteration can take no time at all.
    """
    works = [_of_pool(pool) for pool in pools]
    lines = works[0].lines
    for other in works[1:]:
        if other.lines != lines:
            lines = _telling([_weaker(*pair) for pair in itertools.product(lines, other.lines)])
    work = LeastWork(
        lines,
        a_p=min(work.a_p for work in works),
        b_p=min(work.b_p for work in works),
        a_d=min(work.a_d for work in works),
        capacity_tokens=max(work.capacity_tokens for work in works),
        kept=any(work.kept for work in works),
    )
    if not work.iteration_s > 0:
        raise ExperimentError(
            f"{pools[0].name}: some iteration may take no time on this device; a bound needs a least time above 0"
        )
    return work


def _weaker(a: Line, b: Line) -> Line:
    """A line below both."""
    return Line(*(min(pair) for pair in zip(a, b, strict=True)))


def _telling(lines: list[Line]) -> tuple[Line, ...]:
    """The lines that are the largest of all at some batch size."""
    best = [max(lines, key=lambda line: line.constant_s + line.prefill_s * n) for n in SIZES_TOKENS]
    best += [max(lines, key=lambda line: line.constant_s + line.decode_s * n) for n in SIZES_TOKENS]
    return tuple(sorted(set(best), key=lambda line: (line.prefill_s, line.decode_s)))


def _of_pool(pool: Deployment) -> LeastWork:
    model, capacity = pool.device, pool.capacity_tokens
    kept = pool.host is not None and pool.host.blocks > 0
    form = getattr(model, "form", None)
    if not isinstance(model, LatencyModel) or form not in FORMS:
        raise ExperimentError(
            f"{pool.name}: no lower bound is known of the time of a batch for device form {form!r}; "
            f"there is one for {', '.join(FORMS)}"
        )
    c = model.coefficients_by_name
    if form == "linear":
        lines = [Line(_number(c["t_c"]), _number(c["c_p"]), _number(c["b_d"]))]
        a_p, b_p, a_d = (_number(c[name]) for name in ("a_p", "b_p", "a_d"))
    elif form == "piecewise":
        lines = _hull(c, capacity)
        a_p, b_p, a_d = (_number(c[name]) for name in ("a_p", "b_p", "a_d"))
    elif form == "roofline":
        lines, (a_p, b_p, a_d) = _roofline(c)
    else:
        lines, (a_p, b_p, a_d) = _tangents(c), (0.0, 0.0, 0.0)
    return LeastWork(tuple(lines), a_p, b_p, a_d, capacity, kept)


def _number(value: object) -> float:
    assert isinstance(value, float)
    return value


def _hull(c: dict, capacity: int) -> list[Line]:
    """The lower convex hull of the linear operators' time, from 1 token to as many as the KV memory holds.

    A batch pays at least the smaller of the constants of prefill and decode attention.
    """
    knots, base = np.array(c["knots_tokens"]), np.array(c["base_s"])
    constant_s = c["t_c"] + min(c["f_p"], c["f_d"])
    inner = knots[(knots > 1) & (knots < capacity)]
    tokens = np.concatenate([[1.0], inner, [float(max(capacity, 2))]])
    last_slope = (base[-1] - base[-2]) / (knots[-1] - knots[-2])
    seconds = np.interp(tokens, knots, base) + last_slope * np.maximum(tokens - knots[-1], 0.0)
    hull: list[tuple[float, float]] = []
    for x, y in zip(tokens.tolist(), seconds.tolist(), strict=True):
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-2], (x, y)):
            hull.pop()
        hull.append((x, y))
    lines = []
    for left, right in itertools.pairwise(hull):
        slope = _slope(left, right)
        lines.append(Line(constant_s + left[1] - slope * left[0], slope, slope))
    return lines


def _slope(left: tuple[float, float], right: tuple[float, float]) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])


def _roofline(c: dict) -> tuple[list[Line], tuple[float, float, float]]:
    """Both roofs, each with the link; attention is linear already."""
    flop_per_s = c["peak_flop_per_s"] * c["compute_efficiency"]
    bytes_per_s = c["memory_bytes_per_s"] * c["memory_efficiency"]
    link_s = c["link_bytes"] / c["link_bytes_per_s"]
    compute_s = c["token_flop"] / flop_per_s + link_s
    lines = [Line(c["t_c"] + c["weight_bytes"] / bytes_per_s, link_s, link_s), Line(c["t_c"], compute_s, compute_s)]
    prefix_s = c["pair_flop"] / (c["peak_flop_per_s"] * c["prefix_efficiency"])
    return lines, (c["pair_flop"] / 2 / flop_per_s, prefix_s, c["cache_bytes"] / bytes_per_s)


def _tangents(c: dict) -> list[Line]:
    """Tangents of the polynomial, which is convex where tokens are 0 or more. A decode takes no time."""
    lines = []
    for n in POLYNOMIAL_TANGENTS_TOKENS:
        slope = (3 * c["c_3"] * n + 2 * c["c_2"]) * n + c["c_1"]
        value = ((c["c_3"] * n + c["c_2"]) * n + c["c_1"]) * n + c["t_c"]
        lines.append(Line(value - slope * n, slope, 0.0))
    return list(dict.fromkeys(lines))
