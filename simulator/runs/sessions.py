"""Sessions of a run: when each ended, and whether by its deadline (docs/sessions.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.gains import Gain
from servegym.simulator.records.state import SimulationState

if TYPE_CHECKING:
    from servegym.simulator.runs.results import Result


def slo_s(table: np.ndarray) -> np.ndarray:
    """Return float64[requests], s: the latency of each request if it just meets its SLOs."""
    by_tokens_s = table["ttft_slo_s"] + (table["output_tokens"] - 1) * table["tpot_slo_s"]
    return np.where(np.isfinite(table["ttlt_slo_s"]), table["ttlt_slo_s"], by_tokens_s)


def deadlines_s(table: np.ndarray, turns: SessionDependencies) -> np.ndarray:
    """Return float64[requests]: deadline of each request in s from the start of its session.

    deadline = deadline of the request that it follows (0: none) + think time + `slo_s`.
    """
    found = slo_s(table)
    left = np.flatnonzero(turns.after >= 0)
    known = turns.after < 0
    while len(left):
        ready = known[turns.after[left]]
        rows = left[ready]
        found[rows] += found[turns.after[rows]] + turns.think_s[rows]
        known[rows] = True
        left = left[~ready]
    return found


def session_slos_s(table: np.ndarray, turns: SessionDependencies) -> np.ndarray:
    """Return float64[requests], s: for a session's first request its latest `deadlines_s`, 0 for others."""
    found = np.zeros(len(table))
    np.maximum.at(found, turns.session, deadlines_s(table, turns))
    return found


def set_session_deadlines(following: np.ndarray, workload: Workload, gain: Gain) -> np.ndarray:
    """Set the deadlines and gains of sessions in FOLLOWING[requests], and return it."""
    turns, table = workload.turns, workload.table
    if turns is None:
        return following
    of_first_s = np.where(np.isfinite(table["ttlt_slo_s"]), table["ttlt_slo_s"], table["ttft_slo_s"])
    following["due_s"] = deadlines_s(table, turns) - slo_s(table) + of_first_s
    following["session_slo_s"] = session_slos_s(table, turns)
    following["session_gain"] = gain.of_sessions(workload)
    return following


def ends_s(run: SimulationState, session: np.ndarray) -> np.ndarray:
    """Return float64[requests], s: for a session's first request when the session's last token left; inf: not yet.

    session: the first request of each one's session.
    """
    found, finish_s = np.full(len(session), -np.inf), run.outcomes["finish_s"]
    np.maximum.at(found, session, np.where(np.isnan(finish_s), np.inf, finish_s))
    return found


def add_session_gains(run: SimulationState, following: np.ndarray) -> None:
    """Add the gains of sessions whose tokens the event loop did not emit, as it would (front.py)."""
    in_time = ends_s(run, following["session"]) <= run.requests["arrival_s"] + following["session_slo_s"]
    gains = np.where(in_time & (following["in_engines"] > 0), following["session_gain"], 0.0)
    run.outcomes["gain"] += gains
    run.status["gain"] += gains.sum()


def session_columns(result: Result) -> dict[str, np.ndarray]:
    """Return the columns of sessions that have begun, in the order of their first requests.

    session: its first request. arrival_s: the arrival of that. requests, finished: how many it has, and how many have
    finished. finish_s: when its last request finished; session_s: finish_s - arrival_s; NaN: not all have finished.
    deadline_s: after its arrival. attained: whether it finished by then.
    """
    workload, columns = result.scenario.workload, result.columns
    turns = workload.turns
    assert turns is not None
    of_all = turns.session
    place = np.full(len(workload), -1)
    first = np.unique(columns["session"])
    place[first] = np.arange(len(first))
    count = np.bincount(of_all, minlength=len(workload))[first]
    deadline_s = session_slos_s(workload.table, turns)[first]
    ended = np.isfinite(columns["finish_s"])
    finish_s, finished = np.zeros(len(first)), np.zeros(len(first), "i8")
    at = place[columns["session"][ended]]
    np.maximum.at(finish_s, at, columns["finish_s"][ended])
    np.add.at(finished, at, 1)
    finish_s[finished < count] = np.nan
    arrival_s = columns["arrival_s"][columns["after"] < 0]  # rows of first requests, in their order
    session_s = finish_s - arrival_s
    # The same floating point comparison as in the loop.
    last_s = ends_s(result.arrays, of_all)[first]
    attained = last_s <= result.arrays.requests["arrival_s"][first] + deadline_s
    return {
        "session": first, "arrival_s": arrival_s, "requests": count, "finished": finished, "finish_s": finish_s,
        "session_s": session_s, "deadline_s": deadline_s, "attained": attained,
    }  # fmt: skip
