"""Predictors in front of the queues: urgency and output length of a request, and when they are known.

A predictor reads the true output lengths, which policies do not see (semantic scheduling, section 4.1).
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from servegym.errors import PredictorError
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.key_values import key_values

IMMEDIATE, FULL_BATCH = "immediate", "full-batch"
_URGENCY_STREAM, _LENGTH_STREAM = 0, 1


class Predictions(NamedTuple):
    """The predictions of each request, and when it can be scheduled."""

    urgency: np.ndarray  # int32[requests]: level, 0 the most urgent
    predicted_output_tokens: np.ndarray  # float64[requests]
    ready_s: np.ndarray  # float64[requests], s: not decreasing, and not before the arrival


@dataclasses.dataclass(frozen=True)
class Predictor:
    """Predicts urgency levels and output lengths of a workload, with errors and latency.

    urgency_error, length_error: x from 0 to 1. A share x of the requests is predicted wrongly. A wrong prediction is
        off by x times the scale (the levels, or the longest output) on average, by at least one level, to either side,
        and is cut off at the ends of the scale. So the mean distance is less than x times the scale: at 0.9, with 5
        equally likely levels, 2.8 levels and not 4.5.
    urgency_levels: levels are 0 to urgency_levels - 1. longest_output_tokens: the scale of lengths.
    length_buckets: number of equal buckets of 1 to longest_output_tokens, of which the middle is predicted (longer
        outputs are in the last); None: single tokens, and the true length where there is no error.
    processing: "immediate": whenever the predictor is idle, it takes the waiting requests, at most batch_size;
        "full-batch": it waits for batch_size requests, except after the last arrival.
    batch_size: requests in a call. latency_s: of a call. latency_per_request_s: further latency for each request in it.
    seed: of the errors. A larger error is wrong about the same requests and further ones.

    Raises PredictorError for a value out of range, and `predict` for a workload whose urgency is not one of the levels.
    Source: semantic scheduling, section 4.1 (error rates, both modes of processing, 5 levels, 5 buckets, length 500).
    """

    urgency_error: float = 0.0
    length_error: float = 0.0
    urgency_levels: int = 5
    longest_output_tokens: int = 500
    length_buckets: int | None = None
    processing: str = IMMEDIATE
    batch_size: int = 1
    latency_s: float = 0.0
    latency_per_request_s: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for field in ("urgency_error", "length_error"):
            self._check(field, 0 <= getattr(self, field) <= 1, "0 to 1")
        for field in ("urgency_levels", "longest_output_tokens", "batch_size"):
            self._check(field, _is_whole(getattr(self, field), 1), "a whole number of 1 or more")
        buckets = self.length_buckets
        within = buckets is None or (_is_whole(buckets, 1) and buckets <= self.longest_output_tokens)
        self._check("length_buckets", within, "None, or a whole number from 1 to longest_output_tokens")
        for field in ("latency_s", "latency_per_request_s"):
            self._check(field, 0 <= getattr(self, field) < np.inf, "a time of 0 s or more")
        self._check("processing", self.processing in (IMMEDIATE, FULL_BATCH), f"{IMMEDIATE} or {FULL_BATCH}")
        self._check("seed", _is_whole(self.seed, 0), "a whole number of 0 or more")
        if self.urgency_error > 0:
            self._check("urgency_levels", self.urgency_levels > 1, "2 or more, or there is nothing to be wrong about")

    def _check(self, field: str, right: bool, should: str) -> None:
        if not right:
            raise PredictorError(f"predictor: {field} is {getattr(self, field)!r}; it should be {should}")

    @property
    def takes_time(self) -> bool:
        """Whether a request may be ready later than it arrives."""
        return self.latency_s > 0 or self.latency_per_request_s > 0 or self.processing == FULL_BATCH

    def predict(self, workload: Workload) -> Predictions:
        """Return the predictions for all requests of a workload; equal predictors return equal ones."""
        arrival_s = workload.table["arrival_s"]
        ready_s = self.ready_s(arrival_s) if self.takes_time else arrival_s.copy()
        return Predictions(self._urgency(workload), self._output_tokens(workload), ready_s)

    def _urgency(self, workload: Workload) -> np.ndarray:
        urgency = workload.table["urgency"]
        outside = (urgency < 0) | (urgency >= self.urgency_levels)
        if outside.any():
            at = int(np.argmax(outside))
            raise PredictorError(
                f"workload '{workload.name}', request {at}: urgency is {urgency[at]}; a predictor of "
                f"{self.urgency_levels} levels takes 0 to {self.urgency_levels - 1}"
            )
        return self._mistaken(urgency, self.urgency_levels, self.urgency_error, _URGENCY_STREAM).astype("i4")

    def _output_tokens(self, workload: Workload) -> np.ndarray:
        """Return float64[requests]: predicted lengths. A wrong one is that of another bucket."""
        output_tokens = workload.table["output_tokens"]
        buckets = self.longest_output_tokens if self.length_buckets is None else self.length_buckets
        bucket_tokens = self.longest_output_tokens / buckets
        true = np.minimum(np.ceil(output_tokens / bucket_tokens).astype("i8") - 1, buckets - 1)
        predicted = self._mistaken(true, buckets, self.length_error, _LENGTH_STREAM)
        if self.length_buckets is None:
            return np.where(predicted == true, output_tokens, predicted + 1).astype("f8")
        return (predicted + 0.5) * bucket_tokens

    def _mistaken(self, true: np.ndarray, levels: int, error: float, stream: int) -> np.ndarray:
        """Return int64[requests]: levels, of which a share `error` is wrong by `error` times `levels` on average.

        The distance is rounded up or down at random, so that its mean is exact.
        """
        draw = np.random.default_rng([self.seed, stream]).random((3, len(true)))
        wrong = np.zeros(len(true), bool)
        wrong[np.argsort(draw[0], kind="stable")[: round(error * len(true))]] = True
        if levels == 1 or not wrong.any():
            return true.astype("i8")
        distance = np.maximum(1, np.floor(error * levels + draw[1])).astype("i8")
        below, above = np.maximum(true - distance, 0), np.minimum(true + distance, levels - 1)
        up = np.where(above == true, False, (below == true) | (draw[2] < 0.5))
        return np.where(wrong, np.where(up, above, below), true).astype("i8")

    def ready_s(self, arrival_s: np.ndarray) -> np.ndarray:
        """Return float64[requests], s: when each request has been predicted, first come first served.

        arrival_s: not decreasing. The paper's two predictors run in parallel and take equally long, so one is enough.
        """
        ready_s = np.empty(len(arrival_s))
        free_s, first = -np.inf, 0
        while first < len(arrival_s):
            start_s = max(free_s, arrival_s[first])
            if self.processing == FULL_BATCH:
                end = min(first + self.batch_size, len(arrival_s))
                start_s = max(start_s, arrival_s[end - 1])
            else:
                waiting = int(np.searchsorted(arrival_s, start_s, "right"))
                end = min(first + self.batch_size, waiting)
            free_s = start_s + self.latency_s + (end - first) * self.latency_per_request_s
            ready_s[first:end] = free_s
            first = end
        return ready_s


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)


def predictor_of(text: str) -> Predictor:
    """Read a predictor from "key=value,key=value". Raises PredictorError for an unknown key or an invalid value."""
    fields = {field.name: field.default for field in dataclasses.fields(Predictor)}
    settings: dict[str, object] = {}
    for key, value in key_values(filter(None, text.split(",")), f"predictor {text!r}", fields, PredictorError):
        try:
            settings[key] = value if isinstance(fields[key], str) else _number(value)
        except ValueError:
            raise PredictorError(f"predictor {text!r}: {key} should be a number") from None
    return Predictor(**settings)  # type: ignore[arg-type]


def _number(text: str) -> float:
    return float(text) if any(letter in text for letter in ".eEn") else int(text)
