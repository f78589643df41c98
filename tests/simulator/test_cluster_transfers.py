"""KV between engines on paper, and what the router hears when: docs/cluster_rules.md.

A batch takes 1 s and 1 s a token, a KV block holds a token, a link takes 1 s and 1 s a token.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest

from servegym.baselines.registry import router, scheduler
from servegym.errors import DeploymentError
from servegym.simulator.inputs.cluster import Cluster, Link
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.gains import Gain
from servegym.simulator.records.signatures import KINDS
from servegym.simulator.records.types import TIMELINE_KINDS
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import SECONDS, linear
from tests.simulator.replay import replay
from tests.simulator.scenes import requests

pytestmark = pytest.mark.nojit
POOL = Deployment(SECONDS, SECONDS, 100, block_tokens=1, watermark=0.0)
LINK = Link(bytes_per_token=1.0, bytes_per_s=1.0, latency_s=1.0)


def pool(role: str, engines: int = 1, total_blocks: int = 100, **more: Any) -> Deployment:
    return dataclasses.replace(POOL, role=role, engines=engines, total_blocks=total_blocks, **more)


def run(
    workload, *pools: Deployment, link: Link = LINK, routing: str | None = None, delay_s: float = 0.0
) -> Simulation:
    simulation = Simulation(
        Scenario(
            workload, Cluster(pools, link, delay_s), scheduler("vllm-v1"), Gain(first_weight=1.0),
            router=None if routing is None else router(routing),
        ),
        record_timeline=True,
    )  # fmt: skip
    simulation.run()
    assert all(replay(simulation).finished)
    return simulation


def lines(simulation: Simulation, *kinds: str) -> list[tuple]:
    """(time, kind, engine, request, tokens) of the lines of these kinds."""
    used = simulation.arrays.timeline[: simulation.arrays.status[0].timeline_used]
    rows = [(float(x.time_s), TIMELINE_KINDS[x.kind], int(x.engine), int(x.request), int(x.tokens)) for x in used]
    return [row for row in rows if row[1] in kinds]


def received(simulation: Simulation) -> dict[int, tuple[float, int]]:
    """When the KV of each request arrived, and where."""
    return {r: (time_s, e) for time_s, _, e, r, _ in lines(simulation, "received")}


def test_two_requests_one_after_the_other_on_a_link():
    """One batch of 2 + 3 tokens ends at 6 s. Sent 6 to 9 s and 9 to 13 s; each then decodes one token in 2 s."""
    simulation = run(requests(prompt_tokens=[2, 3], output_tokens=[2, 2]), pool("prefill"), pool("decode"))
    assert lines(simulation, "departed", "received", "finish") == [
        (6.0, "departed", 0, 0, 2), (6.0, "departed", 0, 1, 3), (9.0, "received", 1, 0, 2), (11.0, "finish", 1, 0, 0),
        (13.0, "received", 1, 1, 3), (15.0, "finish", 1, 1, 0),
    ]  # fmt: skip
    assert list(simulation.arrays.outcomes["first_token_s"]) == [6.0, 6.0]


def test_one_token_is_all_is_served_by_the_prefill_engine():
    simulation = run(requests(prompt_tokens=[2, 3], output_tokens=[1, 2]), pool("prefill"), pool("decode"))
    assert received(simulation) == {1: (10.0, 1)}
    assert lines(simulation, "finish")[0] == (6.0, "finish", 0, 0, 0)


def test_an_infinite_link_takes_no_time():
    workload = requests(prompt_tokens=[2, 3, 4], output_tokens=[3, 2, 5])
    simulation = run(workload, pool("prefill"), pool("decode"), link=Link(1.0, np.inf))
    assert {time_s for time_s, _ in received(simulation).values()} == {10.0}
    assert simulation.arrays.engines["totals"]["num_output_tokens"].tolist() == [3, 7]
    assert simulation.arrays.engines["scheduled_tokens"].tolist() == [9, 7]


def test_it_waits_for_memory_where_it_goes():
    """Of 4 blocks the first takes 2, and one more for each of two decodes: the 3 of the second are free at 13 s."""
    workload = requests(prompt_tokens=[2, 3], output_tokens=[3, 2])
    simulation = run(workload, pool("prefill"), pool("decode", total_blocks=4))
    assert received(simulation) == {0: (9.0, 1), 1: (17.0, 1)}
    # With a fifth block it is sent as soon as the link is free.
    simulation = run(workload, pool("prefill"), pool("decode", total_blocks=5))
    assert received(simulation) == {0: (9.0, 1), 1: (13.0, 1)}


def test_the_watermark_is_kept_free_beside_others_and_not_alone():
    workload = requests(prompt_tokens=[2, 3], output_tokens=[2, 2])
    wide = pool("decode", total_blocks=10, watermark=0.5)
    assert received(run(workload, pool("prefill"), wide)) == {0: (9.0, 1), 1: (13.0, 1)}  # 8 >= 3 + 5
    wider = pool("decode", total_blocks=10, watermark=0.6)
    assert received(run(workload, pool("prefill"), wider)) == {0: (9.0, 1), 1: (15.0, 1)}  # from 11 s, when it is alone
    assert received(run(requests(prompt_tokens=[9], output_tokens=[2]), pool("prefill"), wider)) == {0: (20.0, 1)}


def test_prefill_memory_is_taken_until_the_kv_has_arrived():
    """4 blocks: the second prompt of 4 comes in at 10 s, after 5 s of sending, not at 5 s, when the first left."""
    workload = requests(prompt_tokens=[4, 4], output_tokens=[2, 2])
    simulation = run(workload, pool("prefill", total_blocks=4), pool("decode"))
    starts = [row[:3] for row in lines(simulation, "batch_start") if row[2] == 0]
    assert starts == [(0.0, "batch_start", 0), (10.0, "batch_start", 0)]
    assert received(simulation) == {0: (10.0, 1), 1: (20.0, 1)}


@pytest.mark.parametrize(("shared", "second_s"), [(False, 10.0), (True, 13.0)])
def test_a_link_to_each_engine_or_one_for_all(shared, second_s):
    link = dataclasses.replace(LINK, shared=shared)
    simulation = run(
        requests(prompt_tokens=[2, 3], output_tokens=[2, 2]), pool("prefill"), pool("decode", 2), link=link
    )
    assert received(simulation) == {0: (9.0, 1), 1: (second_s, 2)}


def test_a_shared_link_goes_to_what_has_waited_longest_and_finds_memory():
    """At 6 s requests 0 to 3 leave for engines 1, 2, 1, 2; of those that wait as long the lower engine goes first.
    Where engine 1 has no room beside request 0, which ends at 15 s, request 2 waits for that, and no other for it."""
    link = dataclasses.replace(LINK, shared=True)
    workload = requests(prompt_tokens=[2, 1, 1, 1], output_tokens=[4, 2, 2, 2])
    pools = pool("prefill"), pool("decode", total_blocks=5), pool("decode", total_blocks=100)
    free = received(run(workload, *pools, link=link))
    assert free == {0: (9.0, 1), 2: (11.0, 1), 1: (13.0, 2), 3: (15.0, 2)}
    tight = dataclasses.replace(pools[1], watermark=0.61)  # 3 blocks: 3 are free, and 1 + 3 are asked for
    short = received(run(workload, pools[0], tight, pools[2], link=link))
    assert short == {0: (9.0, 1), 1: (11.0, 2), 3: (13.0, 2), 2: (17.0, 1)}
    # Request 0 is sent from 21 to 42 s; request 1 leaves for engine 2 at 23 s, request 2 for engine 1 at 26 s.
    workload = requests(arrival_s=[0.0, 21.0, 24.0], prompt_tokens=[20, 1, 1], output_tokens=[2, 2, 2])
    assert received(run(workload, *pools[:1], pool("decode", 2), link=link)) == {
        0: (42.0, 1), 1: (44.0, 2), 2: (46.0, 1),
    }  # fmt: skip


def test_a_request_comes_anew_to_its_decode_engine():
    """Decode engines number admissions as others do, and a scheduler's notes of elsewhere are gone."""
    simulation = run(requests(prompt_tokens=[2], output_tokens=[2]), pool("prefill"), pool("decode"))
    assert simulation.arrays.requests[0].admitted == 2
    assert simulation.arrays.outcomes[0].admitted_s == 0.0


