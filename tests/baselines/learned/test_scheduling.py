"""Scheduling: what each number of an action does, by hand; the base where all are 0; whole runs with random weights."""

import numpy as np
import pytest

from servegym.baselines.learned.network import Network, Shape
from servegym.baselines.learned.scheduling import CONTROLS, NAMES, first_of_action, leave_out, move, scheduled, steered
from servegym.baselines.observations.queue import fill_slots
from servegym.baselines.observations.scheduling import WORTHY_REQUEST_FIELDS, scheduling_layout
from servegym.baselines.registry import scheduler
from servegym.errors import PolicyError
from servegym.simulator.policies.policy import Policy
from servegym.simulator.records.types import LEAVE_OUT, LIMITS, NO_LIMIT, RANK, REQUEST
from servegym.simulator.runs.simulation import Simulation
from tests.baselines.learned.cases import check_served, served_by
from tests.envs.small import outcome_bytes
from tests.simulator.forming import linear
from tests.simulator.scenes import requests, scene

BASES = ("expected-gain", "flow-prefill")
SLOTS = 6
LAYOUT = scheduling_layout(SLOTS)
WIDTH = len(LAYOUT.whole_fields) + len(LAYOUT.slot_fields)
FIELDS = [field.name for field in WORTHY_REQUEST_FIELDS]


def network_of(seed: int | None = None) -> Network:
    shape = Shape.shared_by(LAYOUT, CONTROLS + 1, "joint", hidden=(8,), output="tanh")
    return Network.zeros(shape) if seed is None else Network.random(shape, np.random.default_rng(seed), 4.0)


def saying(field: str = "present", score: float = 0.0, **controls: float) -> Network:
    """A score that goes by one number of a slot, and controls that are always the same."""
    weight, bias = np.zeros((CONTROLS + 1, WIDTH)), np.zeros(CONTROLS + 1)
    weight[0, len(LAYOUT.whole_fields) + FIELDS.index(field)] = score
    for name, value in controls.items():
        bias[1 + NAMES.index(name)] = value
    shape = Shape.shared_by(LAYOUT, CONTROLS + 1, "joint", hidden=())
    return Network.from_layers(shape, [(weight, bias)])


def plan_of(*lines: tuple[int, float, float]) -> np.ndarray:
    """Ranks: (tier, key, worth)."""
    plan = np.zeros(len(lines), RANK)
    plan["tier"], plan["key"], plan["victim_key"] = zip(*lines, strict=True)
    return plan


@pytest.mark.nojit
def test_slots_hold_what_is_worth_something_prefills_first():
    plan = plan_of((0, 1.0, 0.5), (0, 0.0, 0.0), (0, 9.0, 1.0), (0, 2.0, 0.1), (LEAVE_OUT, 0.0, 1.0), (0, 5.0, 0.9))
    waiting = np.zeros(6, REQUEST)
    waiting["prompt_tokens"] = 4
    waiting["num_output_tokens"][[0, 3]] = 1
    waiting["computed_tokens"][[0, 3]] = 4  # 0 and 3 decode; 1 is worth nothing, 4 is left out by the base
    queue, order = np.arange(6, dtype="i4"), np.zeros(3, "i4")
    assert fill_slots(True, waiting, queue, plan, 3, order) == 3
    assert order.tolist() == [0, 5, 2], "both prefills, and the decode that ranks first; in rank order"
    order = np.zeros(6, "i4")
    assert fill_slots(True, waiting, queue, plan, 6, order) == 4 and order[:4].tolist() == [0, 3, 5, 2]


