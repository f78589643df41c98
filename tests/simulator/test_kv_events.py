"""What engines tell routers of their KV blocks: by hand, and against their memory (docs/feature_rules.md)."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from servegym.baselines.registry import router, scheduler
from servegym.errors import PolicyError, SpecError
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.inputs.cluster import Cluster, cluster_of
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.kv_events import apply_due_events
from servegym.simulator.memory.kv_groups import KvCacheGroup
from servegym.simulator.memory.prefixes import Prompts, known_tokens, may_have
from servegym.simulator.records.named_blocks import UNCHANGED
from servegym.simulator.records.statuses import AT_ROUTES
from servegym.simulator.records.types import BATCH_END, RECALLED
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import linear
from tests.simulator.incident_strategies import incident_scenarios

A_SECOND = linear(c_p=1.0, b_d=1.0)  # a token
Rows = list[tuple[float, int, int, list[int]]]


def known_at_routes(
    rows: Rows, blocks: int = 100, delay_s: float = 0.0, kv_events: bool = True, groups: tuple[KvCacheGroup, ...] = ()
) -> list[list[int]]:
    """Of each request when it is routed: the tokens that the router knows of at each of two engines.

    rows: arrival, prompt, output, chunks. Blocks, without groups, and chunks of 4 tokens.
    """
    arrival_s, prompt, output, chunks = zip(*rows, strict=True)
    table = Workload.from_columns({
        "arrival_s": np.array(arrival_s), "prompt_tokens": np.array(prompt), "output_tokens": np.array(output),
    }).table  # fmt: skip
    workload = Workload(table, prefixes=Prompts(4, np.cumsum([0, *map(len, chunks)]), np.concatenate(chunks)))
    pool = Deployment(
        A_SECOND, A_SECOND, blocks, 2, block_tokens=4, watermark=0.0, kv_events=kv_events, kv_groups=groups
    )
    cluster = Cluster((pool,), signal_delay_s=delay_s)
    simulation = Simulation(Scenario(workload, cluster, scheduler("vllm-v1"), router=router("kv-aware")))
    seen = []
    while simulation.advance_to(AT_ROUTES):
        r, known = int(simulation.arrays.status[0].deciding_request), simulation.router_state.known
        seen.append([int(known_tokens(known, simulation.arrays.requests[r], r, e)) for e in range(2)])
        for e, tokens in enumerate(seen[-1]):  # as far as chunks go that nothing has overwritten
            assert all(may_have(known, r, e, fewer) for fewer in range(tokens + 1))
            assert groups or not may_have(known, r, e, tokens + 5)  # full groups alone may have more
    return seen


TWO_TURNS: Rows = [(0.0, 8, 6, [0, 1, 2]), (100.0, 18, 1, [0, 1, 2, 3])]


@pytest.mark.nojit
def test_the_router_knows_of_answers_and_by_what_it_sent_it_does_not():
    assert known_at_routes(TWO_TURNS) == [[0, 0], [12, 0]]
    assert known_at_routes(TWO_TURNS, kv_events=False) == [[0, 0], [8, 0]]


@pytest.mark.nojit
def test_it_hears_of_blocks_when_the_iteration_has_ended_and_the_signal_has_come():
    # The prompt takes 8 s, and each token 1 s; the last of 6 is out at 13 s.
    second = (8, 1, [0, 1])
    for at_s, delay_s, found in ((7.9, 0.0, 0), (8.0, 0.0, 7), (8.0, 2.0, 0), (9.9, 2.0, 0), (10.0, 2.0, 7)):
        assert known_at_routes([TWO_TURNS[0], (at_s, *second)], delay_s=delay_s)[1] == [found, 0]
    assert known_at_routes([TWO_TURNS[0], (0.1, *second)], kv_events=False)[1] == [7, 0]


@pytest.mark.nojit
def test_it_hears_of_what_is_overwritten():
    # 4 blocks: the second prompt needs all of them. The router's own index has room for the chunks of both.
    rows: Rows = [(0.0, 8, 1, [0, 1]), (50.0, 15, 1, [2, 3, 4]), (100.0, 15, 1, [5, 6, 7]), (150.0, 9, 1, [0, 1])]
    assert known_at_routes(rows, blocks=4)[3] == [0, 0]
    assert known_at_routes(rows, blocks=4, kv_events=False)[3] == [8, 0]


FULL, WINDOW, STATE = KvCacheGroup(4), KvCacheGroup(4, window=4), KvCacheGroup(4, state=True)


@pytest.mark.nojit
@pytest.mark.parametrize(("groups", "found"), [
    ((FULL,), [16, 8, 0]),  # all blocks of the first prompt
    ((FULL, WINDOW), [12, 0, 0]),  # its window has a block before its last token, and none before token 8
    ((FULL, FULL, WINDOW, WINDOW), [12, 0, 0]),
    ((FULL, STATE), [12, 0, 0]),  # the state after token 12, the last end of a block before its last token
    ((WINDOW,), [12, 0, 0]),
    ((KvCacheGroup(8), WINDOW), [8, 8, 0]),  # hits are of 8 tokens: its window has the block before token 8
])  # fmt: skip
def test_it_knows_of_what_all_groups_have(groups, found):
    # The second goes on where the first ended, the third parts from it after 8 tokens, the fourth at once.
    rows: Rows = [(0.0, 16, 1, [0, 1, 2, 3]), (100.0, 20, 1, [0, 1, 2, 3, 4]), (100.0, 16, 1, [0, 1, 8, 9]),
                  (100.0, 16, 1, [9, 9, 9, 9])]  # fmt: skip
    known = known_at_routes(rows, groups=groups)
    assert known[0] == [0, 0] and [max(one) for one in known[1:]] == found


@pytest.mark.nojit
def test_of_windows_it_hears_where_two_have_parted():
    # Full attention of engine 0 has 8 tokens of the third prompt, and no window: then the block before token 8 is kept.
    rows: Rows = [(100.0 * i, 16, 1, [0, 1, 2 * i + 2, 2 * i + 3]) for i in range(4)]
    assert known_at_routes(rows, groups=(FULL, WINDOW)) == [[0, 0], [0, 0], [0, 0], [8, 0]]
    assert known_at_routes(rows, groups=(FULL,)) == [[0, 0], [8, 0], [8, 0], [8, 0]]


def last_of(run, e, *kinds):
    """Of the lines of these kinds that engine e has in the timeline the kind of the last."""
    lines = run.timeline[: run.status[0].timeline_used]
    return lines["kind"][(lines["engine"] == e) & np.isin(lines["kind"], kinds)][-1]


@pytest.mark.slow
@settings(max_examples=60)
@given(data=st.data())
def test_what_is_told_is_what_engines_hold_whatever_happens(data):
    scenario = data.draw(incident_scenarios("kv-aware"))
    cluster = cluster_of(scenario.deployment)
    pools = tuple(dataclasses.replace(pool, prefix_caching=True, kv_events=True) for pool in cluster.pools)
    deployment = dataclasses.replace(cluster, pools=pools)
    simulation = Simulation(dataclasses.replace(scenario, deployment=deployment), watched=True, record_timeline=True)
    try:
        simulation.run()
    except PolicyError as error:  # so a run may end: see test_thrashing.py
        assert "requests evict each other again and again" in str(error)
        reject()
    run, router_state = simulation.arrays, simulation.router_state
    apply_due_events(run, router_state, np.inf)
    for e, engine in enumerate(run.engines):
        if engine.cache.publishes:
            own, told = (
                table[e, : engine.total_blocks] for table in (run.cache.blocks, router_state.known.prefixes.published)
            )
            heard = own["changed"] == UNCHANGED
            # The others are told when its next iteration ends, which those that have been taken from it do not see.
            assert heard.all() or engine.queue_length > 0 or last_of(run, e, BATCH_END, RECALLED) == RECALLED
            np.testing.assert_array_equal(told["name"][heard], np.maximum(own["name"], 0)[heard])


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({}, "KV events of one engine, which has no router; leave kv_events (--kv-events) out"),
        ({"engines": 2, "prefix_caching": "off"}, "KV events of engines that cache no prefixes; leave kv_events"),
    ],
)
def test_where_none_could_tell_or_hear(fields, line):
    with pytest.raises(SpecError) as error:
        ServingSpec().replaced(**fields, kv_events=True)
    assert str(error.value).startswith(line)