# What the router hears when


def routes(simulation: Simulation) -> list[int]:
    return [row[2] for row in lines(simulation, "arrival")]


def three(arrival_s: float):
    """Request 0 ends at 10 s on engine 0, request 1 at 2 s on engine 1; then comes request 2."""
    return requests(arrival_s=[0.0, 0.0, arrival_s], prompt_tokens=[9, 1, 1])


def test_a_token_is_heard_of_after_the_delay_and_not_before():
    pair = pool("both", 2)
    assert routes(run(three(2.0), pair, routing="min-load")) == [0, 1, 1]  # what ended at this instant is known
    assert routes(run(three(1.9), pair, routing="min-load")) == [0, 1, 0]  # both have one: 0 was sent it longer ago
    assert routes(run(three(2.9), pair, routing="min-load", delay_s=1.0)) == [0, 1, 0]
    assert routes(run(three(3.0), pair, routing="min-load", delay_s=1.0)) == [0, 1, 1]


def test_the_queue_record_is_what_was_sent_and_has_no_token():
    """On engine 0 prompts of 3 and 2 tokens run from 0 to 6 s; at 1 s comes one of 4."""
    workload = requests(arrival_s=[0.0, 0.0, 1.0], prompt_tokens=[3, 2, 4], output_tokens=[2, 1, 1])
    scenario = Scenario(workload, Cluster((pool("both"), pool("prefill"), pool("decode"))), scheduler("vllm-v1"))

    def first(until_s: float) -> tuple:
        simulation = Simulation(dataclasses.replace(scenario, router=router("min-load"), until_s=until_s))
        simulation.run()
        snapshot = simulation.router_state.known.snapshots[0]
        record = simulation.router_state.known.prefilling[0, : snapshot.prefills].tolist()
        return (
            record, int(snapshot.prefill_tokens), int(snapshot.requests), int(snapshot.decodes),
            float(snapshot.changed_s),
        )  # fmt: skip

    # Requests 0 and 2 go to engine 0 (sent to longest ago of two alike), request 1 to engine 1.
    assert first(0.5) == ([0], 3, 1, 0, 0.0)
    assert first(1.0) == ([0, 2], 7, 2, 0, 1.0)
    assert first(4.0) == ([2], 4, 2, 1, 4.0)
    # At 4 s a batch of one decode and 4 prefill tokens: both end at 10 s.
    assert first(10.0) == ([], 0, 0, 0, 10.0)


