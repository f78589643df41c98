"""Weighted VTC by hand: a counter of tokens served, in x 1 + out x 2, over the weight; the smallest is admitted.

A batch takes 1 s and 1 s a token; in runs max_num_seqs = 1, so that requests run one after the other.
"""

import numpy as np
import pytest

from servegym.baselines.registry import scheduler
from servegym.baselines.schedulers.weighted_vtc import COUNTER
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import decode, formed, ranked, state, waiting_for_a_batch
from tests.simulator.scenes import requests, scene

pytestmark = pytest.mark.nojit

DECODE, HOLDER, WAITING = range(3)
A, B, C = range(3)  # clients


def vtc(**settings):
    return scheduler("weighted-vtc").with_settings(**({"max_num_batched_tokens": 1000} | settings))


def ranks(*rows: dict, **settings) -> list[tuple[int, float]]:
    return ranked(vtc(**settings), *rows).ranks


def order(*rows: dict, **settings) -> list[int]:
    return [r for r, _ in formed(vtc(**settings), *rows).batch]


def run(**columns) -> Simulation:
    simulation = Simulation(scene(requests(**columns), vtc(max_num_seqs=1)))
    simulation.run()
    return simulation


def served_in_order(**columns) -> list[int]:
    """Requests by the time of their admission, one at a time."""
    return np.argsort(run(**columns).arrays.outcomes["admitted_s"], kind="stable").tolist()


# One ranking


def test_decodes_then_holders_then_waiting_requests():
    rows = [state(3, client=A), decode(client=A), state(9, 0, 4, client=B, arrival_s=0.5), decode(client=B)]
    assert ranks(*rows) == [(WAITING, 0), (DECODE, 0), (HOLDER, 0.5), (DECODE, 0)]
    assert order(*rows) == [1, 3, 2, 0]


def test_admitting_charges_the_prompt_at_once():
    # A: 4, 4; B: 6; C: 2, 2, 2, all counters 0. Turns: A (now 4), B (6), C (2), C (4), then A and C tie at 4: by place.
    rows = [state(4, client=A), state(4, client=A), state(6, client=B)] + [state(2, client=C)] * 3
    assert ranks(*rows) == [(WAITING, tag) for tag in (0, 4, 0, 0, 2, 4)]
    assert order(*rows) == [0, 2, 3, 4, 1, 5]
    assert formed(vtc(max_num_batched_tokens=13), *rows).batch == [(0, 4), (2, 6), (3, 2), (4, 1)]


def test_the_same_as_looking_for_the_smallest_counter_each_time():
    """Tags, and the rule as VTC writes it: take from the client with the smallest counter, charge, look again."""
    rng = np.random.default_rng(5)
    for _ in range(20):
        prompts, clients = rng.integers(1, 9, 12).tolist(), rng.integers(0, 4, 12).tolist()
        weights = [1.0, 2.0, 0.5, 4.0]
        counters, waiting, expected = [0.0] * 4, list(range(12)), []
        while waiting:
            heads = {clients[r]: r for r in reversed(waiting)}
            turn = min(heads.values(), key=lambda r: (counters[clients[r]], r))
            counters[clients[turn]] += prompts[turn] / weights[clients[turn]]
            expected.append(turn)
            waiting.remove(turn)
        rows = [state(p, client=c, weight=weights[c]) for p, c in zip(prompts, clients, strict=True)]
        assert order(*rows) == expected


def test_prompt_tokens_and_output_tokens_have_their_charges_and_weights_divide():
    rows = [state(4, client=A, weight=2.0), state(4, client=A, weight=2.0), state(4, client=B), state(4, client=B)]
    assert [tag for _, tag in ranks(*rows)] == [0, 2, 0, 4]
    assert [tag for _, tag in ranks(*rows, input_weight=3)] == [0, 6, 0, 12]


