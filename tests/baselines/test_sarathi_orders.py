"""sarathi-edf, sarathi-srpf and sarathi-sjf by hand: a batch takes 1 s + 1 s a token, a block holds one token."""

import pytest

from servegym.baselines.registry import scheduler
from tests.simulator.forming import decode, formed, ranked, state

pytestmark = pytest.mark.nojit

PREFILL = 0

EDF, SRPF, SJF = "sarathi-edf", "sarathi-srpf", "sarathi-sjf"


def keys(name: str, *rows: dict, now_s: float = 0.0) -> list[float]:
    return [key for _, key in ranked(scheduler(name).with_settings(max_num_batched_tokens=8), *rows, now_s=now_s).ranks]


def batch(name: str, *rows: dict, max_num_batched_tokens: int = 8, **limits: int) -> list[tuple[int, int]]:
    return formed(scheduler(name).with_settings(max_num_batched_tokens=max_num_batched_tokens, **limits), *rows).batch


def test_edf_goes_by_the_first_token_or_the_whole_answer():
    interactive = state(5, ttft_slo_s=6, tpot_slo_s=1)
    whole = state(5, ttft_slo_s=1, ttlt_slo_s=4)  # its TTFT SLO does not count
    assert keys(EDF, interactive, whole) == [6, 4]
    assert batch(EDF, interactive, whole) == [(1, 5), (0, 3)]


def test_edf_counts_from_the_arrival():
    rows = state(5, ttft_slo_s=6, arrival_s=3.0), state(5, ttft_slo_s=8, arrival_s=0.5)
    assert keys(EDF, *rows, now_s=4.0) == [9, 8.5]


def test_edf_keeps_the_first_deadline_of_a_request_that_lost_its_memory():
    assert keys(EDF, state(5, emitted=3, ttft_slo_s=6, tpot_slo_s=2)) == [6]


def test_srpf_goes_by_what_is_left_sjf_by_the_prompt():
    begun, short = state(9, computed=7), state(4)
    assert keys(SRPF, begun, short) == [2, 4] and keys(SJF, begun, short) == [9, 4]
    assert batch(SRPF, begun, short, max_num_batched_tokens=3) == [(0, 2), (1, 1)]
    assert batch(SJF, begun, short, max_num_batched_tokens=5) == [(1, 4), (0, 1)]


def test_srpf_counts_lost_output_too_sjf_does_not():
    # 4 prompt tokens and 3 that were out when memory was lost: 7 to compute.
    assert keys(SRPF, state(4, emitted=3)) == [7] and keys(SJF, state(4, emitted=3)) == [4]


@pytest.mark.parametrize("name", [EDF, SRPF, SJF])
def test_decodes_first_by_arrival_and_within_the_budget(name):
    # The prompt is the earliest, shortest and most urgent; decodes still go first, the earlier first.
    rows = state(1, ttft_slo_s=0.1), decode(arrival_s=-1.0), decode(arrival_s=-2.0)
    assert batch(name, *rows) == [(2, 1), (1, 1), (0, 1)]
    assert batch(name, *rows, max_num_batched_tokens=2) == [(2, 1), (1, 1)]


@pytest.mark.parametrize("name", [EDF, SRPF, SJF])
def test_ties_go_by_place(name):
    assert batch(name, state(3), state(3), state(3)) == [(0, 3), (1, 3), (2, 2)]


@pytest.mark.parametrize("name", [EDF, SRPF, SJF])
def test_limits(name):
    limits = ranked(scheduler(name).with_settings(max_num_batched_tokens=8, max_num_seqs=3), state(1)).limits
    assert (limits.max_num_batched_tokens, limits.max_num_seqs, limits.time_budget_s) == (8, 3, 0)  # 0: it is not set
    assert batch(name, state(1), state(1), max_num_seqs=1) == [(0, 1)]


@pytest.mark.parametrize("name", [EDF, SRPF, SJF])
def test_what_would_run_last_gives_up_its_memory(name):
    rank = ranked(
        scheduler(name).with_settings(max_num_batched_tokens=8), decode(), state(3), state(9, ttft_slo_s=2000)
    )
    assert rank.victim_ranks == rank.ranks and max(rank.ranks) == rank.ranks[2] and rank.ranks[2][0] == PREFILL
