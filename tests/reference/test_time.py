"""Time, worked by hand: each case with its working (scenes.py has what they are set in)."""

from .scenes import row, served, steps
from .schedulers.sarathi import SarathiFcfs
from .schedulers.vllm import VllmV1


def test_one_request():
    # Prefill of 4: 0 to 1 + 4 = 5, token 1. Two decodes of 1 + 1 = 2 s: tokens at 7 and 9.
    # The last token is never computed: 4 + 2 blocks at the end, then all are free.
    log = served([row(4, 3, ttft_slo_s=5.5, tpot_slo_s=1.75, decode_token_gain=0.25)], SarathiFcfs(512), 10)
    assert steps(log) == [(0, 5, [(0, 4)], [], 6), (5, 7, [(0, 1)], [], 5), (7, 9, [(0, 1)], [], 4)]
    assert log.emission_s == [[5, 7, 9]] and log.finish_s == [9]
    # Deadlines 5.5, 7.25 and 9: strictly before counts, so 9 at 9 does not. 1 + 0.25.
    assert log.gains == [1.25] and log.gain == 1.25


def test_ttlt_is_the_deadline_of_every_token():
    log = served([row(4, 3, ttft_slo_s=1, tpot_slo_s=1, ttlt_slo_s=9)], SarathiFcfs(512))
    assert log.gain == 2  # tokens at 5, 7, 9; the deadline of all is 9


def test_two_requests_in_chunks():
    # Budget 4. 0-5: 4 of r0's 6. 5-10: r0's other 2 (token 1 at 10) and 2 of r1's 3.
    # 10-13: r0 decodes first (token 2, the end), then r1's last 1: token 1, the end.
    log = served([row(6, 2), row(3, 1)], SarathiFcfs(4))
    assert [(s, e, b) for s, e, b, _, _ in steps(log)] == [
        (0, 5, [(0, 4)]),
        (5, 10, [(0, 2), (1, 2)]),
        (10, 13, [(0, 1), (1, 1)]),
    ]
    assert log.emission_s == [[10, 13], [13]] and log.finish_s == [13, 13]


def test_an_arrival_at_the_end_of_an_iteration_joins_the_next():
    log = served([row(4, 2), row(3, 1, arrival_s=5.0)], SarathiFcfs(512))
    assert [i.batch for i in log.iterations] == [[(0, 4)], [(0, 1), (1, 3)]]


def test_engines_take_turns_and_ties_go_by_index():
    # r0, r2 -> engine 0 (2 + 3 tokens: ends at 6), r1, r3 -> engine 1 (4 + 1: ends at 6).
    log = served([row(2, 2), row(4, 2), row(3, 1), row(1, 1)], SarathiFcfs(512), engines=2)
    assert [(i.engine, i.start_s, i.batch) for i in log.iterations] == [
        (0, 0, [(0, 2), (2, 3)]),
        (1, 0, [(1, 4), (3, 1)]),
        (0, 6, [(0, 1)]),
        (1, 6, [(1, 1)]),
    ]


def test_idle_between_arrivals_and_until():
    log = served([row(4, 1), row(2, 3, arrival_s=50.0)], SarathiFcfs(512), until_s=53.0)
    # 50-53: token 1 at 53; the decode started at 53 ends after `until_s`.
    assert [i.start_s for i in log.iterations] == [0, 50, 53]
    assert log.emission_s == [[5], [53]] and log.finish_s == [5, None]


def test_a_run_with_an_eviction():
    # 8 blocks. 0-7: both prompts (3 + 3), 2 free. 7-10: both decode, 0 free. At 10 r0 wants a block:
    # r1, admitted last, gives up its 4, r0 takes 1 and has 5; r1 may not come back in this batch.
    # At 12 r0 has 6, and r1's context of 3 + 2 does not fit into 2. r0 ends at 14 with 4 tokens;
    # r1 computes 5, token 3 at 20.
    log = served([row(3, 4), row(3, 3)], VllmV1(), blocks=8)
    assert steps(log) == [
        (0, 7, [(0, 3), (1, 3)], [], 2),
        (7, 10, [(0, 1), (1, 1)], [], 0),
        (10, 12, [(0, 1)], [1], 3),
        (12, 14, [(0, 1)], [], 2),
        (14, 20, [(1, 5)], [], 3),
    ]
    assert log.emission_s == [[7, 10, 12, 14], [7, 10, 20]] and log.evictions == 1


def test_a_request_joins_when_it_is_ready():
    # r0 is ready at 5, r1 (arrived at 1) too: 5 to 5 + 1 + 4 + 3. Deadlines count from the arrivals:
    # at 13 r0 (10) is late, r1 (1 + 13) is not.
    log = served([row(4, 1, ready_s=5, ttft_slo_s=10), row(3, 1, 1.0, ready_s=5, ttft_slo_s=13)], SarathiFcfs(512))
    assert [(i.start_s, i.end_s, i.batch) for i in log.iterations] == [(5, 13, [(0, 4), (1, 3)])]
    assert log.gains == [0, 1]


def test_ready_at_the_end_of_an_iteration():
    # r1 arrives while r0 is computed (0 to 5) and is ready at 5, when r0 ends; r2 at 7, in the next.
    log = served([row(4, 2), row(3, 1, 1.0, ready_s=5), row(2, 1, 2.0, ready_s=7)], SarathiFcfs(512))
    assert [(i.start_s, i.batch) for i in log.iterations] == [(0, [(0, 4)]), (5, [(0, 1), (1, 3)]), (10, [(2, 2)])]
