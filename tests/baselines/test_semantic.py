"""Semantic scheduling by hand (its section 3.3, Algorithms 2 to 4, Eq. 3 to 6).

A batch takes t_c = 1 s, and 1 s a token: a prefill of q tokens alone 1 + q s, a decode alone 2 s.
"""

import numpy as np
import pytest

from servegym.baselines.registry import scheduler
from servegym.baselines.slots import ONGOING, SEEN
from servegym.simulator.inputs.deployment import Deployment, HostMemory
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.records.types import LEAVE_OUT
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import SECONDS, decode, formed, linear, moved, ranked, state, waiting_for_a_batch
from tests.simulator.scenes import requests

pytestmark = pytest.mark.nojit

GROWING = linear(c_p=1, b_d=1, a_d=0.25, t_c=1)  # a decode with x tokens cached: 2 + x / 4 s


def semantic(**settings):
    return scheduler("semantic").with_settings(**settings)


def prefill(urgency: int = 0, predicted: float = 5.0, **more) -> dict:
    return state(3, urgency=urgency, predicted=predicted, **more)


def decoding(urgency: int = 0, predicted: float = 5.0, **more) -> dict:
    return decode(urgency=urgency, predicted=predicted, **more)


def chosen(policy, *rows: dict, ongoing: tuple[int, ...] = (), seen_evictions: int = 0) -> tuple[list[int], list[int]]:
    """Places that run, in order, and places noted as ongoing; `ongoing`: those chosen at the last ranking."""
    simulation = waiting_for_a_batch(policy, *rows)
    arrays = simulation.arrays
    for r in ongoing:
        arrays.state.requests[r, ONGOING] = 1.0
        arrays.state.requests[r, SEEN] = seen_evictions + 1
    simulation.scenario = Scenario(  # stop after this decision
        simulation.scenario.workload, simulation.scenario.deployment, policy, until_s=arrays.status[0].now_s
    )
    simulation.step()
    plan = arrays.ranks[: len(rows)]
    places = [place for place in range(len(rows)) if plan[place].tier != LEAVE_OUT]
    run = sorted(places, key=lambda place: (plan[place].tier, plan[place].key, place))
    return run, np.flatnonzero(arrays.state.requests[:, ONGOING] == 1).tolist()


def key_of(row: dict, model=SECONDS, host: HostMemory | None = None) -> float:
    return ranked(semantic(), row, model=model, host=host).ranks[0][1]


# The remaining time f_t


def test_remaining_time_of_a_new_request():
    assert key_of(prefill()) == 4 + 4 * 2  # 1 + 3 s, then 4 more tokens
    assert key_of(prefill(predicted=1.0)) == 4
    assert key_of(prefill(predicted=0.25)) == 4  # at least the token of its prefill
    assert key_of(prefill(predicted=2.5)) == 4 + 1.5 * 2


def test_remaining_time_adds_up_the_cached_tokens_of_the_decodes():
    # 3, 4, 5 and 6 cached: 4 x 2 + 18 / 4.
    assert key_of(prefill(), GROWING) == 4 + 12.5


def test_remaining_time_of_a_decode():
    assert key_of(decoding()) == 4 * 2  # 1 of 5 is out
    assert key_of(decoding(), GROWING) == 4 * 2 + (3 + 4 + 5 + 6) / 4
    assert key_of(state(3, 6, 8, predicted=5.0)) == 2  # it has outrun its prediction


def test_remaining_time_after_an_eviction():
    host = HostMemory(100, load_s_per_token=0.5, save_s_per_token=0.5)
    assert key_of(state(3, 2, predicted=5.0, evicted=1)) == 6 + 2 * 2  # 5 tokens again, which gives the third
    assert key_of(state(3, 2, kept=2, predicted=5.0, evicted=1), host=host) == 1 + 4 + 2 * 2  # 2 loaded, 3 again
    assert key_of(state(3, 2, kept=4, predicted=5.0, evicted=1), host=host) == 2 + 3 * 2  # loaded, it decodes


