"""Streaming: runs that keep only the requests under way in memory.

The rows of all requests of the trace are reserved in virtual memory, of which the system allocates a page when it is
first written to. A chunk of the trace is written to its rows just before the run gets there, and the pages of requests
that have ended are released. So the loop is the same, a request has its usual index, and the results are equal.
"""

from __future__ import annotations

import dataclasses
import mmap
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from servegym.errors import DeploymentError
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario, token_budget_within
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.gains import BY_TOKEN
from servegym.simulator.records.fields import bytes_of
from servegym.simulator.records.state import RouterState, SimulationState
from servegym.simulator.runs.arrays import fresh_outcomes, fresh_requests
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation

NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)  # in mmap from Python 3.13 on


class WholeTrace(NamedTuple):
    """What must be known of all requests before a run begins.

    sample: some of the requests, including one of each TPOT SLO, client and application, those with the longest prompt
    and context, the first and the last. requests: their number. mean_...: over all of them.
    """

    sample: Workload
    requests: int
    mean_prompt_tokens: float
    mean_output_tokens: float


@dataclasses.dataclass(frozen=True)
class StreamedScenario(Scenario):
    """A scenario of a sample, in which facts for policies use the mean prompt of the whole trace."""

    mean_prompt_tokens: float = np.nan

    def facts_of(self, pool: Deployment) -> Callable[[str], float]:
        known, slo_s = super().facts_of(pool), float(self.workload.table["tpot_slo_s"].min())

        def fact(name: str) -> float:
            if name == "profiled_token_budget":
                return float(token_budget_within(slo_s, self.mean_prompt_tokens / 2, pool.estimator))
            return known(name)

        return fact


class Pages:
    """Zeros of a dtype, of which only pages that are written to take memory."""

    def __init__(self, rows: int, dtype: np.dtype, columns: int = 1) -> None:
        self.row_bytes = dtype.itemsize * columns
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
        self.memory = mmap.mmap(-1, max(rows * self.row_bytes, 1), flags=private)
        self.rows = np.frombuffer(self.memory, dtype, rows * columns)
        self.given_back = 0

    def give_back(self, end: int) -> None:
        """Release the memory of rows before `end`."""
        to = end * self.row_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        if to > self.given_back:
            self.memory.madvise(mmap.MADV_DONTNEED, self.given_back, to - self.given_back)
            self.given_back = to


