"""Gain functions: the gain of a token when it is emitted (ProServe, section 2 and Table 1)."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from servegym.errors import GainError, unknown_name
from servegym.simulator.compilation.kernels import Compiled, kernel
from servegym.simulator.features.session_dependencies import NO_TURN
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.key_values import YES_OR_NO, key_values
from servegym.simulator.records.requests import next_deadline_s
from servegym.simulator.records.signatures import gain

OUTPUT_WORTH = 8.0  # gain of an output token over that of a prompt token in Tempo's public code


@gain
def tdg(request, outcome, now_s):
    """Token-level Deadline-aware Gain (Eq. 3): the token's weight if it is emitted strictly before its deadline."""
    if now_s < next_deadline_s(request):
        return request.first_token_gain if request.num_output_tokens == 0 else request.decode_token_gain
    return 0.0


@gain
def ta_slo(request, outcome, now_s):
    """Token-level Accumulated SLO (Eq. 2): the first token by TTFT, each later one by its interval, TBT < TPOT SLO.

    A request with a TTLT SLO has no intervals: its tokens count until its deadline.
    """
    if request.num_output_tokens == 0:
        return request.first_token_gain if now_s < request.first_deadline_s else 0.0
    if request.ttlt_slo_s < np.inf:
        in_time = now_s < request.first_deadline_s
    else:
        in_time = now_s - outcome.last_token_s < request.tpot_slo_s
    return request.decode_token_gain if in_time else 0.0


@kernel
def attains_slo(request, outcome, now_s):
    """Return whether the token emitted now is the last, and the request met its TTFT and mean TPOT SLOs (or TTLT)."""
    if request.num_output_tokens + 1 < outcome.output_tokens:
        return False
    if request.ttlt_slo_s < np.inf:
        return now_s - request.arrival_s < request.ttlt_slo_s
    if request.num_output_tokens == 0:
        return now_s - request.arrival_s < request.ttft_slo_s
    tpot_s = (now_s - outcome.first_token_s) / request.num_output_tokens
    return outcome.first_token_s - request.arrival_s < request.ttft_slo_s and tpot_s < request.tpot_slo_s


@gain
def weighted_slo(request, outcome, now_s):
    """Weighted SLO attainment (Eq. 1): the request's weight with its last token if it met its SLOs."""
    return request.weight if attains_slo(request, outcome, now_s) else 0.0


@gain
def vanilla_slo(request, outcome, now_s):
    """SLO attainment: 1 with the last token if the request met its SLOs."""
    return 1.0 if attains_slo(request, outcome, now_s) else 0.0


@gain
def tempo(request, outcome, now_s):
    """Tempo's service gain: 1 for a prompt token and `OUTPUT_WORTH` for an output token, less if they are late.

    The prompt counts with the first token, times TTFT SLO / TTFT if that is late; an output token counts times
    (tokens emitted) / (tokens due by now) if that is below 1. With a TTLT SLO all is earned with the last token, times
    TTLT SLO / TTLT if that is late.
    """
    elapsed_s, out = now_s - request.arrival_s, request.num_output_tokens + 1
    if request.ttlt_slo_s < np.inf:
        if out < outcome.output_tokens:
            return 0.0
        whole = request.prompt_tokens + OUTPUT_WORTH * out
        return whole if elapsed_s <= request.ttlt_slo_s else whole * request.ttlt_slo_s / elapsed_s
    ttft_s = elapsed_s if out == 1 else outcome.first_token_s - request.arrival_s
    due = (elapsed_s - min(ttft_s, request.ttft_slo_s)) / request.tpot_slo_s
    earned = OUTPUT_WORTH if due <= out else OUTPUT_WORTH * out / due
    if out == 1:
        in_time = elapsed_s <= request.ttft_slo_s
        earned += request.prompt_tokens if in_time else request.prompt_tokens * request.ttft_slo_s / elapsed_s
    return earned


@gain
def session_slo(request, outcome, now_s):
    """The gain of a request outside sessions: its weight with the last token if that meets the request's SLOs.

    The gain of a session is counted in `front.end_in_engine`.
    """
    if request.session >= 0 or request.num_output_tokens + 1 < outcome.output_tokens:
        return 0.0
    slo_s = request.ttft_slo_s + (outcome.output_tokens - 1) * request.tpot_slo_s
    if request.ttlt_slo_s < np.inf:
        slo_s = request.ttlt_slo_s
    return request.weight if now_s <= request.arrival_s + slo_s else 0.0


