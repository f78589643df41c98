"""Observations that show sessions: what they have in common with those that do not, and what they say of sessions."""

import dataclasses

import numpy as np
import pytest

from servegym.baselines.observations.sessions import SESSION, SESSION_BITS, SESSION_FIELDS
from servegym.baselines.registry import router
from servegym.envs.agents import BaseAgent
from servegym.envs.env import ServingEnv
from servegym.envs.scheduling import Scheduling
from servegym.errors import EnvError
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.sessions import deadlines_s, slo_s
from tests.envs.small import drawn, make, steps

THINK_S = 0.125
NAMES = [field.name for field in SESSION_FIELDS]


def with_sessions(name: str) -> Scenario:
    """The small scenario of an environment, in sessions of three turns."""
    scenario = drawn(name)
    n = len(scenario.workload)
    after = np.where(np.arange(n) % 3 == 0, -1, np.arange(n) - 1)
    columns = {field: scenario.workload.table[field] for field in scenario.workload.table.dtype.names}
    workload = Workload.from_columns(columns, turns=SessionDependencies(after, np.full(n, THINK_S)))
    return dataclasses.replace(scenario, workload=workload)


@pytest.mark.parametrize(("of", "before", "base"), [
    ("Scheduling-v0", "scheduling", ""),
    ("ClusterRouting-v0", "caching", "min-load"),
    ("ClusterRouting-v0", "caching", "round-robin"),
])  # fmt: skip
def test_what_is_shown_of_sessions(of: str, before: str, base: str) -> None:
    scenario = with_sessions(of)
    if base:
        scenario = dataclasses.replace(scenario, router=router(base))
    env, older = (make(of, scenario, sees=sees) for sees in (f"{before}-sessions", before))
    part, shown = (older.interface.layout.slot, 0) if of == "Scheduling-v0" else (older.interface.layout.whole, 0)
    for (seen, *_), (known, *_) in zip(steps(env, BaseAgent(), seed=1), steps(older, BaseAgent(), seed=1), strict=True):
        ours, theirs = env.interface.layout.parts(seen), older.interface.layout.parts(known)
        for name, numbers in theirs.items():
            same = ours[name][..., : -SESSION or None] if name == part else ours[name]
            assert same.tobytes() == numbers.tobytes(), name
        told = ours[part][..., -SESSION:].reshape(-1, SESSION)
        requests = decided_on(env)
        if part == "request" and len(told) > 1:  # slots of requests: the others are empty
            assert not told[len(requests) :].any()
        for row, r in zip(told, requests, strict=False):
            assert dict(zip(NAMES, row.tolist(), strict=True)) == pytest.approx(expected(env, r), abs=1e-5)
            shown += bool(before_of(env.simulation.scenario.workload.turns, r))
    assert shown > 3  # later turns


def decided_on(env: ServingEnv) -> list[int]:
    """The requests whose sessions the observation shows; none where the episode is over."""
    status = env.simulation.arrays.status[0]
    if isinstance(env.interface, Scheduling):
        filled = int(env._episode_batch.episodes[0].filled) if status.deciding_engine >= 0 else 0
        return env.interface.slots_of(env.simulation, filled)
    return [int(status.deciding_request)] if status.deciding_request >= 0 else []


def expected(env: ServingEnv, r: int) -> dict[str, float]:
    """Of a request, from the workload and what has happened."""
    arrays, workload = env.simulation.arrays, env.simulation.scenario.workload
    table, turns = workload.table, workload.turns
    assert turns is not None
    before = before_of(turns, r)
    first = before[0] if before else r
    now_s, cached = arrays.status[0].now_s, arrays.outcomes["cached_tokens"]
    tokens = sum(table["prompt_tokens"][b] + table["output_tokens"][b] - cached[b] for b in before)
    by_ttlt = np.isfinite(table["ttlt_slo_s"][r])
    slo = table["ttlt_slo_s"][r] if by_ttlt else table["ttft_slo_s"][r]
    due_s = arrays.requests["arrival_s"][first] + deadlines_s(table, turns)[r] - slo_s(table)[r] + slo
    if not by_ttlt:
        due_s += arrays.requests["num_output_tokens"][r] * table["tpot_slo_s"][r]
    age_s, slack_s = now_s - arrays.requests["arrival_s"][first], due_s - now_s
    return {
        "turn": log2(1 + len(before)) / 12, "session_tokens": log2(1 + tokens) / SESSION_BITS,
        "session_age": age_s / (64 * slo + age_s), "session_slack": slack_s / (8 * slo + abs(slack_s)),
    }  # fmt: skip


def log2(x: int) -> float:
    """Linear between powers of two."""
    whole = int(x).bit_length() - 1
    return whole + x / 2**whole - 1


def before_of(turns: SessionDependencies, r: int) -> list[int]:
    """The requests that it follows, the session's first one first."""
    after = int(turns.after[r])
    return [] if after < 0 else [*before_of(turns, after), after]


def test_an_unknown_observation_is_refused() -> None:
    with pytest.raises(EnvError, match="sees='nothing': it should be one of 'scheduling', 'scheduling-sessions'"):
        make("Scheduling-v0", sees="nothing")
