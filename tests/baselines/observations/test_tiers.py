"""Tiers and engines as a scaler sees them, by hand: 1 s a token, no constant part."""

import numpy as np
import pytest

from servegym.baselines.registry import router, scaler, scheduler
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.records.types import TIERS
from servegym.simulator.runs.simulation import Simulation
from tests.baselines.observations.seeing import Seen, of_tiers
from tests.simulator.forming import linear
from tests.simulator.scenes import requests

pytestmark = pytest.mark.nojit

TPOT_SLOS_S = (0.1, 0.9, 4.9)


def cluster() -> Simulation:
    """Four engines, tiers of 0.1, 0.9 and 4.9 s; four requests: of tiers 0, 1, 2, 2."""
    model = linear(c_p=1, b_d=1)
    workload = requests(
        prompt_tokens=[3, 4, 5, 6], tpot_slo_s=[0.1, 0.9, 4.9, 7.0], ttft_slo_s=[2.0, 30.0, 30.0, 30.0], arrival_s=0.0
    )
    pool = Deployment(model, model, 100, 4, block_tokens=1, watermark=0.0)
    simulation = Simulation(
        Scenario(
            workload, Cluster((pool,), tiers=TPOT_SLOS_S), scheduler("edf"), router=router("polyserve"),
            scaler=scaler("polyserve"),
        )
    )  # fmt: skip
    simulation.router_state.moves["tier"] = simulation.router_state.known.snapshots["tier"]
    return simulation


def of_engine(seen: Seen, e: int, *names: str) -> list[float]:
    return [seen[f"engine[{e}].{name}"] for name in names]


def test_where_engines_are_and_requests_wait():
    simulation = cluster()
    snapshots, tiers = simulation.router_state.known.snapshots, simulation.router_state.known.tiers
    snapshots["tier"], snapshots["requests"] = [0, 0, 2, -1], [3, 4, 1, 0]
    snapshots[1].closed, snapshots[2].up = 1, 0
    tiers["waiting"][:] = [0, 3, 1, 7, 50]  # by tier, best effort, the simulator's own
    got = of_tiers(simulation, 0.0, 4)
    assert [got[f"cluster.{name}"] for name in ("in_pool", "closed", "failed", "best_effort")] == pytest.approx(
        [0.25, 0.25, 0.25, 3 / 12]
    )
    names = ("there", "tpot_slo", "waiting", "engines", "open", "requests")
    rows = [[got[f"cluster.tier_{t}_{name}"] for name in names] for t in range(TIERS)]
    assert rows[0] == pytest.approx([1, 0.5, 0, 0.5, 0.25, 3 / 12])
    assert rows[1] == pytest.approx([1, 0.9, 2 / 12, 0, 0, 0])
    assert rows[2] == pytest.approx([1, 0.98, 1 / 12, 0.25, 0, 1 / 12])
    assert rows[3:] == [[0] * 6] * 5


def test_engines_and_what_the_base_does_with_them():
    simulation = cluster()
    snapshots, moves = simulation.router_state.known.snapshots, simulation.router_state.moves
    snapshots["tier"], snapshots["requests"] = [0, 0, -1, 2], [3, 2, 0, 0]
    moves["tier"], moves["closed"] = [0, -1, 1, 2], [1, 0, 0, 0]
    got = of_tiers(simulation, 0.0, 4)
    places = ["in_pool", *(f"in_tier_{t}" for t in range(TIERS))]
    base = ["base_to_pool", *(f"base_to_tier_{t}" for t in range(TIERS))]
    for e, (now, then) in enumerate([(0, 0), (0, -1), (-1, 1), (2, 2)]):
        assert of_engine(got, e, *places) == np.eye(9)[now + 1].tolist()
        assert of_engine(got, e, *base) == np.eye(9)[then + 1].tolist()
        assert of_engine(got, e, "there", "up", "closed", "base_moves") == [1, 1, 0, now != then]
    assert [of_engine(got, e, "base_closes", "last") for e in range(4)] == [[1, 0], [0, 1], [0, 1], [0, 1]]


def test_requests_of_an_engine():
    simulation = cluster()
    known = simulation.router_state.known
    snapshot = known.snapshots[1]
    snapshot.tier, snapshot.requests, snapshot.prefills, snapshot.decodes = 2, 4, 2, 2
    snapshot.decode_tokens, snapshot.free_blocks = 14, 25
    known.prefilling[1, :2], known.decoding[1, :2] = [0, 2], [1, 3]  # tiers 0 and 2, 1 and 2
    got = of_tiers(simulation, 3.0, 3)
    assert of_engine(got, 1, "prefills", "decodes", "own", "free_kv") == pytest.approx(
        [(1 + 1 / 2) / 12, (1 + 1 / 2) / 12, 0.5, 0.25]
    )
    assert of_engine(got, 1, "iteration", "decode_context") == pytest.approx([2 / 6.9, 3 / 20])
    # Prompts of 3 and 5 s; the first is due in -1 s of 2 s, the second in 27 of 30.
    assert of_engine(got, 1, "work", "least_slack", "late") == pytest.approx([8 / 9, -1 / 3, 0.5])
    assert of_engine(got, 0, "work", "least_slack", "late", "own", "iteration") == [0, 1, 0, 0, 0]


def test_more_slots_than_engines_and_fewer():
    assert "engine[0].there" in of_tiers(cluster(), 0.0, 1)
    got = of_tiers(cluster(), 0.0, 6)
    assert [got[f"engine[{e}].there"] for e in range(6)] == [1, 1, 1, 1, 0, 0]
    assert {value for name, value in got.items() if name.startswith(("engine[4]", "engine[5]"))} == {0.0}