def test_unknown_lengths_come_last_in_their_level_by_arrival():
    rows = [prefill(1, np.nan), prefill(1, np.nan), prefill(1, 400.0), prefill(2, 1.0)]
    assert [key for _, key in ranked(semantic(), *rows).ranks] == [np.inf, np.inf, 4 + 399 * 2, 4]
    assert chosen(semantic(), *rows)[0] == [2, 0, 1, 3]
    assert chosen(semantic(slots=2), *rows)[0] == [2, 0]


def running(remaining_time: str) -> list[float]:
    """Keys of two requests after each decision of a run: 1 prompt token, 3 and 1 output tokens, 1 slot."""
    workload = requests(prompt_tokens=1, output_tokens=[3, 1], predicted_output_tokens=[3.0, 9.0])
    policy = semantic(remaining_time=remaining_time, slots=1)
    simulation = Simulation(Scenario(workload, Deployment(SECONDS, SECONDS, 100, block_tokens=1), policy))
    keys = []
    while simulation.step():
        keys.append(simulation.ranks_of(policy, simulation.arrays.parameters[0], 0, 0.0)[0].key)
    return keys


def test_remaining_time_stays_while_a_request_runs():
    # Prefill 2 s and two decodes of 2 s; then the other: 2 s and 8 decodes.
    assert running("at-eviction") == [6, 6, 6, 18]
    assert running("current") == [6, 4, 2, 18]


# The order


def test_urgency_goes_before_remaining_time():
    rows = [prefill(1, 1.0), prefill(0, 50.0), prefill(0, 2.0), prefill(4, 1.0)]
    assert ranked(semantic(), *rows).ranks == [(1, 4), (0, 4 + 49 * 2), (0, 6), (4, 4)]
    assert chosen(semantic(), *rows)[0] == [2, 1, 0, 3]


def test_the_level_may_be_the_priority():
    rows = [prefill(0, priority=2), prefill(3, priority=1)]
    assert chosen(semantic(), *rows)[0] == [0, 1] and chosen(semantic(level="priority"), *rows)[0] == [1, 0]


def test_all_alike_go_by_place():
    assert chosen(semantic(slots=3), *[prefill()] * 5) == ([0, 1, 2], [0, 1, 2])


@pytest.mark.parametrize("slots", [1, 2, 3, 4, 7, 16, 40])
def test_the_best_few_of_many(slots):
    predicted = np.random.default_rng(slots).integers(1, 9, 40)  # many ties
    expected = sorted(range(40), key=lambda place: (place % 3, predicted[place], place))[:slots]
    rows = [prefill(place % 3, float(predicted[place])) for place in range(40)]
    assert chosen(semantic(slots=slots), *rows) == (expected, sorted(expected))


def test_an_empty_queue():
    simulation = waiting_for_a_batch(semantic(), prefill())
    simulation.arrays.engines[0].queue_length = 0
    assert len(simulation.ranks_of(semantic(), simulation.arrays.parameters[0], 0, 0.0)) == 0


# Stage-aware batching


def test_prefills_wait_for_a_better_decode():
    assert chosen(semantic(), decoding(0), prefill(1), ongoing=(0,)) == ([0], [0])
    assert formed(semantic(), decoding(0), prefill(1)).batch == [(0, 1)]


def test_a_better_prefill_goes_first_and_decodes_stay_ongoing():
    assert chosen(semantic(), decoding(1), prefill(0), prefill(2), ongoing=(0,)) == ([1, 2], [0, 1, 2])
    assert formed(semantic(), decoding(1), prefill(0), prefill(2)).batch == [(1, 3), (2, 3)]


def test_a_decode_that_is_not_among_the_best_loses_its_slot():
    assert chosen(semantic(slots=1), decoding(1), prefill(0), ongoing=(0,)) == ([1], [1])
    assert chosen(semantic(slots=2), prefill(0), decoding(1), prefill(0), ongoing=(1,)) == ([0, 2], [0, 2])


def test_a_tie_between_a_decode_and_a_prefill_goes_by_place():
    # Remaining time 8 both: a decode with 4 of 5 to come, and 1 + 3 s and 2 decodes.
    assert chosen(semantic(), prefill(predicted=3.0), decoding()) == ([0], [0, 1])
    assert chosen(semantic(), decoding(), prefill(predicted=3.0)) == ([0], [0])


