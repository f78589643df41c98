"""Host memory: what a victim keeps, what it costs to move it, and how it comes back (docs/simulation.md, rules 3 to 5).

A batch takes 1 s + 1 s a token, a KV block holds one token; moving a token takes 2 s there and 3 s back.
"""

import dataclasses

import numpy as np
import pytest

from servegym.errors import DeploymentError
from servegym.simulator.inputs.deployment import HostMemory
from servegym.simulator.records.types import EVICTED, LOADED
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import by_place, decode, moved, state
from tests.simulator.scenes import requests, scene

pytestmark = pytest.mark.nojit


def host(blocks: int) -> HostMemory:
    return HostMemory(blocks, load_s_per_token=3, save_s_per_token=2)


def keeping(tokens: int, **settings):
    return by_place(by_priority=True, keep=tokens, **settings)


def test_a_victim_keeps_what_its_policy_says():
    # The decode needs a block and none is free: the other, of lower priority, has computed 4.
    queue = decode(), state(6, 0, 4, priority=1)
    for keep, kept in ((0, 0), (3, 3), (4, 4), (99, 4)):
        got = moved(keeping(keep), *queue, blocks=7, host=host(10))
        assert got == (([(0, 1)], [1], 3), [0, kept], 2 * kept)
    # It keeps no more than host memory holds, and nothing where there is none.
    assert moved(keeping(4), *queue, blocks=7, host=host(3)).kept == [0, 3]
    assert moved(keeping(4), *queue, blocks=7).kept == [0, 0]


def test_host_memory_is_counted_in_blocks():
    # Blocks of 4 tokens: 7 computed tokens are 2 blocks here and there; one block there holds 4 of them.
    queue = state(3, 2, 4), state(9, 0, 7, priority=1)  # a decode at the end of its block, and a prefill
    assert moved(keeping(7), *queue, blocks=3, block_tokens=4, host=host(2)).kept == [0, 7]
    assert moved(keeping(7), *queue, blocks=3, block_tokens=4, host=host(1)).kept == [0, 4]


def test_what_is_kept_is_loaded_at_admission():
    # Prompt of 6, 4 of them kept: 2 left to compute. 6 blocks are needed, 12 s go into loading.
    got = moved(by_place(), state(6, 0, 0, kept=4), blocks=6, host=host(10))
    assert got == (([(0, 2)], [], 0), [0], 12)
    # All but the last token: it decodes at once.
    got = moved(by_place(phase=1), state(3, 2, 0, kept=4), decode(), state(2), blocks=20, host=host(10))
    assert got.formed.batch == [(0, 1), (1, 1)]
    # No room for the whole of it beside another running request: it waits, and keeps what it has.
    got = moved(by_place(), decode(), state(6, 0, 0, kept=4), blocks=9, host=host(10))
    assert got == (([(0, 1)], [], 5), [0, 4], 0)


def test_moving_counts_against_the_time_budget():
    # 1 s + 6 s of loading 2 tokens leave 3 of 10 s.
    queue = state(9, 0, 0, kept=2), state(9)
    assert moved(by_place(time_budget_s=10), *queue, host=host(10)).formed.batch == [(0, 3)]
    # 9 s: loading and one token take 8 s, two 9 s.
    assert moved(by_place(time_budget_s=9), *queue, host=host(10)).formed.batch == [(0, 2)]
    # 7 s: not even one token of it, so the next gets 6 tokens.
    assert moved(by_place(time_budget_s=7), *queue, host=host(10)).formed.batch == [(1, 6)]
    # Saving 2 tokens (4 s) for the decode leaves 10 - 4 - 1 - 1 = 4 s to the prefill that follows it.
    queue = decode(), state(9, 0, 2), state(6, 0, 2, priority=1)
    got = moved(keeping(2, time_budget_s=10), *queue, blocks=7, host=host(10))
    assert (got.formed.evicted, got.kept, got.moving_s) == ([2], [0, 0, 2], 4)
    assert got.formed.batch == [(0, 1)], "a prefill with memory does not evict, and only one block came free for it"


def test_out_and_back():
    """Two requests that grow out of memory together: one goes out, the other finishes, the first comes back."""
    workload = requests(prompt_tokens=[3, 3], output_tokens=[4, 4], priority=[0, 1])
    scenario = scene(workload, keeping(99), total_blocks=7)
    scenario = dataclasses.replace(scenario, deployment=dataclasses.replace(scenario.deployment, host=host(9)))
    simulation = Simulation(scenario, record_timeline=True)
    result = simulation.run()
    lines = result.arrays.timeline[: result.arrays.status[0].timeline_used]
    moved = [(line.time_s, line.request, line.tokens) for line in lines if line.kind in (EVICTED, LOADED)]
    # 0-7: both prompts (6 blocks). At 7 request 0 takes the last block; request 1 is the victim of its own decode:
    # its 3 tokens are saved (6 s), it leaves; the batch is request 0 alone: 7 + 1 + 1 = 9, and 6 s of saving: 15.
    assert moved[0] == (7.0, 1, 3)
    # 15-17, 17-19: tokens 3 and 4 of request 0 (at 15 there is room for 3 + 1 tokens of the 7 - 5 = 2 free: no).
    assert result.requests.finish_s[0] == 19.0
    # At 19 it is loaded (9 s) and decodes its second token (1 + 1 s): 30, then 32 and 34.
    assert moved[1] == (19.0, 1, 3) and len(moved) == 2
    assert result.requests.finish_s[1] == 34.0
    engine = simulation.arrays.engines[0]
    assert (engine.totals.saved_tokens, engine.totals.loaded_tokens, engine.free_host_blocks) == (3, 3, 9)
    assert simulation.arrays.outcomes["evictions"].tolist() == [0, 1]


@pytest.mark.parametrize("wrong", [{"blocks": -1}, {"blocks": 1.5}, {"load_s_per_token": -1e-6},
                                   {"save_s_per_token": np.nan}, {"load_s_per_token": np.inf}])  # fmt: skip
def test_what_no_host_memory_can_be(wrong):
    with pytest.raises(DeploymentError, match=next(iter(wrong))):
        HostMemory(**{"blocks": 1, "load_s_per_token": 0.0, "save_s_per_token": 0.0} | wrong)
