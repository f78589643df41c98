"""Speculative decoding: how many tokens of a decode are drafted, and which of them are accepted. docs/feature_rules.md.

What batches take with drafts in them is in speculating.py.
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
STREAM = 0x64726166  # the random numbers of drafts are no others' with the same seed
# A speculating engine's coefficients begin with these, and those of its device go on with its acceptance by position;
# the model's own are at START.
START, K, DRAFT_S, DRAFT_S_PER_REQUEST, VERIFIED, ACCEPTANCE = range(6)


@dataclasses.dataclass(frozen=True)
class Speculation:
    """How engines draft tokens. Raises DeploymentError for what cannot be."""

    k: int = described(None, "most tokens drafted of a request in an iteration", "tokens")
    acceptance: float | tuple[float, ...] = described(
        None, "the probability that a draft is accepted when all before it are: one, or one for each position"
    )
    draft_s: float = described(0.0, "of each position drafted, for the whole batch", "s")
    draft_s_per_request: float = described(0.0, "and of each request that has a draft there", "s")
    free_verification: bool = described(False, "drafts are checked in no time, and count in no budget of tokens")

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
        """As a text, which `speculation_of` reads."""
        rates = self.acceptance if isinstance(self.acceptance, tuple) else (self.acceptance,)
        said = [f"k={int(self.k)}", f"acceptance={'/'.join(repr(float(rate)) for rate in rates)}"]
        said += [f"{name}={float(getattr(self, name))!r}" for name in ("draft_s", "draft_s_per_request")
                 if getattr(self, name) > 0]  # fmt: skip
        return ",".join(said + ["free_verification=yes"] * bool(self.free_verification))

    @property
    def by_position(self) -> np.ndarray:
        """float64[k]: the acceptance of each."""
        rates = self.acceptance if isinstance(self.acceptance, tuple) else (self.acceptance,) * int(self.k)
        return np.array(rates[: int(self.k)], "f8")


FIELDS = tuple(field.name for field in dataclasses.fields(Speculation))


def speculation_of(given: str | Mapping[str, Any]) -> Speculation | None:
    """From "k=4,acceptance=0.7", "none", or a mapping. Raises DeploymentError."""
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
            right = {"k": "a whole number", "free_verification": "yes or no"}.get(key, "a number")
            raise DeploymentError(f"speculation {given!r}: {key} is {value!r}; it should be {right}") from None
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
    """Tokens that a decode with memory wants, its drafts included (rule 3)."""
    drafts = min(engine.speculation.k, limits.most_drafts, outcome.output_tokens - request.num_output_tokens - 1)
    if engine.speculation.free == 0:
        drafts = min(drafts, limits.chunk_tokens - 1, limits.max_num_batched_tokens - packing.tokens - 1)
    return 1 + max(0, drafts)


@kernel
def counted_tokens(chunk, decoding, engine):
    """Of a chunk, what counts in budgets."""
    if HAS_DRAFTS and decoding and chunk > 1 and engine.speculation.free == 1:
        return 1
    return chunk


@kernel
def tokens_of_decode(engine):
    """What a decode with all the drafts that it may have takes of a budget, for all that a policy knows."""
    if engine.speculation.free == 1:
        return 1
    return 1 + engine.speculation.k


@kernel
def accept(r, request, engine, coefficients, drafted):
    """How many drafts of request r are accepted: all before the first that is not.

    coefficients: of the engine's device. Whether the guess of a token is right depends on the token alone.
    """
    seed, token, accepted = engine.speculation.seed ^ STREAM, int(request.num_output_tokens) + 1, 0
    while accepted < drafted and uniform(seed, int(r), token + accepted) < coefficients[ACCEPTANCE + accepted]:
        accepted += 1
    engine.totals.drafted_tokens += drafted
    engine.totals.accepted_tokens += accepted
    return accepted
