"""Rankings: orders by hand; the base where scores are equal; whole runs, with scores written and learned."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.baselines.learned.network import Network, Shape
from servegym.baselines.learned.ranking import first_score, ranked, rerank, scored
from servegym.baselines.observations.queue import REQUEST_FIELDS, fill_slots, queue_layout
from servegym.baselines.registry import router, scheduler, scheduler_names
from servegym.errors import PolicyError
from servegym.simulator.policies.policy import Policy
from servegym.simulator.records.types import LEAVE_OUT, RANK, REQUEST
from servegym.simulator.runs.simulation import Simulation
from tests.baselines.learned.cases import bytes_of, check_served, served_by
from tests.simulator.forming import linear
from tests.simulator.scenes import requests, scene

BASES = ("slide-batching", "sarathi-fcfs", "vllm-v1", "flow-prefill", "polyserve")
SLOTS = 6


def network_of(seed: int | None = None, slots: int = SLOTS) -> Network:
    shape = Shape.shared_by(queue_layout(slots), hidden=(8,))
    return Network.zeros(shape) if seed is None else Network.random(shape, np.random.default_rng(seed), 4.0)


def by_field(field: str, sign: float) -> Network:
    """A score that is one number of a slot."""
    layout = queue_layout(SLOTS)
    weight = np.zeros((1, len(layout.whole_fields) + len(layout.slot_fields)))
    weight[0, len(layout.whole_fields) + [f.name for f in REQUEST_FIELDS].index(field)] = sign
    return Network.from_layers(Shape.shared_by(layout, hidden=()), [(weight, np.zeros(1))])


def order_of(plan: np.ndarray) -> list[int]:
    """Places in rank order, those left out not among them."""
    places = [place for place in range(len(plan)) if plan[place]["tier"] < LEAVE_OUT]
    return sorted(places, key=lambda place: (plan[place]["tier"], plan[place]["key"], place))


def ranks(*lines: tuple[int, float]) -> np.ndarray:
    plan = np.zeros(len(lines), RANK)
    plan["tier"], plan["key"] = zip(*lines, strict=True)
    return plan


@pytest.mark.nojit
@pytest.mark.parametrize(("scores", "wanted"), [
    ([0, 0, 0], [3, 0, 4, 1, 5]),  # the base's
    ([2, 1, 0], [3, 0, 4, 1, 5]),
    ([0, 1, 2], [4, 0, 3, 1, 5]),
    ([0, 1, 0], [0, 3, 4, 1, 5]),  # equal ones in the base's order
    ([-1, -1, 0.5], [4, 3, 0, 1, 5]),
])  # fmt: skip
def test_orders_by_hand(scores, wanted):
    """Slots: places 3, 0, 4. Place 1 ranks as 4 does and comes later only for its score; 2 is left out."""
    plan = ranks((1, 0.0), (1, 7.0), (LEAVE_OUT, -9.0), (-(2**40), 5.0), (1, 6.0), (1, 7.0))
    order = np.zeros(3, "i4")
    assert fill_slots(False, *queue_of(plan), plan, 3, order) == 3 and order.tolist() == [3, 0, 4]
    before = plan.copy()
    rerank(plan, order, 3, np.array(scores, "f8"))
    assert order_of(plan) == wanted
    if len(set(scores)) == 1:
        assert plan.tobytes() == before.tobytes(), "equal scores change nothing"


def queue_of(plan: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As many requests to be prefilled, and the queue of them."""
    waiting = np.zeros(len(plan), REQUEST)
    waiting["prompt_tokens"] = 1
    return waiting, np.arange(len(plan), dtype="i4")


@pytest.mark.nojit
@given(data=st.data())
def test_any_order(data):
    lines = data.draw(
        st.lists(st.tuples(st.sampled_from([-1, 0, 1, LEAVE_OUT]), st.sampled_from([0.0, 1.0])), min_size=1)
    )
    plan, slots = ranks(*lines), data.draw(st.integers(1, 6))
    order = np.zeros(slots, "i4")
    base_order = order_of(plan)
    filled = fill_slots(False, *queue_of(plan), plan, slots, order)
    assert order[:filled].tolist() == base_order[:slots]
    scores = data.draw(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), min_size=filled, max_size=filled))
    rerank(plan, order, filled, np.array(scores))
    first = sorted(range(filled), key=lambda k: -scores[k])  # a stable sort
    assert order_of(plan) == [base_order[k] for k in first] + base_order[filled:]


@pytest.mark.slow
@pytest.mark.parametrize("name", BASES)
def test_equal_scores_are_the_base_byte_for_byte(name):
    base = scheduler(name)
    for seed in range(6):
        wanted = bytes_of(served_by(base, seed))
        assert bytes_of(served_by(ranked(base, network_of()), seed)) == wanted
        assert bytes_of(served_by(scored(base, SLOTS), seed)) == wanted


@pytest.mark.parametrize("name", BASES)
def test_a_run_with_random_weights(name):
    base, differ = scheduler(name), 0
    for seed in range(6):
        simulation = served_by(ranked(base, network_of(seed)), seed, engines=1 + seed % 2)
        check_served(simulation)
        differ += bytes_of(simulation) != bytes_of(served_by(base, seed, engines=1 + seed % 2))
        again = served_by(ranked(base, network_of(seed)), seed, engines=1 + seed % 2)
        assert bytes_of(again) == bytes_of(simulation)
    assert differ, "scores that change nothing test nothing"


