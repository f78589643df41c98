"""Prefix caching in KV memory: by hand, and what must hold whatever happens (docs/feature_rules.md)."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from servegym.baselines.registry import scheduler, scheduler_names
from servegym.errors import PolicyError, WorkloadError
from servegym.simulator.inputs.cluster import cluster_of
from servegym.simulator.inputs.deployment import Deployment, HostMemory
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.prefixes import PrefixStore, Prompts
from servegym.simulator.records.types import FOUND, LOADED, SCHEDULED
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation
from tests.seeds import drawn
from tests.simulator.forming import linear
from tests.simulator.incident_strategies import incident_scenarios, with_prompts
from tests.simulator.named_blocks import assert_memory_is_whole
from tests.simulator.replay import replay
from tests.strategies import scenarios

A_SECOND = linear(c_p=1.0, b_d=1.0)  # a token
every_scheduler = pytest.mark.parametrize("name", scheduler_names())


def served(rows: list[tuple[float, int, int]], chunks: list[list[int]], blocks: int = 100, **more) -> Result:
    """rows: arrival, prompt, output. Blocks and chunks of 4 tokens."""
    arrival_s, prompt, output = (np.array(column) for column in zip(*rows, strict=True))
    table = Workload.from_columns({"arrival_s": arrival_s, "prompt_tokens": prompt, "output_tokens": output}).table
    offsets = np.cumsum([0, *map(len, chunks)])
    workload = Workload(table, prefixes=Prompts(more.pop("chunk_tokens", 4), offsets, np.concatenate(chunks)))
    policy = scheduler(more.pop("policy", "vllm-v1"))
    deployment = Deployment(A_SECOND, A_SECOND, blocks, block_tokens=4, watermark=0.0, **more)
    return Simulation(Scenario(workload, deployment, policy), record_timeline=True).run()


def lines(result: Result, kind: int) -> list[tuple[int, int]]:
    """(request, tokens)"""
    timeline = result.arrays.timeline[: result.arrays.status[0].timeline_used]
    return [(int(line.request), int(line.tokens)) for line in timeline if line.kind == kind]


@pytest.mark.nojit
def test_a_later_prompt_finds_the_full_blocks_it_shares():
    result = served([(0.0, 10, 1), (100.0, 12, 1), (200.0, 8, 1)], [[0, 1], [0, 1, 2], [0, 1]])
    # The last one has all of its 8 tokens there, and computes its last block anew.
    assert result.requests["cached_tokens"].tolist() == [0, 8, 4]
    assert lines(result, SCHEDULED) == [(0, 10), (1, 4), (2, 4)]
    assert result.summary["cached_tokens"] == 12 and result.summary["cached_share"] == 12 / 30
    assert result.engines["cached_share"].tolist() == [12 / 30] and result.engines["cached_tokens"].tolist() == [12]


@pytest.mark.nojit
def test_the_next_turn_finds_the_answer():
    # 6 + 7 tokens, of which the last is never computed: 3 full blocks, the last of them of the answer alone.
    result = served([(0.0, 6, 7), (100.0, 16, 2)], [[0, 1, 2], [0, 1, 2, 3]])
    assert result.requests["cached_tokens"].tolist() == [0, 12]


@pytest.mark.nojit
def test_one_of_a_batch_finds_what_another_of_it_computes():
    result = served([(0.0, 9, 1), (0.0, 9, 1)], [[0, 1], [0, 1]])
    assert lines(result, FOUND) == [(1, 8)] and lines(result, SCHEDULED) == [(0, 9), (1, 1)]
    assert result.summary["kv_use_peak"] == 0.04  # 2 blocks for both, and one for each


@pytest.mark.nojit
@pytest.mark.parametrize(("room", "loaded"), [(4, 4), (7, 4), (8, 8), (100, 8)])
def test_what_is_overwritten_is_loaded_from_host_memory(room, loaded):
    # 3 blocks: r1 takes all of them, the beginning of r0's prompt last. r2 has the rest to compute.
    rows = [(0.0, 8, 1), (100.0, 12, 1), (200.0, 10, 1)]
    result = served(
        rows, [[0, 1], [2, 3, 4], [0, 1]], blocks=3, prefix_store=PrefixStore(room, 0.5), prefix_caching=True
    )
    assert result.requests["cached_tokens"].tolist() == [0, 0, loaded]
    assert lines(result, LOADED) == [(2, loaded)] and lines(result, FOUND) == []
    assert result.requests["finish_s"][2] == 200 + 0.5 * loaded + 10 - loaded
    assert result.engines["loaded_tokens"][0] == loaded


@pytest.mark.nojit
@pytest.mark.parametrize(("room", "last"), [(12, 0), (20, 8)])
def test_host_memory_goes_on_where_kv_memory_ends_and_loses_what_was_used_least_recently(room, last):
    # 3 blocks. r1 overwrites chunk 1, r2 chunks 0 and 3: r3 finds chunk 2, loads 3, and overwrites 5 and 4. Room for
    # three has lost 1 and 0 then, which r4 wants.
    rows = [(100.0 * r, tokens, 1) for r, tokens in enumerate((8, 8, 8, 10, 10))]
    chunks = [[0, 1], [2, 3], [4, 5], [2, 3], [0, 1]]
    result = served(rows, chunks, blocks=3, prefix_store=PrefixStore(room, 0.0), prefix_caching=True)
    assert result.requests["cached_tokens"].tolist() == [0, 0, 0, 8, last]
    assert lines(result, FOUND) == [(3, 4)] and lines(result, LOADED) == [(3, 4), (4, last)][: 1 + (last > 0)]


@pytest.mark.nojit
def test_what_was_freed_first_is_overwritten_first_and_of_one_request_the_end():
    # 6 blocks: r0 leaves 2 with names, r1 leaves 2; r2 takes the two others, and then the end of r0's.
    rows = [(0.0, 8, 1), (100.0, 8, 1), (200.0, 12, 1), (300.0, 9, 1)]
    for last, found in (([0, 1], 4), ([2, 3], 8), ([4, 5], 8)):
        result = served(rows, [[0, 1], [2, 3], [4, 5, 6], last], blocks=6)
        assert result.requests["cached_tokens"].tolist() == [0, 0, 0, found]
    assert result.engines["overwritten_blocks"][0] == 2  # and r3's own third block is taken from r0's first


@pytest.mark.nojit
def test_chunks_longer_and_shorter_than_blocks():
    rows, both = [(0.0, 20, 1), (100.0, 20, 1)], [[0, 1], [0, 2]]
    assert served(rows, both, chunk_tokens=8).requests["cached_tokens"].tolist() == [0, 8]  # a chunk is two blocks
    # Chunks of 6 end in blocks 1 (token 7) and 2 (token 11), of which the first chunk names only block 0.
    assert served(rows, both, chunk_tokens=6).requests["cached_tokens"].tolist() == [0, 4]
    three = [[0, 1, 2], [0, 1, 3]]
    assert served(rows, three, chunk_tokens=2).requests["cached_tokens"].tolist() == [0, 4]


@pytest.mark.nojit
def test_an_evicted_request_finds_what_it_left():
    # 8 blocks of 4 tokens; each comes to 13 + 7. When the first needs a fifth block, the other gives up its memory.
    rows = [(0.0, 13, 8), (0.0, 13, 8)]
    result = served(rows, [[0], [1]], blocks=8)
    assert result.summary["evictions"] >= 1 and result.engines["regained_tokens"][0] > 0
    assert result.requests["cached_tokens"].tolist() == [0, 0]
    off = served(rows, [[0], [1]], blocks=8, prefix_caching=False)
    assert off.engines["scheduled_tokens"][0] > result.engines["scheduled_tokens"][0]


@pytest.mark.nojit
def test_only_what_is_not_found_is_loaded():
    """A victim keeps all in host memory, and finds a part of it in KV memory when it comes back."""
    rows = [(0.0, 13, 8), (0.0, 13, 8)]
    host = HostMemory(100, load_s_per_token=0.5, save_s_per_token=0.0)
    kept = served(rows, [[0], [1]], blocks=8, policy="fastserve-mlfq", host=host)
    off = served(rows, [[0], [1]], blocks=8, policy="fastserve-mlfq", host=host, prefix_caching=False)
    assert kept.engines["regained_tokens"][0] > 0
    assert kept.summary["loaded_tokens"] < off.summary["loaded_tokens"]


def test_bad_chunks_are_refused():
    with pytest.raises(WorkloadError, match="3 chunks of 4 tokens; its prompt and answer have 11 tokens"):
        served([(0.0, 10, 1)], [[0, 1, 2]])


def test_on_where_the_workload_says_what_is_shared():
    plain = Workload.from_columns({"arrival_s": [0.0], "prompt_tokens": 8, "output_tokens": 1})
    alike = dataclasses.replace(plain, prefixes=Prompts(4, np.array([0, 2]), np.array([0, 1])))
    pool = Deployment(A_SECOND, A_SECOND, 10, block_tokens=4)
    assert not pool.caches_prefixes(plain) and pool.caches_prefixes(alike)
    assert dataclasses.replace(pool, prefix_caching=True).caches_prefixes(plain)
    assert not dataclasses.replace(pool, prefix_caching=False).caches_prefixes(alike)
    assert not dataclasses.replace(pool, prefix_caching=True, role="decode").caches_prefixes(alike)


@every_scheduler
@drawn(30, slow=True)
def test_memory_is_whole_and_every_request_is_served(name, data):
    plain = data.draw(scenarios(name))
    workload = data.draw(with_prompts(plain.workload))
    host = plain.deployment.host
    load_s = st.just(0.001 if host is None else host.load_s_per_token)
    store = data.draw(st.one_of(st.none(), st.builds(PrefixStore, st.integers(1, 400), load_s)), label="store")
    deployment = dataclasses.replace(plain.deployment, prefix_caching=True, prefix_store=store)
    scenario = dataclasses.replace(plain, workload=workload, deployment=deployment)
    simulation = Simulation(scenario, record_timeline=True)
    for _ in range(data.draw(st.integers(0, 30), label="decisions")):
        if not simulation.step():
            break
        for e in range(len(simulation.arrays.engines)):
            assert_memory_is_whole(simulation, e)
    simulation.run()
    arrays, table = simulation.arrays, workload.table
    for e, engine in enumerate(arrays.engines):
        assert_memory_is_whole(simulation, e)
        assert engine.totals.peak_blocks <= engine.total_blocks
        assert engine.totals.cached_tokens <= engine.totals.admitted_tokens
        stored = arrays.cache.stored[e]["name"]
        assert len(stored) == engine.block_store.total_blocks == engine.block_store.free_blocks
        assert len(set(stored[stored != 0])) == np.count_nonzero(stored)
    log = replay(simulation)
    done = np.array(log.finished)
    computed = np.array(log.scheduled_tokens) + log.found_tokens + log.borrowed_tokens - log.lost_tokens
    np.testing.assert_array_equal(computed[done], (table["prompt_tokens"] + table["output_tokens"] - 1)[done])
    if scenario.until_s == np.inf:
        assert all(log.finished)
        assert (arrays.engines["free_blocks"] == arrays.engines["total_blocks"]).all()


@every_scheduler
@drawn(10, slow=True)
def test_where_nothing_is_shared_and_none_evicted_nothing_changes(name, data):
    """Only names differ: what no other request has is found by nobody else."""
    plain = data.draw(scenarios(name))
    deployment = dataclasses.replace(plain.deployment, total_blocks=20_000, host=None)
    off, on = (
        Simulation(dataclasses.replace(plain, deployment=dataclasses.replace(deployment, prefix_caching=caching)))
        for caching in (False, True)
    )
    assert off.run().summary["evictions"] == on.run().summary["evictions"] == 0
    for field in ("finish_s", "gain", "on_time_tokens"):
        np.testing.assert_array_equal(off.arrays.outcomes[field], on.arrays.outcomes[field])


@pytest.mark.slow
@settings(max_examples=60)
@given(data=st.data())
def test_memory_is_whole_when_engines_fail(data):
    scenario = data.draw(incident_scenarios("prefix-affinity"))
    cluster = cluster_of(scenario.deployment)
    pools = tuple(dataclasses.replace(pool, prefix_caching=True) for pool in cluster.pools)
    simulation = Simulation(
        dataclasses.replace(scenario, deployment=dataclasses.replace(cluster, pools=pools)), record_timeline=True
    )
    try:
        while simulation.step():
            for e, engine in enumerate(simulation.arrays.engines):
                if engine.cache.on:
                    assert_memory_is_whole(simulation, e)
    except PolicyError as error:  # so a run may end: see test_thrashing.py
        assert "requests evict each other again and again" in str(error)
        reject()
    replay(simulation)