def test_a_report_is_what_the_engine_had_when_it_sent_it():
    workload = requests(prompt_tokens=[3, 3], output_tokens=[3, 1])
    scenario = Scenario(workload, Cluster((pool("both", 2),)), scheduler("vllm-v1"), router=router("min-load"))

    def known(until_s: float) -> tuple[int, int]:
        simulation = Simulation(dataclasses.replace(scenario, until_s=until_s))
        simulation.run()
        snapshot = simulation.router_state.known.snapshots[0]
        return int(snapshot.free_blocks), int(snapshot.decode_tokens)

    # Request 0 computes 3 tokens up to 4 s, a decode up to 6 s, the last up to 8 s.
    assert [known(at) for at in (3.9, 4.0, 6.0, 8.0)] == [(100, 0), (97, 4), (96, 5), (100, 0)]


def test_reports_that_follow_each_other_closely_are_merged_and_none_is_late_for_ever():
    """Request 0 computes up to 4 s, then a decode every 2 s; at 100 s the router looks, as request 1 comes."""
    workload = requests(arrival_s=[0.0, 100.0], prompt_tokens=[3, 3], output_tokens=[60, 1])

    def known(delay_s: float) -> tuple[int, int]:
        cluster = Cluster((pool("both", 2),), LINK, delay_s)
        scenario = Scenario(workload, cluster, scheduler("vllm-v1"), router=router("min-load"), until_s=100.0)
        simulation = Simulation(scenario)
        simulation.run()
        snapshot = simulation.router_state.known.snapshots[0]
        return int(snapshot.free_blocks), int(snapshot.decode_tokens)

    # An eighth of 16 s is 2 s, so each report is kept; that of 84 s is known.
    assert known(16.0) == (57, 44)
    # An eighth of 40 s is 5 s, so those of 6, 12, 18, ... s are kept: that of 60 s is known, with 41 s that of 54 s.
    assert [known(delay_s) for delay_s in (40.0, 41.0)] == [(69, 32), (72, 29)]