class StreamedSimulation(Simulation):
    """A run over a trace that comes in chunks.

        simulation = StreamedSimulation(scenario, trace)  # of trace.sample
        for result in simulation.stream(chunks):           # Workloads, in order of arrival
            ...                                            # of requests that have ended, in the order of the trace

    Memory is needed for the requests from the first unfinished one to the end of the present chunk. Raises
    DeploymentError for a feature that needs earlier or later requests.
    """

    def __init__(self, scenario: Scenario, trace: WholeTrace) -> None:
        check_streamable(scenario)
        gain = scenario.gain
        if gain.name in BY_TOKEN and gain.first_weight is None:
            gain = dataclasses.replace(gain, first_weight=trace.mean_prompt_tokens / trace.mean_output_tokens)
        given = {field.name: getattr(scenario, field.name) for field in dataclasses.fields(Scenario)}
        self.trace = trace
        super().__init__(StreamedScenario(**given | {"gain": gain}, mean_prompt_tokens=trace.mean_prompt_tokens))
        table = trace.sample.table
        self.client = "client" if table["client"].any() else "priority"  # as `settings.clients_of`
        self.clients, self.applications = np.unique(table[self.client]), np.unique(table["application"])
        self.window = table[:0]  # rows of the requests from `first` to `loaded`
        self.ids = np.zeros(0, object)  # their identifiers, if the trace has any
        self.loaded = self.first = 0

    def _fresh(self) -> tuple[SimulationState, RouterState]:
        arrays, router_state = super()._fresh()
        rows, kept = self.trace.requests, arrays.state.requests
        self.pages = [Pages(rows, arrays.requests.dtype), Pages(rows, arrays.outcomes.dtype)]
        state = arrays.state
        if len(kept):
            self.pages.append(Pages(rows, kept.dtype, kept.shape[1]))
            state = state._replace(requests=self.pages[2].rows.reshape(rows, kept.shape[1]))
        arrays.status["front"]["known"] = rows
        requests, outcomes = (pages.rows for pages in self.pages[:2])
        return arrays._replace(requests=requests, outcomes=outcomes, state=state), router_state

    def stream(self, chunks: Iterator[Workload]) -> Iterator[Result]:
        """Serve all requests, and yield results of those that have ended. Read each result before the next."""
        until_s = self.scenario.until_s
        for chunk in chunks:
            self._load(chunk)
            arrival_s = float(chunk.table["arrival_s"][-1])
            if self.loaded == self.trace.requests:
                self._advance_to(until_s)
            elif arrival_s > self.arrays.status[0].now_s:  # the last one waits for the next chunk
                self._advance_to(min(float(np.nextafter(arrival_s, -np.inf)), until_s))
            yield from self._those_ended()
        came = int(self.arrays.status[0].next_arrival)
        if came > self.first:
            yield self._part(came)

    def _advance_to(self, until_s: float) -> None:
        self.scenario = dataclasses.replace(self.scenario, until_s=until_s)
        self._advance(stop_at=0)

    def _load(self, chunk: Workload) -> None:
        """Write a chunk of the trace to its rows."""
        for pool in self.scenario.deployment.pools:
            pool.check_adapters(chunk)
        first, self.loaded = self.loaded, self.loaded + len(chunk)
        scenario = dataclasses.replace(self.scenario, workload=chunk)
        settings = self.settings._replace(
            clients=np.searchsorted(self.clients, chunk.table[self.client]),
            applications=np.searchsorted(self.applications, chunk.table["application"]),
        )
        for there, rows in (
            (self.arrays.requests, fresh_requests(scenario, settings)),
            (self.arrays.outcomes, fresh_outcomes(scenario, None)),
        ):
            bytes_of(there[first : self.loaded])[...] = bytes_of(rows)
        self.window = np.concatenate([self.window, chunk.table])
        if chunk.ids is not None:
            self.ids = np.concatenate([self.ids, chunk.ids])

    def _those_ended(self) -> Iterator[Result]:
        """Yield the result of the requests before the first unfinished one, if any, and release their pages."""
        came = int(self.arrays.status[0].next_arrival)
        outcomes = self.arrays.outcomes[self.first : came]
        unfinished = np.isnan(outcomes["finish_s"]) & np.isnan(outcomes["refused_s"])
        end = self.first + int(np.argmax(unfinished)) if unfinished.any() else came
        if end > self.first:
            yield self._part(end)

    def _part(self, end: int) -> Result:
        """Return the result of the requests up to `end`, and release their pages."""
        first, self.first = self.first, end
        ids = self.ids[: end - first] if len(self.ids) else None
        part = self._result_of(first, end, self.window[: end - first], ids)
        self.window, self.ids = self.window[end - first :].copy(), self.ids[end - first :].copy()
        for pages in self.pages:
            pages.give_back(end)
        return part

    def _result_of(self, first: int, end: int, table: np.ndarray, ids: np.ndarray | None = None) -> Result:
        status = self.arrays.status.copy()
        status["next_arrival"] = end - first
        arrays = self.arrays._replace(
            status=status,
            requests=self.arrays.requests[first:end].copy(),
            outcomes=self.arrays.outcomes[first:end].copy(),
        )
        workload = Workload(table.copy(), self.trace.sample.name, self.trace.sample.provenance, ids=ids)
        return Result(dataclasses.replace(self.scenario, workload=workload), arrays, self.wall_s)

    def whole(self) -> Result:
        """Return the result of the run without requests: engines, and figures that are not about requests."""
        arrays = self.arrays
        status = arrays.status.copy()
        status["next_arrival"] = 0
        rows = slice(len(self.scenario.workload))  # as many as the sample has, none of which has arrived
        none = arrays._replace(status=status, requests=arrays.requests[rows], outcomes=arrays.outcomes[rows])
        return Result(self.scenario, none, self.wall_s)


def check_streamable(scenario: Scenario) -> None:
    """Raise DeploymentError for a scenario that cannot be streamed."""
    pools = scenario.deployment.pools
    for wrong, what in (
        (scenario.arrivals_depend, "arrivals that depend on completions (sessions, clients, max_concurrency)"),
        (scenario.workload.prefixes is not None, "shared prefixes of prompts (prefix blocks)"),
        (scenario.predictor is not None, "a predictor, which reads all requests before the first"),
        (scenario.front_end is not None and scenario.front_end.takes_time, "a front end"),
        (scenario.takes_back, "requests that are taken back (a scaler, incidents, a router that moves engines)"),
        (getattr(scenario.deployment, "signal_delay_s", 0.0) > 0, "delayed signals (signal_delay_s)"),
        (any(pool.adapters is not None for pool in pools), "LoRA adapters, which are numbered beforehand"),
        (any(pool.async_scheduling for pool in pools), "batches that are formed ahead (async_scheduling)"),
    ):
        if wrong:
            raise DeploymentError(f"a trace cannot be streamed with {what}; leave that out, or run without streaming")