# Four prompts of 4 tokens and one of 2, a batch of 4 tokens at a time.
PROMPTS = {"prompt_tokens": [4, 4, 2, 4, 4], "arrival_s": [0.0, 0.0, 0.0, 0.0, 0.0]}


def finished_in_order(policy: Policy) -> list[int]:
    simulation = Simulation(scene(requests(**PROMPTS), policy, linear(c_p=1, b_d=1, t_c=1)))
    simulation.run()
    return np.argsort(simulation.arrays.outcomes["finish_s"], kind="stable").tolist()


def test_a_score_of_one_feature():
    base = scheduler("sarathi-fcfs:max_num_batched_tokens=4")
    assert finished_in_order(base) == [0, 1, 2, 3, 4]
    assert finished_in_order(ranked(base, by_field("prompt_left", -1.0))) == [2, 0, 1, 3, 4]  # the shortest first
    # The last comes first, of those in six slots; a prefill once begun is cut only by the budget.
    assert finished_in_order(ranked(base, by_field("position", 1.0))) == [4, 3, 2, 1, 0]


def test_scores_that_are_written_for_each_decision():
    base = scheduler("sarathi-fcfs:max_num_batched_tokens=4")
    simulation = Simulation(scene(requests(**PROMPTS), scored(base, SLOTS), linear(c_p=1, b_d=1, t_c=1)))
    at = first_score(base)
    while simulation.step():
        left = simulation.arrays.engines[0].queue_length
        simulation.arrays.parameters[0, at : at + left] = np.arange(left)  # the last of them
    result = simulation.result()
    assert np.argsort(result.requests.finish_s, kind="stable").tolist() == [4, 3, 2, 1, 0]


def test_what_the_slots_hold_is_shown():
    """flow-prefill leaves out all but one batch; shown are all requests, and any of them can be put first."""
    base = scheduler("flow-prefill:batch_token_budget=0")
    policy = scored(base, SLOTS)
    late = requests(prompt_tokens=[4, 4, 4], ttft_slo_s=[100.0, 200.0, 300.0])
    simulation = Simulation(scene(late, policy, linear(c_p=1, b_d=1, t_c=1)))
    assert simulation.step()
    numbers, at = simulation.arrays.parameters[0], first_score(base)
    plan = simulation.ranks_of(policy, numbers.copy(), 0, 0.0)
    assert order_of(plan) == [0], "decided: the earliest deadline runs, alone"
    shown = numbers.copy()
    shown[at + SLOTS] = 1.0
    assert order_of(simulation.ranks_of(policy, shown, 0, 0.0)) == [0, 1, 2]
    numbers[at + 2] = 1.0
    assert order_of(simulation.ranks_of(policy, numbers.copy(), 0, 0.0)) == [2]
    while simulation.step():
        numbers[at : at + SLOTS] = 0.0
    finish_s = simulation.result().requests.finish_s
    assert np.argsort(finish_s, kind="stable").tolist() == [2, 0, 1]


def test_bases_that_cannot_be_asked_twice_are_refused():
    refused = set()
    for name in scheduler_names():
        base = scheduler(name)
        try:
            scored(base, 4)
        except PolicyError as error:
            assert f"{name} keeps numbers of its own" in str(error)
            refused.add(name)
    assert {"weighted-vtc", "fastserve-mlfq", "hpjf", "semantic", "qoserve"} <= refused
    assert not refused & set(BASES)


@pytest.mark.parametrize("name", BASES)
def test_what_may_be_asked_twice_answers_alike(name):
    """At each decision of a run asked three times: the run is the same as if asked once."""
    base = scheduler(name)
    for seed in range(4):
        once = served_by(base, seed)
        simulation = Simulation(once.scenario, record_timeline=True)
        while simulation.step():
            arrays, e = simulation.arrays, 0
            for _ in range(2):
                limits = np.zeros(1, arrays.limits.dtype)
                context = simulation.scheduler_context(e, arrays.status[0].now_s)
                base.function.entry(context, arrays.ranks, limits[0])
        # flow-prefill sets a slice for decodes when it is asked first, and none then: only prefills can be cut.
        unread = {"limits": b"", "scratch": b""}
        assert bytes_of(simulation) | unread == bytes_of(once) | unread


def test_pickling():
    for policy in (ranked(scheduler("flow-prefill"), network_of(3)), scored(scheduler("slide-batching"), 4)):
        again = pickle.loads(pickle.dumps(policy))
        assert again == policy and again.function is policy.function


def test_policies_of_one_base_share_their_function():
    base = scheduler("slide-batching")
    assert ranked(base, network_of(1)).function is ranked(base, network_of(2, slots=3)).function
    assert ranked(base, network_of(1)).function is not ranked(scheduler("edf"), network_of(1)).function


@pytest.mark.parametrize(("wrong", "message"), [
    (lambda base: ranked(base, network_of(), 7), r"takes \(28, 22, 6\).* its observation has \(28, 22, 7\)"),
    (lambda base: ranked(base, Network.zeros(Shape("dense", 28, 6))), "the network is dense; it should be shared"),
    (lambda base: ranked(base, Network.zeros(Shape.shared_by(queue_layout(3), 2))), "has 2 outputs"),
    (lambda base: scored(base, 0), "0 slots; there should be 1 or more"),
    (lambda base: scored(scored(base, 4), 4), "the base should not be one"),
    (lambda base: scored(router("min-load"), 4), "is a router; the base should be a scheduler"),
])  # fmt: skip
def test_what_does_not_fit(wrong, message):
    with pytest.raises(PolicyError, match=message):
        wrong(scheduler("slide-batching"))
