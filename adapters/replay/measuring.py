"""Scores a replay as a simulation is scored: with the same gain function, tables and figures."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from servegym.adapters.replay.records import NOT_SENT, Replayed
from servegym.baselines.registry import scheduler
from servegym.latency_models.model import LatencyModel
from servegym.simulator.batching.ends import emit
from servegym.simulator.compilation import numba_types as types
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.gains import Gain
from servegym.simulator.records import types as layout
from servegym.simulator.records.requests import begin_requests
from servegym.simulator.records.signatures import REQUESTS, array, compiled, gain_signature
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.sessions import add_session_gains
from servegym.simulator.runs.simulation import Simulation

if TYPE_CHECKING:
    import pandas as pd

# Figures that a client of an engine cannot know.
UNKNOWN = (
    "evictions", "saved_tokens", "loaded_tokens", "cached_tokens", "cached_share", "reroutes", "lost_tokens",
    "iterations", "scheduling_rounds", "blocking_mean_s", "blocking_longest_s", "kv_use_mean", "kv_use_peak",
    "cost_engine_s", "energy_kwh_at_most", "energy_kwh_at_most_per_million_tokens",
)  # fmt: skip
UNKNOWN_OF_REQUESTS = ("engine", "ready_s", "admitted_s", "evictions", "reroutes", "cached_tokens")


@compiled(
    types.void(
        array(layout.RUN_STATUS),
        REQUESTS,
        array(layout.OUTCOME),
        array(types.int64),  # the histogram of token intervals
        array(types.int64),  # offsets[requests + 1]: request r has tokens offsets[r] to offsets[r + 1]
        array(types.float64),  # the tokens' times
        types.FunctionType(gain_signature),
    )
)
def tell_tokens(status, requests, outcomes, histogram, offsets, token_s, gain):
    """Deliver every received token in the run, as at the end of a simulated iteration."""
    for r in range(requests.shape[0]):
        request, outcome = requests[r], outcomes[r]
        for k in range(offsets[r], offsets[r + 1]):
            earned = gain(request, outcome, token_s[k])
            emit(request, outcome, status[0], histogram, earned, token_s[k])
        if request.num_output_tokens == outcome.output_tokens:
            outcome.finish_s = outcome.last_token_s
            status[0].finished += 1


class Measured(Result):
    """The result of a replay: a `Result` whose tokens came from a live endpoint.

    summary has the figures of a simulation's; those that a client cannot know (`UNKNOWN`) are None. It adds `statuses`
    (number of requests by how they ended), `reasons`, `lateness_s` (of sending) and `interrupted`. Requests that were
    not sent, after an interruption, are not counted.
    """

    def __init__(self, workload: Workload, replayed: Replayed, gain: Gain | None = None):
        limits = replayed.limits
        scenario = Scenario(
            workload, _unknown_engine(), scheduler("vllm-v1"), gain or Gain(),
            clients=limits.clients, max_concurrency=limits.max_concurrency,
        )  # fmt: skip
        simulation = Simulation(scenario)
        arrays = simulation.arrays
        if scenario.arrivals_depend:  # a request that had to wait for others arrives when it is due
            arrays.requests["arrival_s"] = [record.due_s for record in replayed.records]
            begin_requests(arrays.requests)
        if workload.turns is not None:
            arrays.requests["session"] = workload.turns.session
        tokens = [record.token_s for record in replayed.records]
        offsets = np.concatenate([[0], np.cumsum([len(times) for times in tokens])]).astype("i8")
        token_s = np.concatenate([np.asarray(times, "f8") for times in tokens])
        tell_tokens(
            arrays.status, arrays.requests, arrays.outcomes, arrays.tbt_histogram, offsets, token_s,
            scenario.gain.function.value,
        )  # fmt: skip
        if workload.turns is not None:
            add_session_gains(arrays, simulation.router_state.following)
        status = arrays.status[0]
        status.next_arrival = sum(record.status != NOT_SENT for record in replayed.records[: workload.known])
        sent_s = [record.sent_s for record in replayed.records if math.isfinite(record.sent_s)]
        status.now_s = max([*token_s.tolist(), *sent_s, 0.0])
        self.replayed, self.offsets, self.token_s = replayed, offsets, token_s
        super().__init__(scenario, arrays, replayed.wall_s)

    @functools.cached_property
    def summary(self) -> dict[str, Any]:
        lateness_s = np.array([record.lateness_s for record in self._sent])
        return {
            **super().summary,
            **dict.fromkeys(UNKNOWN),
            "statuses": self.replayed.counts(),
            "reasons": self.replayed.reasons(),
            "lateness_s": {"mean": float(lateness_s.mean()), "max": float(lateness_s.max())} if len(lateness_s) else {},
            "interrupted": self.replayed.interrupted,
        }

    def _of_sessions(self) -> dict[str, np.ndarray]:
        columns = super()._of_sessions()
        if columns:  # a turn is sent even if the one before it failed
            columns["came_s"] = np.array([record.came_s for record in self._sent])
        return columns

    @property
    def _sent(self) -> list[Any]:
        return [record for record in self.replayed.records if record.status != NOT_SENT]

    @property
    def requests(self) -> pd.DataFrame:
        """One row for each request that was sent; times in seconds since the replay began."""
        table = super().requests.drop(columns=list(UNKNOWN_OF_REQUESTS))
        for name in ("sent_s", "lateness_s", "status", "reason", "http_status"):
            table[name] = [getattr(record, name) for record in self._sent]
        table["server_prompt_tokens"] = [record.prompt_tokens for record in self._sent]
        return table

    @property
    def tokens(self) -> pd.DataFrame:
        """One row a token: request, token (from 1), time_s."""
        import pandas as pd

        counts = np.diff(self.offsets)
        return pd.DataFrame(
            {
                "request": np.repeat(np.arange(len(counts)), counts),
                "token": np.arange(len(self.token_s)) - np.repeat(self.offsets[:-1], counts) + 1,
                "time_s": self.token_s,
            }
        )

    def tables(self, timeline: bool = True) -> dict[str, pd.DataFrame]:
        """Return the tables that `save` writes, by name: requests and tokens."""
        return {"requests": self.requests, "tokens": self.tokens}


def _unknown_engine() -> Deployment:
    """Make an engine with room for any request and without a device model."""
    nothing = LatencyModel.from_values("linear", dict.fromkeys(("a_p", "b_p", "c_p", "a_d", "b_d", "t_c"), 0.0))
    return Deployment(nothing, nothing, total_blocks=2**6, block_tokens=2**20, name="a live endpoint")
