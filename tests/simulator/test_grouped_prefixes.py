"""Prefix caching with KV cache groups: by hand, what is refused, and what must hold whatever happens."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from servegym.baselines.registry import scheduler
from servegym.errors import DeploymentError
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.kv_groups import KvCacheGroup, blocks_needed
from servegym.simulator.memory.prefixes import Prompts
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation
from tests.seeds import drawn
from tests.simulator.forming import linear
from tests.simulator.grouped_blocks import assert_groups_are_whole
from tests.simulator.incident_strategies import with_prompts
from tests.simulator.whole_runs import every_scheduler
from tests.strategies import scenarios
from tests.timelines import iterations

A_SECOND = linear(c_p=1.0, b_d=1.0)  # a token
FULL, WINDOW, LOCAL = KvCacheGroup(4), KvCacheGroup(4, window=9), KvCacheGroup(4, window=8, local=True)
STATE, CHECKPOINTED = KvCacheGroup(state=True), KvCacheGroup(state=True, checkpoints=True)
NAMES = list(range(20))


def served(
    rows: list[tuple[int, int]], chunks: list[list[int]], *groups: KvCacheGroup, blocks: int = 200,
    max_num_batched_tokens: int = 1000, arrival_s: list[float] | None = None, **more: Any,
) -> Result:  # fmt: skip
    """rows: prompt, output, 1,000 s apart where arrival_s does not say when. Chunks of 4 tokens."""
    prompt, output = (np.array(column) for column in zip(*rows, strict=True))
    arrival_s = arrival_s or [1000.0 * place for place in range(len(rows))]
    columns = {"arrival_s": arrival_s, "prompt_tokens": prompt, "output_tokens": output}
    prompts = Prompts(4, np.cumsum([0, *map(len, chunks)]), np.concatenate(chunks))
    pool = Deployment(A_SECOND, A_SECOND, blocks, block_tokens=4, watermark=0.0, kv_groups=groups, **more)
    policy = scheduler("vllm-v1").with_settings(max_num_batched_tokens=max_num_batched_tokens)
    scenario = Scenario(Workload(Workload.from_columns(columns).table, "chat", {}, prompts), pool, policy)
    return Simulation(scenario, record_timeline=True).run()


def cached(*of: Any, **more: Any) -> list[int]:
    return served(*of, **more).requests["cached_tokens"].tolist()


@pytest.mark.nojit
def test_the_same_prompt_finds_all_groups_where_it_may_be_taken_up() -> None:
    rows = [(32, 1), (32, 1)]  # one token is computed anew: 28 are the most
    assert cached(rows, [NAMES[:8]] * 2, FULL, WINDOW, WINDOW) == [0, 28]
    assert cached(rows, [NAMES[:8]] * 2, WINDOW) == [0, 28]


@pytest.mark.nojit
def test_windows_keep_what_a_later_request_may_take_up_and_then_where_beginnings_part() -> None:
    # The first keeps the windows' blocks before token 28 only. The second shares 20 tokens, of which full groups have
    # all and windows none: it computes all anew, and keeps the windows' blocks before token 20 for the third.
    rows, other, third = [(32, 1)] * 3, [*NAMES[:5], 50, 51, 52], [*NAMES[:5], 60, 61, 62]
    assert cached(rows, [NAMES[:8], other, third], FULL, WINDOW) == [0, 0, 20]
    assert cached(rows, [NAMES[:8], other, third], FULL, FULL) == [0, 20, 20]


@pytest.mark.nojit
def test_an_answer_is_found_once_a_turn_has_gone_beyond_it() -> None:
    # 16 tokens and an answer of 9: the next turn takes up the prompt's first 12, and the one after that its own 28.
    rows, turns = [(16, 9), (32, 9), (48, 1)], [NAMES[:6], NAMES[:10], NAMES[:12]]
    assert cached(rows, turns, FULL, WINDOW) == [0, 12, 28]
    assert cached(rows, turns, FULL) == [0, 24, 40]


@pytest.mark.nojit
def test_a_local_window_needs_what_has_come_since_its_last_beginning() -> None:
    # Of 22 tokens the window of token 20 begins at 16: the prefix of the second is found whole, but for what differs.
    assert cached([(22, 1), (22, 1)], [NAMES[:5]] * 2, FULL, LOCAL) == [0, 20]
    assert cached([(22, 1), (22, 1)], [NAMES[:5], [*NAMES[:4], 30]], FULL, LOCAL) == [0, 16]


@pytest.mark.nojit
def test_a_hit_ends_where_blocks_of_all_groups_do() -> None:
    wide = KvCacheGroup(6, window=9)  # multiples of 12 tokens
    assert cached([(32, 1), (32, 1)], [NAMES[:8]] * 2, FULL, wide) == [0, 24]


@pytest.mark.nojit
def test_a_hit_holds_of_windows_what_the_next_token_sees() -> None:
    result = served([(32, 1), (32, 1)], [NAMES[:8]] * 2, FULL, WINDOW)
    used = [iteration.used_blocks for iteration in iterations(result)]
    assert used == [8 + 8, 8 + 3]
    fits = served([(32, 1), (32, 1)], [NAMES[:8]] * 2, FULL, WINDOW, blocks=16)
    assert fits.requests["cached_tokens"].tolist() == [0, 28]


@pytest.mark.nojit
def test_a_block_of_a_window_that_is_overwritten_is_no_hit_though_full_attention_has_it() -> None:
    # What the first leaves with names, 8 full blocks and 2 of the window, stays if there are 60.
    rows, chunks = [(32, 1), (60, 1), (32, 1)], [NAMES[:8], [40 + i for i in range(15)], NAMES[:8]]
    assert cached(rows, chunks, FULL, WINDOW, blocks=60) == [0, 0, 28]
    assert cached(rows, chunks, FULL, WINDOW, blocks=32)[2] < 28


@pytest.mark.nojit
@pytest.mark.parametrize(("groups", "words"), [
    ((STATE, KvCacheGroup(8, state=True)), "states of fixed size alone, in blocks of different sizes; switch"),
    ((FULL, WINDOW, STATE), "with windows beside states of fixed size; switch"),
    ((LOCAL,), "local windows, or windows of one token, alone; switch prefix_caching off"),
    ((FULL, KvCacheGroup(4, 9, local=True)), "local windows that are not multiples of their blocks"),
    ((KvCacheGroup(8), LOCAL), "local windows whose blocks are not multiples of the other groups' blocks"),
])  # fmt: skip
def test_what_is_refused(groups: tuple[KvCacheGroup, ...], words: str) -> None:
    with pytest.raises(DeploymentError, match=words):
        served([(8, 1)], [NAMES[:2]], *groups, prefix_caching=True)
    if not all(group.state for group in groups):
        with pytest.raises(DeploymentError, match=words):
            served([(8, 1)], [NAMES[:2]], *groups)
    assert cached([(8, 1)], [NAMES[:2]], *groups, prefix_caching=False) == [0]


def test_more_blocks_than_names_are_refused() -> None:
    groups = (KvCacheGroup(1), *(KvCacheGroup(1, window=9),) * 3000)
    with pytest.raises(DeploymentError, match="has up to 36015001 blocks in its KV cache groups; with prefix caching"):
        served([(12000, 1)], [NAMES[:2]], *groups, blocks=2**31 - 1)


def in_blocks(group: KvCacheGroup, block_tokens: int) -> KvCacheGroup:
    return dataclasses.replace(group, block_tokens=block_tokens)


full = st.integers(0, 2).flatmap(lambda n: st.integers(1, 8).map(lambda size: (KvCacheGroup(size),) * n))
windows = st.integers(1, 2).flatmap(
    lambda n: st.builds(KvCacheGroup, st.integers(1, 8), st.integers(2, 40)).map(lambda group: (group,) * n)
)
states = st.tuples(st.sampled_from([STATE, CHECKPOINTED]), st.integers(1, 3)).map(lambda drawn: (drawn[0],) * drawn[1])
kinds = st.one_of(
    st.tuples(full, windows).map(lambda both: sum(both, ())),
    st.tuples(full.filter(bool), states).map(lambda both: sum(both, ())),
    st.tuples(states, st.integers(1, 12)).map(lambda drawn: tuple(in_blocks(one, drawn[1]) for one in drawn[0])),
)


@every_scheduler
@drawn(20, slow=True)
def test_memory_is_whole_and_every_request_is_served(name: str, data: st.DataObject) -> None:
    plain = data.draw(scenarios(name))
    workload, groups = data.draw(with_prompts(plain.workload)), data.draw(kinds)
    needed = int((workload.table["prompt_tokens"] + workload.table["output_tokens"] - 1).max())
    blocks = blocks_needed(groups, needed, caching=True) + data.draw(st.integers(0, 6))
    pool = dataclasses.replace(plain.deployment, host=None, total_blocks=blocks, kv_groups=groups, prefix_caching=True)
    simulation = Simulation(dataclasses.replace(plain, workload=workload, deployment=pool))
    for _ in range(data.draw(st.integers(0, 30), label="decisions")):
        if not simulation.step():
            break
        for e in range(len(simulation.arrays.engines)):
            assert_groups_are_whole(simulation, e)
    simulation.run()
    for e, engine in enumerate(simulation.arrays.engines):
        assert_groups_are_whole(simulation, e)
        assert engine.totals.peak_blocks <= engine.total_blocks
        assert engine.totals.cached_tokens <= engine.totals.admitted_tokens
    if plain.until_s == np.inf:
        assert np.isfinite(simulation.arrays.outcomes["finish_s"]).all()
        assert (simulation.arrays.engines["free_blocks"] == blocks).all()


@every_scheduler
@drawn(8, slow=True)
def test_one_full_group_is_prefix_caching_without_groups(name: str, data: st.DataObject) -> None:
    plain = data.draw(scenarios(name))
    workload = data.draw(with_prompts(plain.workload))
    pool = dataclasses.replace(plain.deployment, host=None, prefix_caching=True)
    grouped = dataclasses.replace(pool, kv_groups=(KvCacheGroup(pool.block_tokens),))
    one, other = (
        Simulation(dataclasses.replace(plain, workload=workload, deployment=one)).run() for one in (pool, grouped)
    )
    assert one.requests.equals(other.requests)
