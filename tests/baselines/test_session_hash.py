"""Router session-hash: sessions stay together, and only those of an engine that goes move (docs/systems/routers.md)."""

import dataclasses

import numpy as np
import pytest

from servegym.baselines.registry import router, scheduler
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.random import uniform
from servegym.simulator.runs.simulation import Simulation
from tests.baselines.router_cases import asked, engine, waits
from tests.simulator.forming import linear

ROUTER = "session-hash"
SESSIONS = range(60)


def homes(*engines: dict, seed: int = 0) -> list[int]:
    return [asked(f"{ROUTER}:seed={seed}", waits(1, session=session), *engines) for session in SESSIONS]


@pytest.mark.nojit
def test_the_engine_with_the_highest_number():
    for session in range(8):
        numbers = [uniform(7, 0x73650000 + e, session) for e in range(3)]
        named = asked(f"{ROUTER}:seed=7", waits(1, session=session), engine(), engine(), engine())
        assert named == int(np.argmax(numbers))


@pytest.mark.nojit
def test_whatever_the_load():
    idle, busy = [engine()] * 3, [engine(*[waits(50)] * 4), engine(decode_tokens=900), engine()]
    assert [asked(ROUTER, waits(1, session=s), *busy) for s in range(8)] == homes(*idle)[:8]


@pytest.mark.nojit
def test_when_an_engine_goes_only_its_sessions_move():
    before = homes(engine(), engine(), engine(), engine())
    for gone in range(4):
        for what in ({"up": 0}, {"closed": 1}):
            after = homes(*(engine(**(what if e == gone else {})) for e in range(4)))
            assert all(now == was for was, now in zip(before, after, strict=True) if was != gone)
            moved = [now for was, now in zip(before, after, strict=True) if was == gone]
            assert moved and gone not in moved and len(set(moved)) > 1  # not all to one other
    assert min(np.bincount(before, minlength=4)) > len(SESSIONS) / 4 / 2


@pytest.mark.nojit
def test_a_seed_is_another_hash():
    engines = [engine(), engine(), engine()]
    assert homes(*engines, seed=1) != homes(*engines, seed=2) and homes(*engines, seed=1) == homes(*engines, seed=1)


@pytest.mark.nojit
def test_without_a_session_by_the_beginning_or_the_number():
    engines = [engine(), engine(), engine()]
    before = [waits(4, arrival_s=0.0)] * 2
    numbered = [engine(*before), engine(), engine()]  # the request is number 2
    beginning = np.argmax([uniform(0, 0x73660000 + e, 0) for e in range(3)])  # its first chunk is number 0
    number = np.argmax([uniform(0, 0x73670000 + e, 2) for e in range(3)])
    assert asked(ROUTER, waits(12, chunks=[5, 6], arrival_s=1.0), *numbered) == beginning
    assert asked(ROUTER, waits(12, arrival_s=1.0), *numbered) == number
    assert asked(ROUTER, waits(12, chunks=[5, 6], session=3), *engines) == homes(*engines)[3]


def chat(sessions: int, turns: int) -> Workload:
    """Sessions that begin a second apart; each turn comes half a second after the last has ended."""
    n = sessions * turns
    number = np.arange(n)
    after = np.where(number < sessions, -1, number - sessions)
    columns = {
        "arrival_s": np.where(number < sessions, number * 1.0, np.nan),
        "prompt_tokens": np.full(n, 8),
        "output_tokens": np.full(n, 2),
    }
    return Workload.from_columns(columns, turns=SessionDependencies(after, np.full(n, 0.5)))


def test_turns_of_a_session_are_served_where_it_began():
    model, workload = linear(c_p=2**-8, b_d=2**-8), chat(40, 5)
    scenario = Scenario(
        workload, Cluster((Deployment(model, model, 500, 4),)), scheduler("vllm-v1"), router=router(ROUTER)
    )
    result = Simulation(scenario).run().requests
    at = result.groupby("session")["engine"].unique()
    assert (at.map(len) == 1).all() and len(set(at.map(lambda engines: engines[0]))) == 4
    first = result.sort_values("request").groupby("session")["engine"].first()
    fails = dataclasses.replace(scenario, incidents=(Incident(0.0, 2, "fail"),))
    without = Simulation(fails).run().requests.sort_values("request").groupby("session")["engine"].first()
    stayed = first[first != 2]
    assert (without[stayed.index] == stayed).all() and (without != 2).all()
