"""An engine and its queue as a policy sees them that ranks requests anew, by hand: 1 s a batch and 1 s a token."""

import numpy as np
import pytest

from servegym.baselines.registry import scheduler
from servegym.simulator.records.types import LEAVE_OUT, RANK
from tests.baselines.observations.seeing import at_batch, of_engine, of_queue
from tests.simulator.forming import by_place, decode, state, waiting_for_a_batch

pytestmark = pytest.mark.nojit

EDF = scheduler("edf")


def queue() -> list[dict]:
    return [
        state(4, ttft_slo_s=16, first_token_gain=8.0, decode_token_gain=2.0),
        decode(ttft_slo_s=5, tpot_slo_s=1, first_token_gain=9.0, decode_token_gain=1.0),
        state(5, computed=3, ttft_slo_s=10, first_token_gain=6.0, decode_token_gain=4.0, predicted=9.0),
    ]


def seen(*rows: dict, slots: int = 4, policy=EDF, **setting) -> tuple[dict[str, float], list[int]]:
    return at_batch(waiting_for_a_batch(policy, *rows, **setting), slots)


def of_slot(seen: dict[str, float], k: int) -> dict[str, float]:
    start = f"request[{k}]."
    return {name.removeprefix(start): value for name, value in seen.items() if name.startswith(start)}


def test_a_queue_by_hand():
    got, places = seen(*queue(), now_s=5.0, blocks=10)
    # By deadline: the decode at 6, the prefill begun at 10, the one that waits at 16. All work and a constant: 8 s.
    assert places == [1, 2, 0]
    assert got["engine.beyond"] == got["engine.running"] == got["engine.suspended"] == 0
    first = of_slot(got, 0)
    assert first == pytest.approx(
        {
            "present": 1, "decoding": 1, "holder": 1, "late": 0, "hopeless": 1,
            "slack": 1 / 9, "leeway": 1 / 9, "spare": 0, "work": 1 / 2,
            "shortness": 1, "density": (1 / 3) ** 0.5, "gain": 1 / 8, "weight": 1 / 4,
            "prompt_left": 0, "context": (2 + 1 / 4) / 20, "emitted": 1 / 20, "predicted": 0, "output_left": 0,
            "blocks": 0.3**0.5, "in_task": 0, "is_running": 0, "position": 0,
        }
    )  # fmt: skip
    second = of_slot(got, 1)
    assert second == pytest.approx(
        {
            "present": 1, "decoding": 0, "holder": 1, "late": 0, "hopeless": 0,
            "slack": 5 / 15, "leeway": 5 / 13, "spare": 4 / 6, "work": 2 / 3,
            "shortness": 0.5**0.5, "density": 1, "gain": 6 / 8, "weight": 1,
            "prompt_left": (1 + 1 / 2) / 20, "context": (2 + 1 / 2) / 20, "emitted": 0, "predicted": 1,
            "output_left": (3 + 1 / 4) / 20, "blocks": 0.3**0.5, "in_task": 0, "is_running": 0, "position": 1 / 4,
        }
    )  # fmt: skip
    third = of_slot(got, 2)
    assert third["shortness"] == 0.5 and third["density"] == pytest.approx((2 / 3) ** 0.5) and third["gain"] == 1
    assert third["holder"] == 0 and third["position"] == 0.5 and third["spare"] == pytest.approx(10 / 14)
    assert set(of_slot(got, 3).values()) == {0.0}


def test_slots_hold_the_beginning_of_the_order():
    rows = [state(1, ttft_slo_s=10.0 - k) for k in range(6)]
    got, places = seen(*rows, slots=4)
    assert places == [5, 4, 3, 2] and got["engine.beyond"] == pytest.approx(2 / 6)
    assert [of_slot(got, k)["position"] for k in range(4)] == [0, 0.25, 0.5, 0.75]
    assert seen(*rows, slots=1)[1] == [5]


def test_requests_left_out_are_in_no_slot():
    rows = [state(1, priority=-1), state(2), state(3, priority=-1)]
    got, places = seen(*rows, policy=by_place())
    assert places == [1] and of_slot(got, 1)["present"] == 0 and got["engine.beyond"] == pytest.approx(2 / 3)


def test_an_empty_queue():
    simulation = waiting_for_a_batch(EDF, *queue())
    engine, requests, none = simulation.arrays.engines[0], simulation.arrays.requests, np.zeros(0, "i4")
    got, places = of_queue(0.0, engine, requests, none, simulation.estimator_of(0), np.zeros(0, RANK), 2)
    assert places == [] and of_slot(got, 0)["present"] == 0
    assert got["engine.queued"] == got["engine.late"] == got["engine.urgent_gain"] == 0 and got["engine.free_kv"] > 0


def test_only_the_estimates_of_the_plan_are_written():
    simulation = waiting_for_a_batch(EDF, *queue())
    plan = np.zeros(5, RANK)  # longer than the queue
    plan["tier"], plan["key"], plan["victim_tier"], plan["exec_s"] = [3, LEAVE_OUT, 1, 0, 0], 0.5, 9, -1.0
    before = plan.copy()
    arrays = simulation.arrays
    of_queue(0.0, arrays.engines[0], arrays.requests, arrays.queues[0][:3], simulation.estimator_of(0), plan, 2)
    assert plan["exec_s"].tolist() == [4, 1, 2, -1, -1]
    plan["exec_s"] = before["exec_s"]
    assert (plan == before).all()


def test_the_whole_is_that_of_the_engine():
    simulation = waiting_for_a_batch(EDF, *queue(), now_s=3.0)
    arrays = simulation.arrays
    alone = of_engine(3.0, arrays.engines[0], arrays.requests, arrays.queues[0][:3], simulation.estimator_of(0))
    got, _ = at_batch(simulation, 3)
    assert alone == {name: got[name] for name in alone}


def test_batches_that_can_be_suspended():
    simulation = waiting_for_a_batch(EDF, *queue())
    arrays = simulation.arrays
    arrays.requests["task"][:3] = [1, -1, 0]
    arrays.engines[0].running_task, arrays.engines[0].suspended = 0, 1
    got, places = at_batch(simulation, 3)
    by_place = dict(zip(places, (of_slot(got, k) for k in range(3)), strict=True))
    assert [(by_place[i]["in_task"], by_place[i]["is_running"]) for i in range(3)] == [(1, 0), (0, 0), (1, 1)]
    assert got["engine.running"] == 1 and got["engine.suspended"] == 0.5
