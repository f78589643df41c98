"""plas by hand: a batch takes 1 s + 1 s a token, a block holds one token."""

import pytest

from servegym.baselines.registry import scheduler
from tests.simulator.forming import decode, formed, ranked, state

pytestmark = pytest.mark.nojit

PLAS = scheduler("plas:max_num_batched_tokens=8,quantum_tokens=100,promote_after_s=50")


def keys(*rows: dict, now_s: float = 0.0) -> list[float]:
    return [key for _, key in ranked(PLAS, *rows, now_s=now_s).ranks]


def test_each_level_holds_twice_as_much_as_the_one_above() -> None:
    rows = [state(5, session_tokens=tokens) for tokens in (0, 99, 100, 299, 300)]
    assert keys(*rows) == [0, 0, 1, 1, 2]


def test_what_has_waited_long_goes_to_the_top() -> None:
    long, short = state(5, session_tokens=1000), state(5, session_tokens=1000, arrival_s=1.0)
    assert keys(long, short, now_s=50.0) == [0, 3]


def test_decodes_go_first_and_levels_before_arrivals() -> None:
    heavy, light = state(5, session_tokens=400), state(5, session_tokens=0, arrival_s=2.0)
    running = decode(session_tokens=9000, arrival_s=3.0)
    assert formed(PLAS, heavy, light, running, now_s=4.0).batch == [(2, 1), (1, 5), (0, 2)]