def test_a_client_of_many_weights_has_that_of_its_first_request():
    rows = [decode(client=A, weight=3.0), state(6, client=A, weight=1.0), state(6, client=A, weight=6.0)]
    assert [tag for _, tag in ranks(*rows)] == [0, 0, 2]


def test_what_was_served_counts():
    simulation = waiting_for_a_batch(vtc(), *[state(3, client=c) for c in (A, B, C)])
    history = simulation.arrays.state.by_client[0]
    history["admitted_prompt_tokens"], history["num_output_tokens"] = [10, 3, 12], [2, 6, 0]
    simulation.step()
    assert simulation.arrays.ranks["key"][:3].tolist() == [14, 15, 12]


def test_where_no_client_is_named_each_priority_is_one():
    # Priority 0 has two thirds of the weight: with 1 x 2 tokens a prompt and none charged for output, of every three
    # requests it has two.
    columns = {
        "prompt_tokens": 2, "output_tokens": 1, "priority": [1, 1, 1, 1, 0, 0, 0, 0], "weight": [1.0] * 4 + [2.0] * 4,
    }  # fmt: skip
    unnamed = served_in_order(arrival_s=np.zeros(8), **columns)
    assert unnamed == [0, 4, 5, 1, 6, 7, 2, 3]
    assert unnamed == served_in_order(arrival_s=np.zeros(8), client=[1] * 4 + [0] * 4, **columns)
    alike = served_in_order(arrival_s=np.zeros(8), client=[7] * 8, **columns)
    assert alike == list(range(8)), "one client that is named: first come, first served"


def test_a_head_without_room_ends_admission():
    # 10 blocks: 4 + 7 are too many; the 2 of C, whose counter is as small, do not go ahead.
    rows = [state(4, client=A), state(7, client=B), state(2, client=C)]
    assert formed(vtc(), *rows, blocks=10).batch == [(0, 4)]


def test_an_evicted_request_is_not_charged_again():
    rows = [state(4, client=A, evicted=1), state(4, client=A), state(4, client=A)]
    assert [tag for _, tag in ranks(*rows)] == [0, 0, 4]


def test_ranking_twice_is_ranking_once():
    simulation = waiting_for_a_batch(vtc(), *[state(3, client=c) for c in (A, B, B)])
    history = simulation.arrays.state.by_client[0]
    history["admitted_prompt_tokens"] = [10, 3]
    first = ranks_of(simulation)
    assert ranks_of(simulation) == first == [10, 3, 6]


def ranks_of(simulation: Simulation) -> list[float]:
    """The tags that one ranking gives; it changes the state."""
    arrays = simulation.arrays
    n = arrays.engines[0].queue_length
    context = simulation.scheduler_context(0, float(arrays.status[0].now_s))
    simulation.scenario.scheduler.function(context, arrays.ranks, arrays.limits[0])
    return arrays.ranks["key"][:n].tolist()


def test_limits():
    limits = ranked(vtc(max_num_batched_tokens=33, max_num_seqs=5), state(3)).limits
    assert (limits.max_num_batched_tokens, limits.max_num_seqs) == (33, 5)
    assert ranked(scheduler("weighted-vtc"), state(3)).limits.max_num_seqs == 128


# Over time


def test_the_client_served_less_goes_next():
    # All at 0. A's first is charged 5, then 2 a token; B's first three cost 1 + 2 = 3 each.
    prompts, clients = [5, 5, 1, 1, 1], [A, A, B, B, B]
    assert served_in_order(prompt_tokens=prompts, client=clients) == [0, 2, 3, 4, 1]


def test_a_client_that_comes_first_time_is_lifted_to_the_smallest_counter():
    # At 3 s A has been served 2 + 2 = 4 and waits; B, come at 1 s, starts from 4: the tie goes to A, which is earlier.
    # A has 8 then, B 4.
    columns = {"arrival_s": [0, 0, 0, 1], "prompt_tokens": 2, "client": [A, A, A, B]}
    assert served_in_order(**columns) == [0, 1, 3, 2]