BY_TOKEN: dict[str, Compiled] = {"tdg": tdg, "ta-slo": ta_slo}
BY_REQUEST: dict[str, Compiled] = {"weighted-slo": weighted_slo, "vanilla-slo": vanilla_slo}
TEMPO, BY_SESSION = "tempo", "session-slo"
FUNCTIONS = BY_TOKEN | BY_REQUEST | {TEMPO: tempo, BY_SESSION: session_slo}


@dataclasses.dataclass(frozen=True)
class Gain:
    """A gain function and the weights of tokens, which policies see too.

    name: tdg, ta-slo, tempo, weighted-slo, vanilla-slo or session-slo.
    first_weight: w_p, gain of a first token; None: mean prompt tokens / mean output tokens of the workload.
    decode_weight: w_d, gain of a later token.
    buffered_first_token: if True, later deadlines count from the first token's deadline; if False, from the first
    token if that is earlier (ProServe, footnote 2).
    """

    name: str = "tdg"
    first_weight: float | None = None
    decode_weight: float = 1.0
    buffered_first_token: bool = True

    def __post_init__(self) -> None:
        if self.name not in FUNCTIONS:
            raise GainError(unknown_name("gain function", self.name, sorted(FUNCTIONS)))
        for field in ("first_weight", "decode_weight"):
            value = getattr(self, field)
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise GainError(f"gain {self.name}: {field} is {value}; it should be 0 or more")

        if self.name in BY_TOKEN and self.first_weight == self.decode_weight == 0:
            raise GainError(f"gain {self.name}: first_weight and decode_weight are 0; one of them should be above 0")

    @property
    def function(self) -> Compiled:
        return FUNCTIONS[self.name]

    def token_gains(self, workload: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return float64[requests] twice: the gain of a first and of a later token of each request."""
        first_weight = self.first_weight
        if first_weight is None:
            first_weight = workload["prompt_tokens"].mean() / workload["output_tokens"].mean()
        return workload["weight"] * first_weight, workload["weight"] * self.decode_weight

    def of_sessions(self, workload: Workload) -> np.ndarray:
        """Return float64[requests]: the gain of a whole session at its first request, 0 at others."""
        begins = True if workload.turns is None else workload.turns.after == NO_TURN
        return np.where(begins & (self.name == BY_SESSION), workload.table["weight"], 0.0)

    def ideal(self, workload: Workload) -> np.ndarray:
        """Return float64[requests]: the gain of each request if all is in time; a session's is at its first request."""
        table = workload.table
        if self.name == BY_SESSION:
            return self.of_sessions(workload)
        if self.name == "vanilla-slo":
            return np.ones(len(table))
        if self.name in BY_REQUEST:
            return table["weight"].copy()
        if self.name == TEMPO:
            return table["prompt_tokens"] + OUTPUT_WORTH * table["output_tokens"]
        first, decode = self.token_gains(table)
        return first + (table["output_tokens"] - 1) * decode


def gain_of(text: str) -> Gain:
    """Read a gain from "name" or "name:key=value,key=value" with the keys of `Gain`; flags are yes or no.

    Raises GainError for an unknown name or key, or a wrong value.
    """
    name, _, rest = text.partition(":")
    settings: dict[str, float | bool] = {}
    for key, value in key_values(filter(None, rest.split(",")), f"gain {text!r}", SETTINGS, GainError):
        if key == BUFFERED:
            if value not in YES_OR_NO:
                raise GainError(f"gain {text!r}: {key} is {value!r}; it should be yes or no")
            settings[key] = YES_OR_NO[value]
            continue
        try:
            settings[key] = float(value)
        except ValueError:
            raise GainError(f"gain {text!r}: {key} is {value!r}; it should be a number, 0 or more") from None
    return Gain(name, **settings)  # type: ignore[arg-type]


BUFFERED = "buffered_first_token"
SETTINGS = tuple(field.name for field in dataclasses.fields(Gain) if field.name != "name")
