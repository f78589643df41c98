"""Schedulers made from a score, on queues written by hand."""

import pickle

import numpy as np
import pytest

from servegym.errors import PolicyError
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.policies.policy import Parameter, Parameters, Policy
from servegym.simulator.policies.scores import score
from servegym.simulator.records.requests import left_of
from servegym.simulator.records.types import NO_LIMIT
from tests.simulator.forming import decode, formed, ranked, state

pytestmark = pytest.mark.nojit

P = Parameters(
    Parameter("budget", 8, "tokens", 1, 2**20, integer=True),
    Parameter("wait_s", 2.0, "seconds", 0, 100),
    Parameter("lambda", 3.0, "a name that Python has taken", 0, 100),
)


@score(
    P, limits={"max_num_batched_tokens": "budget", "time_budget_s": "wait_s", "untimed_decodes": 1, "max_num_seqs": 5}
)
def shortest(request, engine, now_s, estimates, p):
    return left_of(request)


@score(P, decodes="first", by_priority=True)
def shortest_prefill(request, engine, now_s, estimates, p):
    return left_of(request)


@score(P, decodes="last")
def latest(request, engine, now_s, estimates, p):
    return -request.arrival_s


@score(P)
def all_arguments(request, engine, now_s, estimates, p):
    return p.lambda_ * estimates.exec_s + 100.0 * estimates.constant_s + now_s + engine.total_blocks * 1e-3


@kernel
def two_sequences(limits, p):
    limits.sequence_budget = p.budget // 4


@score(P, limits=two_sequences)
def by_kernel(request, engine, now_s, estimates, p):
    return 0.0


def policy(function) -> Policy:
    return Policy(function.written.__name__, "scheduler", "", "", function, parameters=P)


def test_the_lowest_score_runs_first_and_ties_go_to_the_earlier_position():
    queue = [state(5), state(2), state(5), state(1)]
    assert ranked(policy(shortest), *queue).ranks == [(0, 5.0), (0, 2.0), (0, 5.0), (0, 1.0)]
    batch = formed(policy(shortest).with_settings(wait_s=100.0), *queue).batch
    assert batch == [(3, 1), (1, 2), (0, 5)]  # 8 tokens


def test_limits_are_parameters_and_numbers_by_name():
    limits = ranked(policy(shortest).with_settings(budget=12), state(1)).limits
    assert (limits.max_num_batched_tokens, limits.time_budget_s, limits.untimed_decodes, limits.max_num_seqs) == (
        12, 2.0, 1, 5,
    )  # fmt: skip
    assert formed(policy(by_kernel), state(3), state(3), state(3)).batch == [(0, 3), (1, 3)]


def test_decodes_apart_and_priorities():
    queue = [state(5, priority=1), decode(arrival_s=-1.0), state(9, priority=0), decode(arrival_s=-2.0)]
    ranks = ranked(policy(shortest_prefill), *queue).ranks
    assert [key for _, key in ranks] == [5.0, -1.0, 9.0, -2.0]
    assert np.lexsort(([key for _, key in ranks], [tier for tier, _ in ranks])).tolist() == [3, 1, 2, 0]
    ranks = ranked(policy(latest), *queue).ranks
    assert sorted(range(4), key=lambda i: (ranks[i], i)) == [0, 2, 3, 1]


def test_estimates_parameters_time_and_engine_are_what_they_say():
    # A prompt token takes 1 s, and a batch 1 s more.
    (_, key), (_, other) = ranked(policy(all_arguments), state(4), state(6), now_s=7.0).ranks
    assert (key, other) == (3.0 * 4 + 100.0 + 7.0 + 1.0, 3.0 * 6 + 100.0 + 7.0 + 1.0)


def test_what_gives_up_memory_first_is_what_would_run_last():
    found = ranked(policy(shortest), state(5), state(2))
    assert found.victim_ranks == found.ranks and found.limits.max_num_batched_tokens < NO_LIMIT


@pytest.mark.parametrize(("more", "words"), [
    ({"limits": {"tokn_budget": 3}}, "there is no limit tokn_budget; there are max_num_batched_tokens, chunk_tokens"),
    ({"limits": {"max_num_batched_tokens": "bugdet"}},
     "limit max_num_batched_tokens is bugdet, .*; there are budget, wait_s, lambda"),
    ({"limits": {"max_num_batched_tokens": "wait_s"}},
     "limit max_num_batched_tokens is wait_s; it should be a whole number"),
    ({"limits": {"chunk_tokens": 0}}, "limit chunk_tokens is 0 in every batch; it should be 1 or more"),
    ({"limits": {"max_num_seqs": 0}}, "limit max_num_seqs is 0 in every batch; it should be 1 or more"),
    ({"limits": {"long_prefill_token_threshold": 4, "chunk_tokens": 5}},
     "_threshold and chunk_tokens are the same"),
    ({"limits": {"max_num_batched_tokens": 2.5}}, "limit max_num_batched_tokens is 2.5; it should be a whole number"),
    ({"decodes": "never"}, "decodes are 'never'; they should be one of first, last, scored"),
])  # fmt: skip
def test_what_a_score_cannot_be(more, words):
    with pytest.raises(PolicyError, match=words):
        score(P, **more)


def test_a_score_takes_five_arguments():
    with pytest.raises(PolicyError, match="<lambda> takes 2 arguments; a score should take request, engine"):
        score(P)(lambda request, p: 0.0)


def test_it_is_pickled_by_its_name():
    assert pickle.loads(pickle.dumps(shortest)) is shortest
