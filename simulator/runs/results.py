"""Results of a run: tables of requests, engines and the timeline, and a summary."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from servegym.simulator.features.ahead import out_of
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
    """What happened in a run. Counts only requests that have arrived.

    summary: one dict of figures, units in the names. requests, engines, timeline: pandas tables.
    wall_s: seconds spent in the event loop.
    """

    def __init__(self, scenario: Scenario, arrays: SimulationState, wall_s: float):
        self.scenario: Scenario = scenario
        self.arrays: SimulationState = arrays
        self.wall_s = wall_s

    @functools.cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """The figures of each request that has arrived."""
        arrived = self.arrived
        table = self.scenario.workload.table[arrived]
        outcome = self.arrays.outcomes[arrived]
        # Of a run: a table has those that are known beforehand. Less the way back, so that a latency is the client's.
        arrival_s = self.arrays.requests["arrival_s"][arrived]
        back_s = self.arrays.status[0].front_end.way_back_s
        ttft_s, tpot_s, ttlt_s = latencies_of(table, arrival_s, outcome["first_token_s"], outcome["finish_s"])
        run, workload = self.arrays, self.scenario.workload
        return {
            **{field: table[field] for field in FIELDS if field != "adapter" or workload.table[field].any()},
            "arrival_s": arrival_s + back_s,
            "engine": self.arrays.requests["engine"][arrived],
            "num_output_tokens": out_of(self.arrays.requests, self.arrays.outcomes)[arrived],
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
        """What there is to say where arrivals depend on completions."""
        if not self.scenario.arrivals_depend:
            return {}
        workload = self.scenario.workload
        turns, columns = workload.turns, {"request": np.arange(len(workload)), "came_s": came_s(self.arrays, workload)}
        if turns is not None:
            columns |= {"session": turns.session, "after": turns.after}
        return {name: column[self.arrived] for name, column in columns.items()}

    def _adapters_at_engines(self) -> dict[str, np.ndarray]:
        """How often each engine loaded and activated LoRA adapters, where any engine has them."""
        adapters = self.arrays.engines["adapters"]
        if not adapters["max_loras"].any():
            return {}
        return {"adapter_loads": adapters["loads"], "adapter_activations": adapters["activations"]}

    @property
    def speculates(self) -> bool:
        """Whether engines draft tokens."""
        return any(pool.speculation is not None for pool in self.scenario.deployment.pools)

    def _at_engines(self) -> dict[str, np.ndarray]:
        """What engines would report, where there is a front end between them and clients."""
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
        """Which requests have arrived, for indexing: the first ones, or bool[requests]."""
        if self.scenario.workload.turns is None:
            return slice(int(self.arrays.status[0].next_arrival))
        return has_arrived(self.arrays)

    @functools.cached_property
    def priorities(self) -> dict[int, np.ndarray]:
        """bool[requests] of each priority: which requests have it."""
        column = self.columns["priority"]
        return {int(one): column == one for one in np.unique(column)}

    @functools.cached_property
    def length_groups(self) -> np.ndarray:
        """`fairness.length_groups` of those that have arrived."""
        return length_groups(self.scenario.workload.table[self.arrived])

    @property
    def requests(self) -> pd.DataFrame:
        """One row a request, in the order of the workload; times absolute in seconds unless they are intervals.

        refused_s: where there is more than one engine. request_id: where the workload has ids. Where arrivals depend on
        completions also: request, its number (not all may have arrived); came_s, when it could have been sent if
        nothing had kept it. Of sessions: session, the request each begins with; after, the one that a request follows
        (-1: none). Where there is a front end, times are those of the client, and beside them stand engine_...: when
        tokens came out of engines, and latencies from when these got the request (ready_s).
        """
        import pandas as pd

        return pd.DataFrame(self.columns, index=self.columns.get("request"))

    @functools.cached_property
    def session_columns(self) -> dict[str, np.ndarray]:
        """The columns of `sessions`."""
        return session_columns(self)

    @property
    def sessions(self) -> pd.DataFrame:
        """One row a session that has begun (`session_columns`); empty where requests follow none."""
        import pandas as pd

        return pd.DataFrame() if self.scenario.workload.turns is None else pd.DataFrame(self.session_columns)

    @property
    def engines(self) -> pd.DataFrame:
        """One row an engine.

        role, tier: at the end; tier -1: the common pool. requests: prefilled there (role prefill), else finished there,
        as of engines that have changed their role; role_changes: how often, where they may. rounds:
        times its scheduler was asked; suspensions: running prefills it had suspended then, blocking_mean_s and
        blocking_longest_s: how long these went on (nan, 0: there were none). evictions: requests that gave up memory.
        cached_tokens: found in the engine's prefix cache or store at first admissions, cached_share: of all tokens
        admitted then (nan: none were); regained_tokens: found at later admissions; overwritten_blocks: of the cache,
        that had a name. recalled: requests taken back, with lost_tokens of computed KV. service_s: time in service.
        utilisation, kv_use_mean: of the whole run, in service or not.
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
        """int64[engines]; a prefill engine emits one token of each of its requests."""
        engines, requests = self.arrays.engines, self.arrays.requests
        finished = requests["engine"][np.isfinite(self.arrays.outcomes["finish_s"])]
        return np.where(
            (engines["role"] == ROLE_PREFILL) & (engines["totals"]["role_changes"] == 0),
            engines["totals"]["num_output_tokens"],
            np.bincount(finished, minlength=len(engines)),
        )

    def service_s(self) -> np.ndarray:
        """float64[engines]: time in service up to the end of the run."""
        engines = self.arrays.engines
        since_s = self.arrays.status[0].now_s - engines["totals"]["serving_since_s"]  # nan: not in service then
        return engines["totals"]["service_s"] + np.where(np.isnan(since_s), 0.0, since_s)

    def kv_use_mean(self) -> np.ndarray:
        """float64[engines]: mean share of the KV blocks in use over the run."""
        engines, span_s = self.arrays.engines, float(self.arrays.status[0].now_s)
        used = engines["total_blocks"] - engines["free_blocks"]
        block_seconds = engines["totals"]["block_seconds"] + used * (span_s - engines["totals"]["blocks_counted_s"])
        return block_seconds / (engines["total_blocks"] * span_s) if span_s else np.zeros(len(engines))

    @property
    def timeline(self) -> pd.DataFrame:
        """One row an event, in the order they happened; empty unless the timeline was recorded."""
        import pandas as pd

        events = self.arrays.timeline[: self.arrays.status[0].timeline_used]
        columns = {field: events[field] for field in events.dtype.names or ()}
        columns["kind"] = pd.Categorical.from_codes(events["kind"], TIMELINE_KINDS)
        return pd.DataFrame(columns)

    @functools.cached_property
    def summary(self) -> dict[str, Any]:
        """Figures of the run as a whole."""
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
        """One of `FIGURES`, as the summary has it, and nothing else worked out."""
        return FIGURES[name](self)

    def _has(self, name: str) -> bool:
        """Whether a summary says it: figures of drafts where engines draft, of engines where there is a front end, of
        sessions where one has begun, of refusals where there are any."""
        if name in OF_SESSIONS:
            return self.scenario.workload.turns is not None and len(self.columns["session"]) > 0
        if name in OF_REFUSALS:
            return bool(self.arrays.status[0].refused)
        if name in OF_ENGINES:
            return OF_ENGINES[name] in self.columns
        return self.speculates or name not in OF_DRAFTS

    def tables(self, timeline: bool = True) -> dict[str, pd.DataFrame]:
        """What `save` writes, by name: requests, engines, of a workload with sessions these, and (if recorded, and
        wanted) the timeline."""
        tables = {"requests": self.requests, "engines": self.engines}
        if self.scenario.workload.turns is not None:
            tables["sessions"] = self.sessions
        if timeline and self.arrays.status[0].recording:
            tables["timeline"] = self.timeline
        return tables

    def save(self, directory: str | Path, csv: bool = False, timeline: bool = True) -> list[Path]:
        """Write the `tables` as Parquet or CSV; returns the files."""
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
    """parts / wholes; nan where the whole is 0."""
    return np.where(wholes > 0, parts / np.maximum(wholes, 1), np.nan)