@pytest.mark.parametrize(
    "name",
    ["edf:max_num_batched_tokens=2", "sarathi-fcfs:max_num_batched_tokens=2", "vllm-v1:max_num_batched_tokens=2"],
)
def test_of_a_token_the_router_hears_once_though_iterations_take_no_time(name):
    """What emits, is evicted and is computed in part again, all at one instant, has not emitted again."""
    evicted = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        workload = requests(prompt_tokens=rng.integers(1, 5, 30), output_tokens=rng.integers(1, 4, 30))
        pair = Deployment(linear(), SECONDS, 8, 2, block_tokens=1, watermark=0.0)
        scenario = Scenario(workload, Cluster((pair,)), scheduler(name), router=router("min-load"))
        simulation = Simulation(scenario)
        evicted += simulation.run().summary["evictions"]
        snapshots = simulation.router_state.known.snapshots
        assert (simulation.arrays.engines["decode_tokens"] == 0).all()
        for field in ("requests", "prefills", "prefill_tokens", "decodes", "decode_tokens"):
            assert (snapshots[field] == 0).all(), field
    assert evicted > 0


# What is refused


def test_what_no_cluster_can_be():
    for pools, word in (
        ((pool("prefill"),), "no decode pool"),
        ((pool("decode"), pool("both")), "no prefill pool"),
        ((), "0 pools"),
        ((POOL,) * (KINDS + 1), f"{KINDS + 1} pools"),
        ((pool("both", 4096), pool("both")), "4097 engines"),
    ):
        with pytest.raises(DeploymentError, match=word):
            Cluster(pools)
    for link in ({"bytes_per_token": -1.0}, {"bytes_per_s": 0.0}, {"latency_s": np.inf}, {"bytes_per_s": np.nan}):
        with pytest.raises(DeploymentError, match=next(iter(link))):
            dataclasses.replace(LINK, **link)
    with pytest.raises(DeploymentError, match="signal_delay_s"):
        Cluster((POOL,), signal_delay_s=-1.0)
    with pytest.raises(DeploymentError, match="role"):
        pool("prefil")
    for role in ("prefill", "decode"):
        with pytest.raises(DeploymentError, match="part of a Cluster"):
            Simulation(Scenario(requests(prompt_tokens=[1]), pool(role), scheduler("edf")))
    with pytest.raises(DeploymentError, match="do not fit"):  # a decode engine holds the answer too
        run(requests(prompt_tokens=[3], output_tokens=[3]), pool("prefill"), pool("decode", total_blocks=4))
    run(requests(prompt_tokens=[3], output_tokens=[3]), pool("prefill", total_blocks=3), pool("decode", total_blocks=5))
