"""Which tokens of a workload can still count when a request has a deployment for itself."""

from __future__ import annotations

import dataclasses

import numpy as np

from servegym.evaluation.bounds.least_work import LeastWork

TINY = 1e-9  # relative; times of the simulator are sums of floats


@dataclasses.dataclass
class WorthyTokens:
    """Arrays by request: the gain of its tokens, and which deadlines can be met.

    A first token takes the prompt's least time alone, each later one the least time of an iteration more. A run that
    ends at until_s has no token after it.
    """

    table: np.ndarray
    first_gain: np.ndarray
    later_gain: np.ndarray
    prefill: LeastWork
    decode: LeastWork
    until_s: float

    def __post_init__(self) -> None:
        table = self.table
        self.prompt_tokens = table["prompt_tokens"].astype("f8")
        self.later_tokens = table["output_tokens"] - 1
        # Deadlines as the simulator computes them.
        ttlt = np.isfinite(table["ttlt_slo_s"])
        self.first_deadline_s = table["arrival_s"] + np.where(ttlt, table["ttlt_slo_s"], table["ttft_slo_s"])
        self.interval_s = np.where(ttlt, 0.0, table["tpot_slo_s"])
        self.first_s = self.prefill.prompt_alone_s(self.prompt_tokens)
        self.step_s = self.decode.iteration_s
        self.prefilled_s = table["arrival_s"] + self.first_s * (1 - TINY)  # not before
        first_in_time = self.prefilled_s < np.minimum(self.first_deadline_s, self.until_s * (1 + TINY))
        self.first_worth = np.where(first_in_time, self.first_gain, 0.0)
        self.worthy_later = np.array([self._later(r) for r in range(len(table))])
        self.last_deadline_s = np.where(
            self.worthy_later > 0,
            self.deadline_s(self.later_tokens),
            np.where(first_in_time, self.first_deadline_s, 0.0),
        )
        self.last_deadline_s = np.minimum(self.last_deadline_s, self.until_s * (1 + TINY))
        self.worthy = (self.first_worth > 0) | (self.worthy_later > 0)

    def deadline_s(self, later: np.ndarray | int) -> np.ndarray:
        """Deadline of the `later`-th token after the first, of each request."""
        return self.first_deadline_s + later * self.interval_s

    @property
    def any(self) -> bool:
        return bool(self.worthy.any())

    @property
    def end_s(self) -> float:
        """The last time at which a token can be in time."""
        return float(self.last_deadline_s[self.worthy].max())

    def _later(self, r: int) -> int:
        """Number of tokens after the first that can be in time."""
        if self.later_gain[r] == 0 or self.later_tokens[r] == 0:
            return 0
        return self.later_with_deadline_after(r, -np.inf)

    def later_with_deadline_after(self, r: int, time_s: float) -> int:
        """Number of tokens after the first that have a deadline after time_s that can be met, and that come by
        until_s.
        """
        number = np.arange(1, self.later_tokens[r] + 1)
        deadline_s = self.first_deadline_s[r] + number * self.interval_s[r]
        earliest_s = self.prefilled_s[r] + number * self.step_s * (1 - TINY)
        in_time = earliest_s < np.minimum(deadline_s, self.until_s * (1 + TINY))
        return int(
            (in_time & (deadline_s > time_s - TINY * (1 + abs(time_s)) if np.isfinite(time_s) else in_time)).sum()
        )
