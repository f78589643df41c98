"""vLLM-FCFS by hand: prefills first, whole; decodes when no prefill can run (ProServe, section 5.1)."""

import pytest

from servegym.baselines.registry import scheduler
from servegym.simulator.policies.scores import LAST
from servegym.simulator.records.types import MISFIT_STOP, PHASE_FIRST_DECIDES
from tests.simulator.forming import decode, formed, ranked, state

pytestmark = pytest.mark.nojit

FCFS = scheduler("vllm-fcfs")


def test_prefills_first_by_arrival():
    rows = [decode(), state(4, arrival_s=1.0), state(5, arrival_s=2.0)]
    assert ranked(FCFS, *rows, now_s=2.0).ranks == [(LAST, 0), (0, 1), (0, 2)]
    assert formed(FCFS, *rows, now_s=2.0).batch == [(1, 4), (2, 5)]
    assert formed(FCFS, decode(), decode()).batch == [(0, 1), (1, 1)]


def test_limits():
    limits = ranked(FCFS, state(3)).limits
    assert (limits.max_num_batched_tokens, limits.max_num_seqs) == (8192, 256)
    assert (limits.phase, limits.misfit, limits.whole_prompts) == (PHASE_FIRST_DECIDES, MISFIT_STOP, 1)
    limits = ranked(FCFS.with_settings(max_num_batched_tokens=9, max_num_seqs=3), state(3)).limits
    assert (limits.max_num_batched_tokens, limits.max_num_seqs) == (9, 3)


def test_prompts_are_whole():
    eight = FCFS.with_settings(max_num_batched_tokens=8)
    assert formed(eight, state(9), state(3)).batch == [(0, 9)]  # the first may exceed the budget
    assert formed(eight, state(3), state(9)).batch == [(0, 3)]
    assert formed(eight, state(5), state(4), state(3)).batch == [(0, 5)]  # 4 do not fit: nobody overtakes
    assert formed(eight, state(5), state(3), state(1)).batch == [(0, 5), (1, 3)]


def test_decodes_run_when_no_prompt_finds_room():
    assert formed(FCFS, state(10), decode(), blocks=9).batch == [(1, 1)]
    assert formed(FCFS.with_settings(max_num_seqs=1), state(4), decode()).batch == [(1, 1)]


def test_more_decodes_than_the_token_budget():
    assert formed(FCFS.with_settings(max_num_batched_tokens=2), decode(), decode(), decode()).batch == [(0, 1), (1, 1)]


def test_the_latest_decode_gives_up_memory_first_and_prefills_again_before_the_others_decode():
    rows = [decode(arrival_s=0.0), decode(arrival_s=1.0), decode(arrival_s=2.0)]
    assert formed(FCFS, *rows, blocks=9, now_s=2.0) == ([(0, 1), (1, 1)], [2], 1)
    rows[2] = state(3, 1, arrival_s=2.0)
    assert formed(FCFS, *rows, blocks=99, now_s=2.0).batch == [(2, 4)]