def test_decodes_behind_the_best_prefills_are_no_candidates():
    rows = [decoding(0), prefill(1), prefill(1), decoding(2)]
    assert chosen(semantic(slots=2), *rows, ongoing=(0,)) == ([0], [0])
    assert chosen(semantic(slots=2, candidates="decodes"), *rows, ongoing=(0,)) == ([0, 3], [0, 3])
    # The third best of those that are not ongoing:
    assert chosen(semantic(slots=3), *rows, ongoing=(0,)) == ([0, 3], [0, 3])
    # Ongoing, it need not be a candidate.
    assert chosen(semantic(slots=2), *rows, ongoing=(0, 3)) == ([0, 3], [0, 3])


def test_what_was_evicted_is_not_ongoing():
    # Its KV was kept whole, so it is decoding.
    rows = [decoding(0), prefill(1), prefill(1), state(3, 1, kept=3, urgency=2, predicted=5.0, evicted=1)]
    assert chosen(semantic(slots=2), *rows, ongoing=(0, 3)) == ([0], [0])
    assert chosen(semantic(slots=2), *rows, ongoing=(3,), seen_evictions=1) == ([0, 3], [0, 3])


def test_a_better_decode_takes_the_slot_of_an_ongoing_one():
    rows = [decoding(0), decoding(2), decoding(1)]
    assert chosen(semantic(slots=2), *rows, ongoing=(0, 1)) == ([0, 2], [0, 2])


def test_prefill_first():
    policy = semantic(batching="prefill-first", slots=2)
    assert chosen(policy, decoding(0), prefill(1)) == ([1, 0], [0, 1])  # the decode if the prefill finds no memory
    assert chosen(policy, decoding(0), decoding(1), prefill(2)) == ([0, 1], [0, 1])
    assert chosen(policy, decoding(1), decoding(0)) == ([1, 0], [0, 1])


def test_limits():
    limits = ranked(semantic(slots=7), prefill()).limits
    assert (limits.sequence_budget, limits.whole_prompts, limits.max_num_batched_tokens, limits.time_budget_s) == (
        7, 1, 0, 0,
    )  # fmt: skip


# Which request gives up memory, and what of it is kept


def test_the_least_urgent_and_longest_gives_up_memory_first():
    rows = [decoding(0, 9.0), decoding(1, 5.0), decoding(1, 7.0), decoding(0, 2.0)]
    assert ranked(semantic(slots=1), *rows).victim_ranks == [(0, 16), (1, 8), (1, 12), (0, 2)]
    # 12 blocks are held; the first decode needs one more, then each of the others finds room.
    assert formed(semantic(), *rows, blocks=12).evicted == [2]


def test_an_unknown_length_gives_up_memory_first_in_its_level():
    assert formed(semantic(), decoding(1, np.nan), decoding(1, 400.0), decoding(0, np.nan), blocks=9).evicted == [0]


def test_newcomers_take_memory_from_those_after_them():
    # 2 blocks are free and 3 are needed, twice: the least urgent give up theirs.
    rows = [decoding(3), decoding(2), prefill(0), prefill(1)]
    result = formed(semantic(), *rows, blocks=8)
    assert (result.batch, result.evicted) == ([(2, 3), (3, 3)], [0, 1])
    # The second newcomer is the least urgent itself.
    rows = [decoding(3), decoding(2), prefill(0), prefill(4)]
    result = formed(semantic(), *rows, blocks=8)
    assert (result.batch, result.evicted) == ([(2, 3)], [0])


def test_what_was_kept_whole_comes_back_into_a_decode_batch():
    rows = [state(3, 1, kept=3, urgency=0, predicted=5.0, evicted=1), decoding(1), decoding(2)]
    result = formed(semantic(), *rows, blocks=7, host=HostMemory(9, 0.5, 0.5))
    # 1 block is free and it needs 4: the least urgent gives up 3; the other has none left to grow, and goes itself.
    assert (result.batch, result.evicted) == ([(0, 1)], [2, 1])


