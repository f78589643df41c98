"""The terms of a request: its SLOs, weight, client and so on, from `vllm_xargs`, with defaults from the artifact.

No request is refused for its terms: an invalid value counts as malformed, and the default replaces it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping
from typing import Any

MOST_SECONDS = 1e6  # of an SLO, and the SLO of a request without one; finite, as 0 tokens x inf is nan
MOST_WEIGHT = 1e6
MOST_TEXT = 64  # characters of a number, or of a client's name, sent as text
MOST_TOKENS = 2**24
MOST_GROUPS = 256  # clients, or applications, that are told apart; all later ones count as one
MILLISECONDS = "_ms"


@dataclasses.dataclass(frozen=True)
class Defaults:
    """Terms of a request that sends none. ttlt_slo_s inf: TTFT and TPOT SLOs apply.

    weight_of_priority: by vLLM's `priority`, of which lower is more important. first_token_weight: gain of the first
    token relative to a later one.
    """

    ttft_slo_s: float = MOST_SECONDS
    tpot_slo_s: float = MOST_SECONDS
    ttlt_slo_s: float = math.inf
    weight_of_priority: Mapping[int, float] = dataclasses.field(default_factory=dict)
    first_token_weight: float = 1.0

    @classmethod
    def of_workload(cls, workload: Mapping[str, Any] | None) -> Defaults:
        """Read defaults from an artifact's `workload`; missing entries keep the values of this class."""
        known = workload or {}
        names = ("ttft_slo_s", "tpot_slo_s", "ttlt_slo_s", "first_token_weight")
        numbers = {name: float(known[name]) for name in names if known.get(name) is not None}
        weights = {int(priority): float(w) for priority, w in (known.get("weight_of_priority") or {}).items()}
        return cls(weight_of_priority=weights, **numbers)


@dataclasses.dataclass(frozen=True)
class Terms:
    """The terms of one request; malformed: number of invalid values that it sent."""

    ttft_slo_s: float
    tpot_slo_s: float
    ttlt_slo_s: float
    weight: float
    predicted_output_tokens: float
    urgency: int
    session_tokens: int
    client: int
    application: int
    malformed: int


class TermsReader:
    """Reads the terms of requests; remembers which clients and applications it has seen."""

    def __init__(self, defaults: Defaults):
        self.defaults = defaults
        self.clients: dict[Hashable, int] = {}
        self.applications: dict[Hashable, int] = {}

    def read(self, extra_args: Any, priority: int) -> Terms:
        """Return the terms of a request with these `vllm_xargs` (SamplingParams.extra_args) and vLLM's priority."""
        sent = extra_args if isinstance(extra_args, Mapping) else {}
        taken = _Taken(sent)
        defaults = self.defaults
        ttlt_slo_s = taken.seconds("ttlt_slo_s", defaults.ttlt_slo_s)
        # Interactive terms that a request sends itself take precedence over a default TTLT.
        interactive = any(name in sent for name in ("ttft_slo_s", "tpot_slo_s", "ttft_slo_ms", "tpot_slo_ms"))
        if interactive and "ttlt_slo_s" not in sent and "ttlt_slo_ms" not in sent:
            ttlt_slo_s = math.inf
        return Terms(
            ttft_slo_s=taken.seconds("ttft_slo_s", defaults.ttft_slo_s),
            tpot_slo_s=taken.seconds("tpot_slo_s", defaults.tpot_slo_s),
            ttlt_slo_s=ttlt_slo_s,
            weight=taken.number("weight", defaults.weight_of_priority.get(priority, 1.0), MOST_WEIGHT),
            predicted_output_tokens=taken.number("predicted_output_tokens", math.nan, MOST_TOKENS),
            urgency=int(taken.number("urgency", 0.0, MOST_TOKENS, least=0.0)),
            session_tokens=int(taken.number("session_tokens", 0.0, MOST_TOKENS * MOST_GROUPS, least=0.0)),
            client=taken.group("client", self.clients) or self.client_of(priority),
            application=taken.group("application", self.applications),
            malformed=taken.malformed + (extra_args is not None and sent is not extra_args),
        )

    def client_of(self, priority: int) -> int:
        """Return the client number of requests of a priority that name no client."""
        return numbered(("priority", priority), self.clients)


class _Taken:
    """Reads values from the arguments that were sent, and counts invalid ones."""

    def __init__(self, sent: Mapping[Any, Any]):
        self.sent, self.malformed = sent, 0

    def number(self, name: str, default: float, most: float, least: float | None = None) -> float:
        """Read a number, also as text, in (0, most], or in [least, most] if `least` is given."""
        if name not in self.sent:
            return default
        value = self.sent[name]
        too_long = isinstance(value, str) and len(value) > MOST_TEXT
        if isinstance(value, int | float | str) and not isinstance(value, bool) and not too_long:
            try:
                number = float(value)
            except (ValueError, OverflowError):
                number = math.nan
            if (number > 0.0 if least is None else least <= number) and number <= most:
                return number
        self.malformed += 1
        return default

    def seconds(self, name: str, default: float) -> float:
        """Read an SLO in seconds, or in milliseconds under xLLM's name."""
        in_milliseconds = name.removesuffix("_s") + MILLISECONDS
        if name not in self.sent and in_milliseconds in self.sent:
            return self.number(in_milliseconds, default * 1e3, MOST_SECONDS * 1e3) / 1e3
        return self.number(name, default, MOST_SECONDS)

    def group(self, name: str, seen: dict[Hashable, int]) -> int:
        """Read the name of a client, or an application, and return its number; 0 without a name."""
        if name not in self.sent:
            return 0
        value = self.sent[name]
        if not isinstance(value, int | str) or isinstance(value, bool) or len(text := _short(value)) > MOST_TEXT:
            self.malformed += 1
            return 0
        return numbered(text, seen)


def numbered(name: Hashable, seen: dict[Hashable, int]) -> int:
    """Return the number of a name: 1, 2, ... in the order of first appearance; later names share the last number."""
    if len(seen) < MOST_GROUPS:
        return seen.setdefault(name, min(len(seen) + 1, MOST_GROUPS - 1))
    return seen.get(name, MOST_GROUPS - 1)


def _short(value: int | str) -> str:
    """Return the value as text; for an int with too many bits to convert, a text longer than MOST_TEXT."""
    if isinstance(value, int) and value.bit_length() > 4 * MOST_TEXT:
        return " " * (MOST_TEXT + 1)
    return str(value)
