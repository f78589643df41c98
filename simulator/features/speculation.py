"""Speculative decoding: how many tokens of a decode are drafted, and which of them are accepted. docs/feature_rules.md.

The times of batches with drafts are in speculating.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from servegym.errors import DeploymentError
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.features import HAS_DRAFTS
from servegym.simulator.records.key_values import (
    NONE,
    YES_OR_NO,
    check_flag,
    check_keys,
    check_time,
    described,
    is_number,
    key_values,
)
from servegym.simulator.records.random import uniform

MOST_DRAFTS = 64
STREAM = 0x64726166  # keeps the random numbers of drafts apart from others with the same seed
# Indices of the first coefficients of a speculating engine's models. From ACCEPTANCE on, a device model has the
# acceptance by position. The model's own coefficients begin at coefficients[START].
START, K, DRAFT_S, DRAFT_S_PER_REQUEST, VERIFIED, ACCEPTANCE = range(6)


@dataclasses.dataclass(frozen=True)
class Speculation:
    """Speculative decoding of engines. Raises DeploymentError for an invalid value."""

    k: int = described(None, "most draft tokens of a request in an iteration", "tokens")
    acceptance: float | tuple[float, ...] = described(
        None, "probability that a draft is accepted if all before it are: one number, or one for each position"
    )
    draft_s: float = described(0.0, "time to draft one position for the whole batch", "s")
    draft_s_per_request: float = described(0.0, "further time of each request with a draft at that position", "s")
    free_verification: bool = described(False, "checking drafts takes no time and counts in no token budget")

    def __post_init__(self) -> None:
        if not is_number(self.k) or not 1 <= self.k <= MOST_DRAFTS or self.k != int(self.k):
            raise DeploymentError(f"speculation: k is {self.k!r}; it should be a whole number from 1 to {MOST_DRAFTS}")
        several = isinstance(self.acceptance, list | tuple)
        rates: tuple[Any, ...] = tuple(self.acceptance) if several else (self.acceptance,)  # type: ignore[arg-type]
        for rate in rates:
            if not is_number(rate) or not 0 <= rate <= 1:
                raise DeploymentError(f"speculation: acceptance is {rate!r}; it should be a probability, from 0 to 1")
        if several and len(rates) < self.k:
            raise DeploymentError(
                f"speculation: acceptance has {len(rates)} positions, and k is {self.k}; it should have one for each "
                "of the k, or be one number"
            )
        for name in ("draft_s", "draft_s_per_request"):
            check_time("speculation", name, getattr(self, name))
        check_flag("speculation", "free_verification", self.free_verification)
        object.__setattr__(self, "acceptance", rates if several else self.acceptance)

    @property
    def label(self) -> str:
        """The settings as a text that `speculation_of` reads."""
        rates = self.acceptance if isinstance(self.acceptance, tuple) else (self.acceptance,)
        texts = [f"k={int(self.k)}", f"acceptance={'/'.join(repr(float(rate)) for rate in rates)}"]
        texts += [f"{name}={float(getattr(self, name))!r}" for name in ("draft_s", "draft_s_per_request")
                 if getattr(self, name) > 0]  # fmt: skip
        return ",".join(texts + ["free_verification=yes"] * bool(self.free_verification))

    @property
    def by_position(self) -> np.ndarray:
        """float64[k]: the acceptance of each position."""
        rates = self.acceptance if isinstance(self.acceptance, tuple) else (self.acceptance,) * int(self.k)
        return np.array(rates[: int(self.k)], "f8")


FIELDS = tuple(field.name for field in dataclasses.fields(Speculation))


def speculation_of(given: str | Mapping[str, Any]) -> Speculation | None:
    """Read speculation from "k=4,acceptance=0.7", "none", or a mapping. Raises DeploymentError."""
    if isinstance(given, Mapping):
        check_keys(given, "speculation", FIELDS)
        return Speculation(**given)
    if given == NONE:
        return None
    found: dict[str, Any] = {}
    named, none = f"speculation {given!r}", f" ({NONE}: there is none)"
    for key, value in key_values(given.split(","), named, FIELDS, DeploymentError, none):
        try:
            found[key] = _value(key, value)
        except (KeyError, ValueError):
            expected = {"k": "a whole number", "free_verification": "yes or no"}.get(key, "a number")
            raise DeploymentError(f"speculation {given!r}: {key} is {value!r}; it should be {expected}") from None
    return Speculation(**found)


def _value(key: str, value: str) -> Any:
    if key == "free_verification":
        return YES_OR_NO[value]
    if key == "k":
        return int(value)
    numbers = tuple(map(float, value.split("/"))) if key == "acceptance" else (float(value),)
    return numbers if len(numbers) > 1 else numbers[0]


@kernel
def decode_chunk(request, outcome, engine, limits, packing):
    """Return the chunk of a running decode: one token, and its drafts (rule 3)."""
    drafts = min(engine.speculation.k, limits.most_drafts, outcome.output_tokens - request.num_output_tokens - 1)
    if engine.speculation.free == 0:
        drafts = min(drafts, limits.chunk_tokens - 1, limits.max_num_batched_tokens - packing.tokens - 1)
    return 1 + max(0, drafts)


@kernel
def counted_tokens(chunk, decoding, engine):
    """Return the tokens of a chunk that count in budgets."""
    if HAS_DRAFTS and decoding and chunk > 1 and engine.speculation.free == 1:
        return 1
    return chunk


@kernel
def tokens_of_decode(engine):
    """Return the most tokens of a budget that a decode may take with its drafts, as far as a policy knows."""
    if engine.speculation.free == 1:
        return 1
    return 1 + engine.speculation.k


@kernel
def accept(r, request, engine, coefficients, drafted):
    """Return how many drafts of request r are accepted: those before the first that is rejected.

    coefficients: of the engine's device model. Whether a draft is right depends only on the request and the position
    of the token in its answer.
    """
    seed, token, accepted = engine.speculation.seed ^ STREAM, int(request.num_output_tokens) + 1, 0
    while accepted < drafted and uniform(seed, int(r), token + accepted) < coefficients[ACCEPTANCE + accepted]:
        accepted += 1
    engine.totals.drafted_tokens += drafted
    engine.totals.accepted_tokens += accepted
    return accepted