def test_a_client_that_waits_is_not_lifted():
    # From 0 both wait. A is served (5 + 2 = 7), then B twice (3 each) although A waits with more.
    columns = {"prompt_tokens": [5, 5, 1, 1, 1, 1], "client": [A, A, B, B, B, B]}
    assert served_in_order(**columns) == [0, 2, 3, 4, 1, 5]


def test_a_client_of_which_none_was_left_waiting_returns():
    # A runs till 5 s (A 6; B, come at 1 s, 6), again till 10 s (A 12), then B till 12 s (9). B's second came at 11 s,
    # when none of B's waited: it returns, is lifted to 12, and A is earlier.
    columns = {"arrival_s": [0, 0, 0, 1, 11], "prompt_tokens": [4, 4, 4, 1, 1], "client": [A, A, A, B, B]}
    assert served_in_order(**columns) == [0, 1, 3, 2, 4]
    # Had one of B's been waiting since 1 s, B would have gone on with its 9.
    columns = {"arrival_s": [0, 0, 0, 1, 1], "prompt_tokens": [4, 4, 4, 1, 1], "client": [A, A, A, B, B]}
    assert served_in_order(**columns) == [0, 1, 3, 4, 2]


def test_lifting_never_lowers():
    # A is served 9 + 2 = 11 till 10 s and comes back at 11 s, while B waits with 3: B's, at 3, 6 and 9, go first.
    columns = {"arrival_s": [0, 0, 0, 0, 0, 11], "prompt_tokens": [9, 1, 1, 1, 1, 1], "client": [A, B, B, B, B, A]}
    assert served_in_order(**columns) == [0, 1, 2, 3, 4, 5]


def test_when_none_waits_a_client_is_lifted_to_the_one_that_left_last():
    # A is served 2 + 3 x 2 = 8 and is gone. At 100 s B (two requests) starts from 8 too, so A's is not last.
    columns = {"arrival_s": [0, 100, 100, 100], "prompt_tokens": 2, "output_tokens": [3, 1, 1, 1],
               "client": [A, B, B, A]}  # fmt: skip
    assert served_in_order(**columns) == [0, 1, 3, 2]


def test_what_left_last_is_what_ranked_last():
    # At 0 B (1), then A (2) by place, each admitted at once (3 s); 100 s later C starts from A's 4, not from B's 3.
    policy = vtc(max_num_seqs=10)
    workload = requests(arrival_s=[0, 0, 100], prompt_tokens=[1, 2, 1], client=[B, A, C])
    simulation = Simulation(scene(workload, policy))
    simulation.run()
    assert simulation.arrays.state.clients[0, [A, B, C], COUNTER].tolist() == [4, 0, 4]


@pytest.mark.parametrize("weights", [(1.0, 1.0), (2.0, 1.0), (3.0, 1.0)])
def test_backlogged_clients_share_by_weight(weights):
    """Two clients that always wait: services over weights differ by no more than VTC's bound."""
    rng = np.random.default_rng(7)
    n, longest, running = 160, 9, 2
    client = np.arange(n) % 2
    workload = requests(
        prompt_tokens=rng.integers(1, longest + 1, n), output_tokens=rng.integers(1, longest + 1, n), client=client,
        weight=np.asarray(weights)[client],
    )  # fmt: skip
    simulation = Simulation(scene(workload, vtc(max_num_seqs=running), until_s=600.0))
    simulation.run()
    statistics = simulation.arrays.state.by_client[0]
    assert (statistics["queued"] > running).all()  # both still wait
    served = statistics["admitted_prompt_tokens"] + 2 * statistics["num_output_tokens"]
    # The bound: twice the larger of a prompt and what the running requests hold, at 2 a token.
    bound = 2 * max(longest, 2 * running * longest)
    assert abs(served[A] / weights[A] - served[B] / weights[B]) <= bound < served.sum() / 8
