"""Highest priority, first come and shortest job first in slots, by hand (semantic scheduling, section 4.1)."""

import numpy as np
import pytest

from servegym.baselines.registry import scheduler
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import SECONDS, decode, formed, ranked, state
from tests.simulator.scenes import requests

pytestmark = pytest.mark.nojit


def batch(policy: str, *rows: dict, **setting) -> list[int]:
    return [place for place, _ in formed(scheduler(policy), *rows, **setting).batch]


def waiting(priority: int = 0, predicted: float = 5.0, **more) -> dict:
    return state(3, priority=priority, predicted=predicted, **more)


ROWS = [waiting(2, 2.0), waiting(0, 9.0, urgency=4), waiting(1, 1.0), waiting(0, 3.0, urgency=3)]


def test_hpjf_goes_by_priority_then_arrival():
    assert batch("hpjf", *ROWS) == [1, 3, 2, 0]
    assert batch("hpjf:slots=3", *ROWS) == [1, 3, 2]
    late = [waiting(0, arrival_s=2.0), waiting(0, arrival_s=1.0)]
    assert ranked(scheduler("hpjf"), *late).ranks == [(0, 2), (0, 1)] and batch("hpjf", *late) == [1, 0]


def test_hpjf_may_go_by_urgency():
    assert batch("hpjf:level=urgency", *ROWS) == [0, 2, 3, 1]


def test_fcfs_goes_by_arrival():
    rows = [waiting(2, arrival_s=0.5), waiting(0, arrival_s=0.25), waiting(1, arrival_s=0.5)]
    assert ranked(scheduler("slots-fcfs"), *rows).ranks == [(0, 0.5), (0, 0.25), (0, 0.5)]
    assert batch("slots-fcfs", *rows) == [1, 0, 2] and batch("slots-fcfs:slots=2", *rows) == [1, 0]


def test_sjf_goes_by_remaining_time():
    # 1 + 3 s and 2 s for each token after the first.
    assert ranked(scheduler("slots-sjf"), *ROWS).ranks == [(0, 6), (0, 20), (0, 4), (0, 8)]
    assert batch("slots-sjf:slots=2", *ROWS) == [2, 0]
    assert batch("slots-sjf", waiting(predicted=np.nan), waiting(predicted=np.nan), waiting()) == [2, 0, 1]


@pytest.mark.parametrize("name", ["hpjf", "slots-fcfs"])
def test_newcomers_of_no_higher_priority_wait_until_the_best_has_finished(name):
    rows = [decode(priority=0, arrival_s=0.0), waiting(0, arrival_s=1.0)]
    assert batch(name, *rows, now_s=2.0) == [0] and batch(f"{name}:batching=prefill-first", *rows, now_s=2.0) == [1]


def test_hpjf_interrupts_for_a_higher_priority():
    assert batch("hpjf", decode(priority=1, arrival_s=0.0), waiting(0, arrival_s=1.0), now_s=2.0) == [1]


def test_victims():
    rows = [decode(priority=1, arrival_s=0.0, predicted=9.0), decode(priority=1, arrival_s=1.0, predicted=5.0),
            decode(priority=0, arrival_s=2.0, predicted=7.0)]  # fmt: skip
    assert ranked(scheduler("hpjf"), *rows).victim_ranks == [(1, 0), (1, 1), (0, 2)]
    assert ranked(scheduler("slots-fcfs"), *rows).victim_ranks == [(0, 0), (0, 1), (0, 2)]
    assert ranked(scheduler("slots-sjf"), *rows).victim_ranks == [(0, 16), (0, 8), (0, 12)]
    evicted = {name: formed(scheduler(name), *rows, blocks=9).evicted for name in ("hpjf", "slots-fcfs", "slots-sjf")}
    assert evicted == {"hpjf": [1], "slots-fcfs": [2], "slots-sjf": [0]}


def test_fcfs_serves_in_whole_batches():
    """Two slots, prompts of 1 token, outputs 1, 3, 2, 1: as printed nobody joins while the oldest decodes."""
    workload = requests(prompt_tokens=1, output_tokens=[1, 3, 2, 1])
    finish_s = {}
    for batching in ("stage-aware", "prefill-first"):
        policy = scheduler("slots-fcfs").with_settings(slots=2, batching=batching)
        simulation = Simulation(Scenario(workload, Deployment(SECONDS, SECONDS, 100, block_tokens=1), policy))
        simulation.run()
        finish_s[batching] = simulation.arrays.outcomes["finish_s"].tolist()
    # Prefill 3 s, two decodes of 2 s; then the other two: 3 s and 2 s.
    assert finish_s["stage-aware"] == [3, 7, 12, 10]
    # 3 s; the third joins, 2 s; a decode of both, 3 s, ends it; the fourth joins, 2 s; the second's last, 2 s.
    assert finish_s["prefill-first"] == [3, 12, 8, 10]


@pytest.mark.parametrize(("name", "evictions"), [("slots-fcfs", 2), ("hpjf", 2), ("slots-sjf", 5), ("semantic", 5)])
def test_prefill_first_two_requests_do_not_take_memory_from_each_other_in_turn(name, evictions):
    """44 tokens of memory for three answers that end with 24 each: 69 tokens are computed at least.

    Decodes that stand while a prefill finds no memory: 17 evictions and 379 tokens (SJF: 25 and 527).
    """
    workload = requests(
        prompt_tokens=4, output_tokens=[20] * 3, predicted_output_tokens=20.0, arrival_s=[0.0, 1.0, 2.0]
    )
    policy = scheduler(f"{name}:batching=prefill-first")
    deployment = Deployment(SECONDS, SECONDS, 44, block_tokens=1, watermark=0.0)
    result = Simulation(Scenario(workload, deployment, policy)).run()
    assert result.summary["evictions"] == evictions
    assert 69 < result.engines["scheduled_tokens"].sum() <= 150
