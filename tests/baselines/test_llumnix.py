"""Llumnix's dispatch on paper: docs/systems/routers.md. A block holds one token, unless a case says so."""

import pytest

from tests.baselines.router_cases import asked, engine, waits

pytestmark = pytest.mark.nojit


def test_most_free_memory_a_request():
    # 100 / 4, 90 / 3 and 200 / 10 blocks.
    engines = [engine(requests=requests, free_blocks=free) for requests, free in ((4, 100), (3, 90), (10, 200))]
    assert asked("llumnix", waits(1), *engines) == 1


def test_memory_for_prompts_that_wait_is_taken_off():
    # (100 - 30 - 10) / 2 = 30 against 29 / 1 and 31 / 1; the request itself does not count.
    waiting = engine(waits(30), waits(10), free_blocks=100)
    assert asked("llumnix", waits(70), waiting, engine(requests=1, free_blocks=29)) == 0
    assert asked("llumnix", waits(70), waiting, engine(requests=1, free_blocks=31)) == 1


def test_freeness_may_be_below_zero():
    # (10 - 50) / 1 = -40 and (10 - 100) / 4 = -22.5: more requests share what is missing.
    crowded = engine(waits(100), free_blocks=10, requests=4)
    assert asked("llumnix", waits(1), engine(waits(50), free_blocks=10), crowded) == 1


def test_an_idle_engine_goes_before_all_others():
    assert asked("llumnix", waits(1), engine(requests=1, free_blocks=5000), engine(free_blocks=1)) == 1
    # Two of them: the one that was sent a request longest ago, whatever their memory.
    idle = [engine(free_blocks=5000), engine(free_blocks=10)]
    assert asked("llumnix", waits(1), *idle) == 0
    assert asked("llumnix", waits(1), *idle, sent=(2.0, 1.0)) == 1


def test_ties_go_to_what_was_sent_a_request_longest_ago():
    alike = [engine(requests=2, free_blocks=40), engine(requests=1, free_blocks=20)]
    assert asked("llumnix", waits(1), *alike) == 0
    assert asked("llumnix", waits(1), *alike, sent=(2.0, 1.0)) == 1


def test_decode_engines_have_none_waiting():
    decoders = [engine(role="decode", requests=2, decodes=2, free_blocks=blocks) for blocks in (10, 30, 20)]
    assert asked("llumnix", waits(500), *decoders, emitted=1) == 1


def test_prompts_take_whole_blocks():
    # With blocks of 16 two prompts of 17 tokens wait for 4: (10 - 4) / 2 = 3. (34 tokens in one go would be 3 blocks.)
    waiting = engine(waits(17), waits(17), block_tokens=16, free_blocks=10)
    assert asked("llumnix", waits(1), waiting, engine(requests=4, free_blocks=13)) == 1
    assert asked("llumnix", waits(1), waiting, engine(requests=4, free_blocks=11)) == 0