@pytest.mark.nojit
@pytest.mark.parametrize(("scores", "wanted"), [
    ([0.3, 0.3, 0.3, 0.3], [0, 1, 2, 3]),
    ([0.0, 0.0, 0.0, 0.4], [0, 1, 3, 2]),  # forward by 1.6 places
    ([0.0, 0.0, 0.0, 1.0], [3, 0, 1, 2]),
    ([-0.3, 0.0, 0.0, 0.0], [1, 0, 2, 3]),
    ([-9.0, 0.0, 0.0, 9.0], [3, 1, 2, 0]),  # as -1 and 1
])  # fmt: skip
def test_scores_move_requests_by_places(scores, wanted):
    plan, order = plan_of((0, 0.0, 1), (0, 1.0, 1), (0, 2.0, 1), (1, 0.0, 1)), np.arange(4, dtype="i4")
    move(plan, order, 4, 4, np.array(scores))
    assert sorted(range(4), key=lambda k: (plan[k]["tier"], plan[k]["key"])) == wanted


@pytest.mark.nojit
def test_giving_up_leaves_out_what_is_worth_less_if_anything_is_worth_more():
    plan = plan_of((0, 0.0, 0.4), (0, 0.0, 0.6), (1, 0.0, 0.0))
    for least, tiers in ((0.0, [0, 0, 1]), (-0.5, [0, 0, 1]), (0.7, [0, 0, 1]), (0.5, [LEAVE_OUT, 0, LEAVE_OUT])):
        leave_out(plan, 3, least)
        assert plan["tier"].tolist() == tiers


@pytest.mark.slow
@pytest.mark.parametrize("name", BASES)
def test_without_weights_it_is_the_base_byte_for_byte(name):
    base = scheduler(name)
    for seed in range(4):
        wanted = outcome_bytes(served_by(base, seed).arrays)
        assert outcome_bytes(served_by(scheduled(base, network_of()), seed).arrays) == wanted
        assert outcome_bytes(served_by(steered(base, SLOTS), seed).arrays) == wanted


@pytest.mark.parametrize("name", BASES)
def test_a_run_with_random_weights(name):
    base, differ = scheduler(name), 0
    # With 2, 6 and 12 requests took memory from each other without end when expected-gain ranked hopeless ones by time.
    for seed in (*range(4), 6, 12):
        policy = scheduled(base, network_of(seed))
        simulation = served_by(policy, seed, engines=1 + seed % 2)
        check_served(simulation)
        found = outcome_bytes(simulation.arrays)
        differ += found != outcome_bytes(served_by(base, seed, engines=1 + seed % 2).arrays)
        assert outcome_bytes(served_by(policy, seed, engines=1 + seed % 2).arrays) == found
    assert differ, "actions that change nothing test nothing"


# Four prompts of 4 tokens and one of 2, a batch of 4 tokens at a time.
PROMPTS = {"prompt_tokens": [4, 4, 2, 4, 4], "arrival_s": [0.0, 0.0, 0.0, 0.0, 0.0]}
BASE = scheduler("sarathi-fcfs:max_num_batched_tokens=4")
MODEL = linear(c_p=1, b_d=1, t_c=1)


def finished_in_order(policy: Policy) -> list[int]:
    simulation = Simulation(scene(requests(**PROMPTS), policy, MODEL))
    simulation.run()
    return np.argsort(simulation.arrays.outcomes["finish_s"], kind="stable").tolist()


@pytest.mark.slow
def test_a_score_that_goes_by_one_number_of_a_slot():
    assert finished_in_order(BASE) == [0, 1, 2, 3, 4]
    assert finished_in_order(scheduled(BASE, saying("position", 1.5))) == [4, 3, 2, 1, 0]


@pytest.mark.slow
def test_an_action_that_is_written_for_each_decision():
    simulation = Simulation(scene(requests(**PROMPTS), steered(BASE, SLOTS), MODEL))
    at = first_of_action(BASE) + CONTROLS
    while simulation.step():
        left = simulation.arrays.engines[0].queue_length
        simulation.arrays.parameters[0, at : at + left] = np.linspace(-1, 1, left)  # the last of them first
    assert np.argsort(simulation.result().requests.finish_s, kind="stable").tolist() == [4, 3, 2, 1, 0]


