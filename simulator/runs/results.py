"""Results of a run: tables of requests, engines and the timeline, and a summary."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from servegym.simulator.features.ahead import emitted_of
from servegym.simulator.features.front import came_s, has_arrived
from servegym.simulator.inputs.costs import costs_of_pools
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import FIELDS
from servegym.simulator.records.state import SimulationState
from servegym.simulator.records.types import ROLE_PREFILL, ROLES, TIMELINE_KINDS
from servegym.simulator.runs.fairness import length_groups
from servegym.simulator.runs.figures import FIGURES, OF_DRAFTS, OF_ENGINES, OF_REFUSALS, OF_SESSIONS
from servegym.simulator.runs.sessions import session_columns
from servegym.simulator.runs.slos import LATENCIES, latencies_of, starved, violated, within_slos

if TYPE_CHECKING:
    import pandas as pd

DRAFTING = ("drafted_tokens", "accepted_tokens")


class Result:
    """The results of a run. They count only requests that have arrived.

    summary: a dict of figures with units in their names. requests, engines, sessions, timeline: pandas tables.
    wall_s: seconds spent in the event loop.
    """

    def __init__(self, scenario: Scenario, arrays: SimulationState, wall_s: float):
        self.scenario: Scenario = scenario
        self.arrays: SimulationState = arrays
        self.wall_s = wall_s

    @functools.cached_property
    def columns(self) -> dict[str, np.ndarray]:
        arrived = self.arrived
        table = self.scenario.workload.table[arrived]
        outcome = self.arrays.outcomes[arrived]
        # Arrivals of the run, as the table has only those known beforehand; earlier by the response latency.
        arrival_s = self.arrays.requests["arrival_s"][arrived]
        back_s = self.arrays.status[0].front_end.way_back_s
        ttft_s, tpot_s, ttlt_s = latencies_of(table, arrival_s, outcome["first_token_s"], outcome["finish_s"])
        run, workload = self.arrays, self.scenario.workload
        return {
            **{field: table[field] for field in FIELDS if field != "adapter" or workload.table[field].any()},
            "arrival_s": arrival_s + back_s,
            "engine": self.arrays.requests["engine"][arrived],
            "num_output_tokens": emitted_of(self.arrays.requests, self.arrays.outcomes)[arrived],
            "ready_s": outcome["ready_s"],
            "admitted_s": outcome["admitted_s"],
            "first_token_s": outcome["first_token_s"] + back_s,
            "finish_s": outcome["finish_s"] + back_s,
            "ttft_s": ttft_s,
            "tpot_s": tpot_s,
            "ttlt_s": ttlt_s,
            "ttlt_s_per_token": ttlt_s / table["output_tokens"],
            "longest_tbt_s": outcome["longest_tbt_s"],
            "on_time_tokens": outcome["on_time_tokens"],
            "evictions": outcome["evictions"],
            "reroutes": outcome["reroutes"],
            "cached_tokens": outcome["cached_tokens"],
            "attained": within_slos(table, ttft_s, tpot_s, ttlt_s),
            "violated": violated(run, workload, float(run.status[0].now_s))[arrived],
            "starved": starved(table, ttft_s, ttlt_s, np.isfinite(outcome["refused_s"])),
            "gain": outcome["gain"],
            "ideal_gain": self.scenario.gain.ideal(self.scenario.workload)[arrived],
            **({} if workload.ids is None else {"request_id": workload.ids[arrived]}),
            **({"refused_s": outcome["refused_s"] + back_s} if len(run.engines) > 1 else {}),
            **self._of_sessions(),
            **self._at_engines(),
        }

    def _of_sessions(self) -> dict[str, np.ndarray]:
        """Return the columns for arrivals that depend on completions."""
        if not self.scenario.arrivals_depend:
            return {}
        workload = self.scenario.workload
        turns, columns = workload.turns, {"request": np.arange(len(workload)), "came_s": came_s(self.arrays, workload)}
        if turns is not None:
            columns |= {"session": turns.session, "after": turns.after}
        return {name: column[self.arrived] for name, column in columns.items()}

    def _adapters_at_engines(self) -> dict[str, np.ndarray]:
        """Return how often each engine loaded and activated LoRA adapters, if any engine serves some."""
        adapters = self.arrays.engines["adapters"]
        if not adapters["max_loras"].any():
            return {}
        return {"adapter_loads": adapters["loads"], "adapter_activations": adapters["activations"]}

    @property
    def speculates(self) -> bool:
        """Whether any engine uses speculative decoding."""
        return any(pool.speculation is not None for pool in self.scenario.deployment.pools)

    def _at_engines(self) -> dict[str, np.ndarray]:
        """Return latencies as engines measure them, if there is a front end between them and clients."""
        if self.scenario.front_end is None or not self.scenario.front_end.takes_time:
            return {}
        table, outcomes = self.scenario.workload.table, self.arrays.outcomes
        ready_s, first_token_s = outcomes["ready_s"], self.arrays.requests["first_token_s"]
        finish_s = np.where(np.isfinite(outcomes["finish_s"]), outcomes["last_token_s"], np.nan)
        latencies = latencies_of(table, ready_s, first_token_s, finish_s)
        columns = {
            "engine_first_token_s": first_token_s,
            "engine_finish_s": finish_s,
            **{f"engine_{name}": latency for name, latency in zip(LATENCIES, latencies, strict=True)},
            "engine_attained": within_slos(table, *latencies),
        }
        return {name: column[self.arrived] for name, column in columns.items()}

    @functools.cached_property
    def arrived(self) -> np.ndarray | slice:
        """Index of the requests that have arrived: a slice of the first ones, or bool[requests]."""
        if self.scenario.workload.turns is None:
            return slice(int(self.arrays.status[0].next_arrival))
        return has_arrived(self.arrays)

    @functools.cached_property
    def priorities(self) -> dict[int, np.ndarray]:
        """bool[requests] by priority: which requests have it."""
        column = self.columns["priority"]
        return {one: column == one for one in sorted(set(column.tolist()))}

    @functools.cached_property
    def length_groups(self) -> np.ndarray:
        """`fairness.length_groups` of the requests that have arrived."""
        return length_groups(self.scenario.workload.table[self.arrived])

    @property
    def requests(self) -> pd.DataFrame:
        """A row for each request, in the order of the workload; times in s, from the start of the run unless intervals.

        refused_s: only with several engines. request_id: only if the workload has ids. If arrivals depend on
        completions: request, its index (not all may have arrived); came_s, its arrival at the front. With sessions:
        session, the first request of its session; after, the request that it follows (-1: none). With a front end,
        times are the client's, and engine_... are the engine's: times of tokens, and latencies from ready_s on.
        """
        import pandas as pd

        return pd.DataFrame(self.columns, index=self.columns.get("request"))

    @functools.cached_property
    def session_columns(self) -> dict[str, np.ndarray]:
        return session_columns(self)

    @property
    def sessions(self) -> pd.DataFrame:
        """A row for each session that has begun (`session_columns`); empty if the workload has none."""
        import pandas as pd

        return pd.DataFrame() if self.scenario.workload.turns is None else pd.DataFrame(self.session_columns)

    @property
    def engines(self) -> pd.DataFrame:
        """A row for each engine.

        role, tier: at the end; tier -1: the common pool. requests: prefilled there (prefill engines that never changed
        their role), else finished there. role_changes: only if roles can change. rounds: times its scheduler was asked.
        suspensions: of running batches; blocking_mean_s, blocking_longest_s: times from the decision to the suspension
        (nan, 0: there were none). cached_tokens: found in its prefix cache or store at first admissions; cached_share:
        of all tokens admitted then (nan: none); regained_tokens: found at later admissions; overwritten_blocks: named
        blocks taken for other contents. recalled: requests taken back; lost_tokens: their lost KV. service_s: time in
        service. utilisation, kv_use_mean: over the whole run, in service or not.
        """
        import pandas as pd

        engines, span_s = self.arrays.engines, float(self.arrays.status[0].now_s)
        changes = any(pool.role_change_s is not None for pool in self.scenario.deployment.pools)
        totals = engines["totals"]
        times = totals["suspensions"]
        return pd.DataFrame(
            {
                "engine": engines["index"],
                "pool": engines["pool"],
                "role": [ROLES[role] for role in engines["role"]],
                "tier": engines["tier"],
                **({"role_changes": totals["role_changes"]} if changes else {}),
                "requests": self._requests_served(),
                "iterations": engines["iterations"],
                "evictions": totals["evictions"],
                "scheduled_tokens": engines["scheduled_tokens"],
                "num_output_tokens": totals["num_output_tokens"],
                "busy_s": engines["busy_s"],
                **{name: totals[name] for name in ("peak_blocks", "saved_tokens", "loaded_tokens")},
                **{name: totals[name] for name in ("cached_tokens", "regained_tokens", "overwritten_blocks")},
                "cached_share": share_of(totals["cached_tokens"], totals["admitted_tokens"]),
                **({name: totals[name] for name in DRAFTING} if self.speculates else {}),
                **self._adapters_at_engines(),
                **{name: totals[name] for name in ("failures", "recalled", "lost_tokens")},
                "rounds": engines["rounds"],
                "suspensions": times,
                "blocking_mean_s": np.where(times > 0, engines["totals"]["blocking_s"] / np.maximum(times, 1), np.nan),
                "blocking_longest_s": engines["totals"]["longest_blocking_s"],
                "service_s": self.service_s(),
                "utilisation": engines["busy_s"] / span_s if span_s else np.zeros(len(engines)),
                "kv_use_mean": self.kv_use_mean(),
                "kv_use_peak": engines["totals"]["peak_blocks"] / engines["total_blocks"],
            }
        )

    def _requests_served(self) -> np.ndarray:
        """Return int64[engines]: requests served. A prefill engine emits one token for each of its requests."""
        engines, requests = self.arrays.engines, self.arrays.requests
        finished = requests["engine"][np.isfinite(self.arrays.outcomes["finish_s"])]
        return np.where(
            (engines["role"] == ROLE_PREFILL) & (engines["totals"]["role_changes"] == 0),
            engines["totals"]["num_output_tokens"],
            np.bincount(finished, minlength=len(engines)),
        )

    def service_s(self) -> np.ndarray:
        """Return float64[engines]: time in service up to the end of the run, in s."""
        engines = self.arrays.engines
        since_s = self.arrays.status[0].now_s - engines["totals"]["serving_since_s"]  # nan: not in service then
        return engines["totals"]["service_s"] + np.where(np.isnan(since_s), 0.0, since_s)

    def kv_use_mean(self) -> np.ndarray:
        """Return float64[engines]: mean share of KV blocks in use over the run."""
        engines, span_s = self.arrays.engines, float(self.arrays.status[0].now_s)
        used = engines["total_blocks"] - engines["free_blocks"]
        block_seconds = engines["totals"]["block_seconds"] + used * (span_s - engines["totals"]["blocks_counted_s"])
        return block_seconds / (engines["total_blocks"] * span_s) if span_s else np.zeros(len(engines))

    @property
    def timeline(self) -> pd.DataFrame:
        """A row for each event, in order of time; empty unless the timeline was recorded."""
        import pandas as pd

        events = self.arrays.timeline[: self.arrays.status[0].timeline_used]
        columns = {field: events[field] for field in events.dtype.names or ()}
        columns["kind"] = pd.Categorical.from_codes(events["kind"], TIMELINE_KINDS)
        return pd.DataFrame(columns)

    @functools.cached_property
    def summary(self) -> dict[str, Any]:
        """The figures of the whole run, by name."""
        emitted = self.figure("tokens_emitted")
        return {
            **{name: self.figure(name) for name in FIGURES if self._has(name)},
            **costs_of_pools(
                [pool.costs for pool in self.scenario.deployment.pools],
                self.arrays.engines["pool"],
                self.service_s(),
                self.arrays.engines["busy_s"],
                emitted,
            ),
            "wall_s": self.wall_s,
        }

    def figure(self, name: str) -> Any:
        """Return one of `FIGURES`, without computing the others."""
        return FIGURES[name](self)

    def _has(self, name: str) -> bool:
        """Return whether the summary has a figure: some need speculation, a front end, sessions or refusals."""
        if name in OF_SESSIONS:
            return self.scenario.workload.turns is not None and len(self.columns["session"]) > 0
        if name in OF_REFUSALS:
            return bool(self.arrays.status[0].refused)
        if name in OF_ENGINES:
            return OF_ENGINES[name] in self.columns
        return self.speculates or name not in OF_DRAFTS

    def tables(self, timeline: bool = True) -> dict[str, pd.DataFrame]:
        """Return the tables that `save` writes, by name: requests, engines, sessions if there are any, and with
        `timeline` the timeline if it was recorded.
        """
        tables = {"requests": self.requests, "engines": self.engines}
        if self.scenario.workload.turns is not None:
            tables["sessions"] = self.sessions
        if timeline and self.arrays.status[0].recording:
            tables["timeline"] = self.timeline
        return tables

    def save(self, directory: str | Path, csv: bool = False, timeline: bool = True) -> list[Path]:
        """Write the `tables` as Parquet or CSV, and return the files."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        written = []
        for name, table in self.tables(timeline).items():
            path = directory / f"{name}.{'csv' if csv else 'parquet'}"
            if csv:
                table.to_csv(path, index=False)
            else:
                table.to_parquet(path, index=False)
            written.append(path)
        return written


def share_of(parts: np.ndarray, wholes: np.ndarray) -> np.ndarray:
    """Return parts / wholes; nan where the whole is 0."""
    return np.where(wholes > 0, parts / np.maximum(wholes, 1), np.nan)