def kept(row: dict, load_s: float, save_s: float = 0.0, model=SECONDS, host_blocks: int = 100, **settings) -> int:
    """Tokens kept of `row`, which loses its memory to a more urgent decode."""
    blocks = row["computed"] + 3
    host = HostMemory(host_blocks, load_s_per_token=load_s, save_s_per_token=save_s)
    formed, tokens, moving_s = moved(
        semantic(**settings), decoding(0), {"urgency": 1, **row}, blocks=blocks, host=host, model=model
    )
    assert formed.evicted == [1] and moving_s == pytest.approx(save_s * tokens[1])
    return tokens[1]


PROMPT_ONLY = state(3, 1, 3, predicted=9.0)  # 1 + 3 s to compute again
TWO_MORE = state(3, 3, 5, predicted=9.0)  # and 2 decoded tokens, 2 s each


def test_a_prompt_is_kept_where_moving_it_is_cheaper():
    assert kept(PROMPT_ONLY, 1.0, 0.25) == 3  # 3.75 s < 4 s
    assert kept(PROMPT_ONLY, 1.0, 0.5) == 0  # 4.5 s
    assert kept(PROMPT_ONLY, 1.0, 1 / 3) == 0  # 4 s: as long
    assert kept(PROMPT_ONLY, 1.0, 0.5, transfer_cost="load") == 3


def test_decoded_tokens_are_kept_all_or_none():
    assert kept(TWO_MORE, 1.25) == 5
    assert kept(TWO_MORE, 1.5) == 2  # the prompt, 4.5 s against 4 s, is not
    assert kept(TWO_MORE, 2.0) == 0
    # A decode with x cached takes 2 + x / 4; recomputing the last 2 with 3 prompt tokens: 2 + (3 + 1.5) / 4.
    assert kept(TWO_MORE, 3.1, model=GROWING) == 2 and kept(TWO_MORE, 3.125, model=GROWING) == 0


def test_recomputation_as_one_prefill():
    assert kept(TWO_MORE, 1.125, accounting="prefill") == 5  # 5.625 s < 1 + 5 s
    assert kept(TWO_MORE, 1.25, accounting="prefill") == 0  # 6.25 s


def test_as_printed():
    # Eq. 3: kept where loading costs more. Eq. 6: (4 - (2 + 3.5 / 4)) / (2 / 4) = 2.25 of the decoded tokens.
    row = state(3, 6, 8, predicted=9.0)
    assert kept(row, 4.0, model=GROWING, accounting="as-printed") == 3 + 2
    assert kept(row, 2.5, model=GROWING, accounting="as-printed") == 3
    assert kept(row, 1.25, model=GROWING, accounting="as-printed") == 0
    assert kept(row, 9.0, model=GROWING, accounting="as-printed") == 3 + 5
    # All decodes alike: all, or none.
    assert kept(TWO_MORE, 2.5, accounting="as-printed") == 5 and kept(TWO_MORE, 1.5, accounting="as-printed") == 3
    assert kept(PROMPT_ONLY, 2.5, accounting="as-printed") == 3


def test_no_more_is_kept_than_host_memory_holds():
    assert kept(TWO_MORE, 1.25, host_blocks=4) == 4
    assert formed(semantic(), decoding(0), {"urgency": 1, **PROMPT_ONLY}, blocks=6).evicted == [1]  # no host memory


def test_a_victim_that_was_kept_comes_back_by_loading():
    """Two decodes, memory for one more token: the less urgent waits in host memory and is loaded at its turn."""
    workload = requests(prompt_tokens=3, output_tokens=3, urgency=[0, 1], predicted_output_tokens=3.0)
    host = HostMemory(100, load_s_per_token=0.5, save_s_per_token=0.25)
    deployment = Deployment(SECONDS, SECONDS, total_blocks=7, block_tokens=1, watermark=0.0, host=host)
    simulation = Simulation(Scenario(workload, deployment, semantic()))
    result = simulation.run()
    # Both prefill to 7; the first decode takes the last block and leaves none: the second saves 3 tokens (0.75 s).
    # 7 + 2 + 0.75 + 1 = 10.75, then 12.75; it is loaded (1.5 s) and decodes twice.
    assert simulation.arrays.outcomes["finish_s"].tolist() == [11.75, 17.25]
    assert result.summary["evictions"] == 1
