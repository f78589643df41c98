"""Router kv-aware on paper (docs/systems/routers.md). Chunks have 4 tokens; a block has one, unless a case says so."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.baselines.registry import router
from servegym.baselines.routers.kv_aware import OF_TOKENS, STREAM, UNCACHED
from servegym.errors import PolicyError
from servegym.simulator.records.random import uniform
from servegym.simulator.records.signatures import KINDS
from tests.baselines.router_cases import asked, engine, engines_of, waits

pytestmark = pytest.mark.nojit
ROUTER = "kv-aware"
NO_STORES = {"stores": (None, None), "kv_memory": True}


def prompt(tokens: int, chunks: int) -> dict:
    return waits(tokens, chunks=list(range(chunks)))


def test_blocks_to_be_prefilled_and_blocks_in_use():
    # Of 10 blocks 2, 5 and 8 are there; 20, 15 and 19 are in use with the request: 8 + 20, 5 + 15, 2 + 19.
    engines = [
        engine(has=has, decode_tokens=decode_tokens, block_tokens=4)
        for has, decode_tokens in ((2, 40), (5, 20), (8, 36))
    ]
    assert asked(ROUTER, prompt(40, 10), *engines) == 1
    assert asked(f"{ROUTER}:overlap_weight=3", prompt(40, 10), *engines) == 2  # 44, 30 and 25
    assert asked(f"{ROUTER}:overlap_weight=0", prompt(40, 10), *engines) == 1  # 20, 15 and 19


def test_prompts_that_wait_count_for_both():
    # 2 x (6 + 4) + 6 + 4 = 30 s against 2 x 4 + d + 4: a block in use counts once, one to be prefilled twice.
    waiting = engine(waits(6), state={UNCACHED: 6.0, OF_TOKENS: 6.0})
    for decode_tokens, named in ((17, 1), (19, 0)):
        assert asked(f"{ROUTER}:overlap_weight=2", waits(4), waiting, engine(decode_tokens=decode_tokens)) == named


def test_what_leaves_the_record_takes_its_share_by_tokens():
    # Of 9 uncached tokens in 16 there are 4.5 in 8: 4.5 + 4 + 8 + 4 = 20.5 against 6 + 4 + 6 + 4 and 7 + 4 + 7 + 4.
    left = engine(waits(8), state={UNCACHED: 9.0, OF_TOKENS: 16.0})
    for tokens, named in ((6, 1), (7, 0)):
        other = engine(waits(tokens), state={UNCACHED: float(tokens), OF_TOKENS: float(tokens)})
        assert asked(ROUTER, waits(4), left, other) == named


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10), st.integers(0, 12).map(lambda n: 4 * n), st.sampled_from([1, 4]), st.integers(0, 3)
        ),
        min_size=1,
        max_size=KINDS,
    ),
    st.sampled_from([0.0, 1e-4, 0.3, 1.0, 3.0, 1e6]),
    st.integers(-1, KINDS),
)
def test_where_a_prompt_is_not_looked_up_the_cost_is_not_the_least(loads, weight, last):
    """The engine of the least cost by the rule, where all are looked up; of equal ones that which was sent a request
    longest ago. loads: chunks there, decode tokens, tokens of a block, when it was sent a request last. last: where the
    request's session was sent, which there may be no more."""
    engines = [engine(has=has, decode_tokens=tokens, block_tokens=size) for has, tokens, size, _ in loads]
    costs = [(weight * (40 - min(4 * has, 39)) + (tokens + 40)) / size for has, tokens, size, _ in loads]
    sent = [when for _, _, _, when in loads]
    named = min(range(len(loads)), key=lambda e: (costs[e], sent[e], e))
    request = prompt(40, 10) | {"session_engine": last}
    assert asked(f"{ROUTER}:overlap_weight={weight}", request, *engines, sent=tuple(sent)) == named


def test_one_token_is_always_left():
    # All of it is there: 1 + d + 8 against 8 + 8.
    for decode_tokens, named in ((6, 0), (8, 1)):
        there = engine(has=2, decode_tokens=decode_tokens)
        assert asked(ROUTER, prompt(8, 2), there, engine()) == named


def test_with_nothing_known_to_begin_alike_it_counts_tokens():
    assert asked(ROUTER, waits(4), engine(decode_tokens=9), engine(waits(8)), engine(decode_tokens=10)) == 1
    assert asked(ROUTER, prompt(8, 2), engine(decode_tokens=9), engine(decode_tokens=8)) == 1


def test_what_was_sent_is_there_and_what_waits_is_not_computed_twice():
    # 8 + 8 s. 8 + 1 + 8 + 8 against 8 + 8. 25 and 25. 8 + 1 + 1 + 16 + 8 against 25.
    again = (0, 8, [0, 1])
    assert engines_of(ROUTER, again, again, again, again, **NO_STORES) == [0, 1, 0, 1]
    # Once the first is done: 1 + 8 against 8 + 8; with another beginning both are empty, and 1 was never sent one.
    assert engines_of(ROUTER, again, (9, 8, [0, 1]), **NO_STORES) == [0, 0]
    assert engines_of(ROUTER, again, (9, 8, [2, 3]), **NO_STORES) == [0, 1]
    assert engines_of(ROUTER, again, (9, 8, [0, 1]), stores=(None, None)) == [0, 1]


def test_decode_engines_by_blocks_in_use():
    decoders = [engine(role="decode", decode_tokens=tokens, block_tokens=size) for tokens, size in ((40, 4), (9, 1))]
    assert asked(ROUTER, waits(4), *decoders, emitted=1) == 0  # 45 / 4 against 14


def test_a_temperature_draws_by_the_softmax_of_scaled_costs():
    # Costs of 4 + 4, 2 + 8 and 4 + 8: 0, 0.5 and 1 from the least to the most.
    engines = [engine(), engine(decode_tokens=2), engine(decode_tokens=4)]
    shares = [math.exp(-cost / 0.7) for cost in (0.0, 0.5, 1.0)]
    named = []
    for seed in range(200):
        u = uniform(seed, STREAM, 0) * sum(shares)
        expected = 0 if u <= shares[0] else 1 if u <= shares[0] + shares[1] else 2
        named.append(asked(f"{ROUTER}:temperature=0.7,seed={seed}", waits(4), *engines))
        assert named[-1] == expected
    assert len(Counter(named)) == 3


def test_a_high_temperature_and_equal_costs_are_as_random():
    alike = [engine(), engine(), engine()]
    for seed in range(20):
        place = int(3 * uniform(seed, STREAM, 0))
        assert asked(f"{ROUTER}:temperature=0.1,seed={seed}", waits(4), *alike) == place
        unlike = [engine(), engine(decode_tokens=5), engine(decode_tokens=99)]
        assert asked(f"{ROUTER}:temperature=1000000,seed={seed}", waits(4), *unlike) == place


def test_a_low_temperature_is_the_least_cost():
    engines = [engine(decode_tokens=5), engine(), engine(decode_tokens=6)]
    for seed in range(20):
        assert asked(f"{ROUTER}:temperature=1e-9,seed={seed}", waits(4), *engines) == 1


def test_settings_that_are_none():
    for settings in ("temperature=-1", "overlap_weight=-1", "temperature=nan"):
        with pytest.raises(PolicyError):
            router(f"{ROUTER}:{settings}")
