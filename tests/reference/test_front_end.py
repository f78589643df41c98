"""Front ends, worked by hand: docs/feature_rules.md (scenes.py has what the cases are set in)."""

from typing import Any

from .scenes import SECONDS, row, steps
from .schedulers.vllm import VllmV1
from .simulator import FrontEnd, Log, simulate


def served(rows: list[dict], front_end: FrontEnd, **limits: Any) -> Log:
    return simulate(rows, 1, 1, 1000, 0.0, VllmV1(), SECONDS, SECONDS, front_end=front_end, **limits)


def test_there_and_back():
    # Ready at 2 + 4 x 0.5 = 4. Prefill 4 to 9, decodes of 2 s: tokens come out at 9, 11, 13, and are there 1 s later.
    one = row(4, 3, ttft_slo_s=10.5, tpot_slo_s=1.75, decode_token_gain=0.25)
    log = served([one], FrontEnd(2.0, 0.5, 0.25, 0.75))
    assert steps(log) == [(4, 9, [(0, 4)], [], 996), (9, 11, [(0, 1)], [], 995), (11, 13, [(0, 1)], [], 994)]
    assert log.emission_s == [[9, 11, 13]] and log.finish_s == [13]
    assert log.ready_s == [4] and log.client_s == [[10, 12, 14]]
    # Deadlines 10.5, 12.25 and 14, at which it is too late. 1 + 0.25.
    assert log.gains == [1.25]


def test_a_short_prompt_overtakes_a_long_one():
    log = served([row(10, 1), row(1, 1)], FrontEnd(0.0, 1.0))
    assert log.ready_s == [10, 1] and log.emission_s == [[21], [3]]


def test_one_process_does_one_thing_after_another():
    # Requests of 1 s each: ready at 1 and 2. 1 to 6: r0's prompt. Its token sets out at 6, and is streamed to 10.
    # 6 to 9: r1's prompt. Its token waits to 10, and is streamed to 14. r2 comes when it came out, at 9, but after it:
    # ready at 15.
    log = served([row(4, 1), row(2, 1), row(1, 1, 9.0)], FrontEnd(1.0, 0.0, 4.0, 0.5, one_process=True))
    assert log.ready_s == [1, 2, 15]
    assert log.emission_s == [[6], [9], [17]] and log.client_s == [[10.5], [14.5], [21.5]]


def test_the_next_turn_comes_when_the_client_has_the_last():
    # r0 is ready at 1, its only token comes out at 1 + 5 = 6 and is there at 8. r1 comes at 8 + 3, and is ready at 12.
    log = served([row(4, 1), row(4, 1, after=0, think_s=3.0)], FrontEnd(1.0, back_s=2.0))
    assert log.ready_s == [1, 12] and log.client_s == [[8], [19]]


def test_what_has_yet_to_get_the_last_token_is_under_way():
    rows = [row(4, 1), row(4, 1)]
    assert served(rows, FrontEnd(1.0, back_s=2.0), max_concurrency=1).ready_s == [1, 9]
    assert served(rows, FrontEnd(1.0, back_s=2.0), clients=1).ready_s == [1, 9]
    assert served(rows, FrontEnd(1.0, back_s=2.0)).ready_s == [1, 1]


def test_deadlines_count_from_when_the_client_has_sent():
    # Sent at 8; ready at 9, out at 14, there at 16: 8 s later.
    rows = [row(4, 1, ttft_slo_s=9.0), row(4, 1, ttft_slo_s=8.5)]
    assert served(rows, FrontEnd(1.0, back_s=2.0), clients=1).gains == [1, 1]
    rows[1]["ttft_slo_s"] = 8.0
    assert served(rows, FrontEnd(1.0, back_s=2.0), clients=1).gains == [1, 0]