def limits_of(**controls: float) -> np.record:
    """The limits before the first batch of five prompts of 18 tokens under expected-gain: 1 s, and 1 s a token."""
    far = PROMPTS | {"ttft_slo_s": 10.0, "tpot_slo_s": 4.0}
    policy = scheduled(scheduler("expected-gain"), saying(**controls))
    simulation = Simulation(scene(requests(**far), policy, MODEL))
    assert simulation.step()
    limits = np.zeros(1, LIMITS)
    limits["chunk_tokens"] = NO_LIMIT
    policy.function.entry(simulation.scheduler_context(0, 0.0), simulation.arrays.ranks, limits[0])
    return limits[0]


def test_limits():
    base = limits_of()
    assert base.dtype == LIMITS
    assert limits_of(budget=0.5).time_budget_s == pytest.approx(base.time_budget_s * (7 / 6) ** 0.5)
    assert limits_of(budget=-0.5).time_budget_s == pytest.approx(base.time_budget_s * (5 / 9) ** 0.5)
    assert limits_of(victims=0.5) == base
    for below in ("giving_up", "chunk", "victims"):
        assert limits_of(**{below: -0.5}) == base, below
    # A quarter of what the time budget holds, at a second a token.
    assert limits_of(chunk=0.5).chunk_tokens == int(0.25 * base.time_budget_s)


def test_what_is_given_up_runs_when_no_other_is_left():
    """The first prompt, and that alone, can have no token in time."""
    late = PROMPTS | {"ttft_slo_s": [0.5, 99.0, 99.0, 99.0, 99.0], "tpot_slo_s": 0.01}
    for policy, order in ((BASE, [0, 1, 2, 3, 4]), (scheduled(BASE, saying(giving_up=1e-9)), [1, 2, 3, 4, 0])):
        run = Simulation(scene(requests(**late), policy, MODEL)).run().arrays
        assert np.argsort(run.outcomes["finish_s"], kind="stable").tolist() == order


@pytest.mark.parametrize("name", BASES)
def test_without_slots_a_network_of_the_whole_says_the_controls(name):
    """What it is not shown apart (the queue in no slot), it decides as a joint one does that scores nothing."""
    base, layout, differ = scheduler(name), scheduling_layout(0), 0
    fields = [field.name for field in layout.whole_fields]
    weight = np.random.default_rng(3).normal(0.0, 1.0, (CONTROLS, layout.size))
    weight[:, fields.index("beyond")] = 0.0
    joint = np.zeros((CONTROLS + 1, WIDTH))
    joint[1:, : layout.size] = weight
    shared = Shape.shared_by(LAYOUT, CONTROLS + 1, "joint", hidden=(), output="tanh")
    dense = Shape.dense_on(layout, CONTROLS, hidden=(), output="tanh")
    scoring = scheduled(base, Network.from_layers(shared, [(joint, np.zeros(CONTROLS + 1))]))
    whole = scheduled(base, Network.from_layers(dense, [(weight, np.zeros(CONTROLS))]))
    for seed in range(3):
        found, wanted = (outcome_bytes(served_by(policy, seed).arrays) for policy in (whole, scoring))
        assert found == wanted
        unchanged = outcome_bytes(served_by(base, seed).arrays)
        assert outcome_bytes(served_by(scheduled(base, Network.zeros(dense)), seed).arrays) == unchanged
        differ += found != unchanged
    assert differ, "actions that change nothing test nothing"


def test_what_does_not_fit_is_refused():
    with pytest.raises(PolicyError, match="the network is dense; it should be joint"):
        scheduled(BASE, Network.zeros(Shape.dense_on(LAYOUT, CONTROLS + 1)), SLOTS)
    with pytest.raises(PolicyError, match="the network has 2 outputs; it should have 5"):
        scheduled(BASE, Network.zeros(Shape.shared_by(LAYOUT, 2, "joint")))
    with pytest.raises(PolicyError, match="a second call would change"):
        steered(scheduler("weighted-vtc"), SLOTS)
