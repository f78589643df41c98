"""Engines that fail, return, are drained and moved, on paper: docs/cluster_rules.md, "Holding" to "Incidents".

A batch takes 1 s and 1 s a token, a KV block holds a token, a link takes 1 s and 1 s a token.
"""

import dataclasses

import numpy as np
import pytest

from servegym.baselines.registry import scheduler
from servegym.errors import DeploymentError
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.inputs.deployment import Deployment, HostMemory
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.gains import Gain
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.fleets import FIRST, INCIDENTS, at_engines, back, drain, fail, run
from tests.simulator.forming import SECONDS
from tests.simulator.replay import replay
from tests.simulator.scenes import requests
from tests.simulator.test_cluster_transfers import LINK, lines, pool, received

pytestmark = pytest.mark.nojit


# Failures


def test_the_only_engine_fails_and_works_again_when_it_returns():
    """Prefill of 2 tokens to 3 s, decode to 5 s; the next decode, begun at 5 s, is lost at 6 s with the 3 tokens
    computed. From 10 s the context of 4 is prefilled: at 15 s token 3 of 3 is out."""
    workload = requests(prompt_tokens=[2], output_tokens=[3])
    simulation = run(workload, pool("both"), incidents=(fail(6.0), back(10.0)))
    assert simulation.arrays.outcomes["finish_s"].tolist() == [15.0]
    assert lines(simulation, "failed", "returned") == [(6.0, "failed", 0, -1, 1), (10.0, "returned", 0, -1, 1)]
    result = simulation.result()
    engine = result.engines.iloc[0]
    assert (engine.failures, engine.recalled, engine.lost_tokens, engine.iterations) == (1, 0, 3, 4)
    assert engine.service_s == result.summary["cost_engine_s"] == 11.0 and engine.busy_s == 11.0
    assert (result.summary["reroutes"], result.summary["lost_tokens"]) == (0, 3)


def test_without_return_its_requests_wait_in_vain():
    simulation = run(requests(prompt_tokens=[2], output_tokens=[3]), pool("both"), incidents=(fail(6.0),),
                     all_served=False)  # fmt: skip
    assert simulation.arrays.status[0].finished == 0 and simulation.arrays.engines[0].queue_length == 1
    assert simulation.result().summary["tokens_emitted"] == 2


def test_kv_that_none_takes_leaves_too_little_for_a_prompt():
    """Request 0 keeps 1 block of 2, for a decode engine that is gone; request 1 needs both. It computes one token of
    two, and waits with that."""
    workload = requests(prompt_tokens=[1, 2], output_tokens=[2, 1])
    pools = pool("prefill", total_blocks=2), pool("decode")
    simulation = run(workload, *pools, incidents=(fail(0.0, 1),), all_served=False)
    assert simulation.arrays.engines["scheduled_tokens"].tolist() == [2, 0]
    assert simulation.arrays.requests["computed_tokens"].tolist() == [1, 1]


def test_what_a_failed_engine_had_is_sent_to_the_others_at_once():
    """Requests 0 and 2 on engine 0 (2 + 3 tokens, to 6 s); at 4 s it fails, and they go to engine 1, which has
    request 1 (4 tokens) until 5 s, when it takes both: 5 tokens, to 11 s."""
    workload = requests(prompt_tokens=[2, 4, 3], output_tokens=1)
    simulation = run(workload, pool("both", 2), routing="round-robin", incidents=(fail(4.0),))
    assert lines(simulation, *INCIDENTS) == [
        (4.0, "failed", 0, -1, 2), (4.0, "recalled", 0, 0, 0), (4.0, "recalled", 0, 2, 0),
    ]  # fmt: skip
    assert simulation.arrays.outcomes["finish_s"].tolist() == [11.0, 5.0, 11.0]
    assert simulation.arrays.outcomes["reroutes"].tolist() == [1, 0, 1]
    assert at_engines(simulation, "failures", "recalled", "lost_tokens", "busy_s") == [(1, 2, 0, 4), (0, 0, 0, 11)]
    assert simulation.result().requests["reroutes"].tolist() == [1, 0, 1]


def test_tokens_that_are_out_stay_out_and_their_kv_is_computed_again():
    """Token 1 at 3 s, token 2 at 5 s; at 5.5 s all is lost: 3 computed tokens. Engine 1 prefills 2 + 2 tokens."""
    simulation = run(requests(prompt_tokens=[2], output_tokens=[4]), pool("both", 2), incidents=(fail(5.5),))
    assert [row[0] for row in lines(simulation, "token")] == [3.0, 5.0, 10.5, 12.5]
    assert replay(simulation).route == [[0, 1]]
    assert at_engines(simulation, "lost_tokens", "num_output_tokens") == [(3, 2), (0, 2)]


def test_while_all_engines_are_down_requests_are_held():
    """Request 0 is taken back at 1 s, request 1 comes at 2 s: both are served from 8 s, when engine 1 returns."""
    workload = requests(arrival_s=[0.0, 2.0], prompt_tokens=[2, 3], output_tokens=1)
    simulation = run(workload, pool("both", 2), incidents=(fail(1.0, 0), fail(1.0, 1), back(8.0, 1)))
    assert lines(simulation, "held") == [(1.0, "held", -1, 0, 0), (2.0, "held", -1, 1, 0)]
    assert simulation.arrays.outcomes["finish_s"].tolist() == [14.0, 14.0]
    assert simulation.result().engines["service_s"].tolist() == [1.0, 7.0]


def test_what_is_saved_in_host_memory_is_lost_with_the_engine():
    host = HostMemory(20, 0.0, 0.0)
    workload = requests(prompt_tokens=[3, 3], output_tokens=[5, 5], priority=[0, 1])
    by_priority = scheduler("semantic")
    scenario = Scenario(
        workload, Deployment(SECONDS, SECONDS, 9, 1, 1, 0.0, host=host), by_priority, Gain(first_weight=1.0)
    )  # fmt: skip
    whole = Simulation(scenario, record_timeline=True)
    whole.run()
    saved = next(row for row in lines(whole, "evicted") if row[4] > 0)  # somebody is evicted and keeps something
    broken = dataclasses.replace(scenario, incidents=(fail(saved[0] + 0.5), back(saved[0] + 1.0)))
    simulation = Simulation(broken, record_timeline=True)
    simulation.run()
    log, engine = replay(simulation), simulation.arrays.engines[0]
    assert all(log.finished) and log.lost_at == [engine.totals.lost_tokens] and engine.totals.lost_tokens >= saved[4]
    assert engine.free_host_blocks == 20
    assert not [row for row in lines(simulation, "loaded") if row[0] == saved[0] + 1.0]


def test_kv_that_waits_at_a_prefill_engine_is_lost_with_it():
    """Both leave at 6 s; the KV of 0 arrives at 9 s, that of 1 is on its way from 9 s when its engine fails at 10 s:
    request 1 is prefilled again on engine 1, 4 tokens from 10 s to 15 s, and sent again to 20 s."""
    workload = requests(prompt_tokens=[2, 3], output_tokens=[2, 3])
    simulation = run(workload, pool("prefill"), pool("prefill"), pool("decode"), routing=FIRST, incidents=(fail(10.0),))
    assert lines(simulation, "sent", "stopped", "received", "recalled") == [
        (6.0, "sent", 2, 0, 2), (9.0, "received", 2, 0, 2), (9.0, "sent", 2, 1, 3),
        (10.0, "stopped", 2, 1, 0), (10.0, "recalled", 0, 1, 0), (15.0, "sent", 2, 1, 4), (20.0, "received", 2, 1, 4),
    ]  # fmt: skip
    assert at_engines(simulation, "recalled", "lost_tokens", "failures") == [(1, 3, 1), (0, 0, 0), (0, 0, 0)]


@pytest.mark.parametrize("shared", [False, True])
def test_kv_on_its_way_to_an_engine_that_fails_goes_to_another(shared):
    """The KV of 0 is on its way to engine 1 from 6 s, and 1 waits in its line; at 7 s both go to engine 2: 0 from 7 to
    10 s, 1 from then to 14 s. Nothing is lost."""
    workload = requests(prompt_tokens=[2, 3], output_tokens=[2, 2])
    simulation = run(
        workload, pool("prefill"), pool("decode", 2), routing=FIRST, link=dataclasses.replace(LINK, shared=shared),
        incidents=(fail(7.0, 1),),
    )  # fmt: skip
    assert received(simulation) == {0: (10.0, 2), 1: (14.0, 2)}
    summary = simulation.result().summary
    assert (summary["reroutes"], summary["lost_tokens"]) == (0, 0)
    assert at_engines(simulation, "free_blocks", "running") == [(100, 0)] * 3


def test_news_of_an_engine_that_fails_is_lost_on_its_way():
    """The first token at 3 s would be heard of at 8 s; at 4 s its engine fails, and the router has nothing there."""
    simulation = run(
        requests(prompt_tokens=[2], output_tokens=[2]), pool("both", 2), routing="min-load", delay_s=5.0,
        incidents=(fail(4.0),), until_s=4.0, all_served=False,
    )  # fmt: skip
    snapshot, other = simulation.router_state.known.snapshots
    assert (snapshot.requests, snapshot.prefills, snapshot.decodes, snapshot.up) == (0, 0, 0, 0)
    assert (other.requests, other.prefills, other.prefill_tokens) == (1, 1, 3)


def test_more_requests_than_the_arrays_have_room_for_at_first_are_taken_back():
    """800 requests on one of two engines, which fails: lines and queues grow in the middle of it."""
    workload = requests(arrival_s=np.r_[np.zeros(799), 5.0], prompt_tokens=np.full(800, 1), output_tokens=2)
    simulation = run(workload, pool("both", 2, total_blocks=5000), routing=FIRST, incidents=(fail(5.0), drain(6.0, 1)))
    assert simulation.arrays.outcomes["reroutes"].sum() == at_engines(simulation, "recalled")[0][0] == 799
    assert simulation.arrays.engines[1].totals.recalled == 0
    assert len(simulation.arrays.timeline) > 4096


# Drains


def test_a_drained_engine_ends_what_it_has_and_takes_no_more():
    """Request 0 ends on engine 0 at 7 s, which is then out of service; 1, 2 and 3 go to engine 1, 4 to 0 again."""
    workload = requests(arrival_s=[0.0, 2.0, 3.0, 4.0, 30.0], prompt_tokens=[2, 1, 1, 1, 1],
                        output_tokens=[3, 1, 1, 1, 1])  # fmt: skip
    simulation = run(workload, pool("both", 2), incidents=(drain(1.0), back(25.0)))
    assert [route[-1] for route in replay(simulation).route] == [0, 1, 1, 1, 0]
    assert simulation.arrays.outcomes["finish_s"][0] == 7.0 and simulation.result().summary["reroutes"] == 0
    assert simulation.result().engines["service_s"].tolist() == [7.0 + 7.0, 32.0]


def test_incidents_that_cannot_be():
    for wrong, word in (((-1.0, 0, "fail"), "time_s"), ((1.0, 0, "explode"), "kind"), ((np.nan, 0, "fail"), "time_s")):
        with pytest.raises(DeploymentError, match=word):
            Incident(*wrong)
    with pytest.raises(DeploymentError, match="engine is 2; the deployment has 0 to 1"):
        run(requests(prompt_tokens=[2]), pool("both", 2), incidents=(fail(1.0, 2),))
    with pytest.raises(DeploymentError, match="do not fit"):  # prefilled again it needs room for its answer
        run(requests(prompt_tokens=[3], output_tokens=[6]), pool("prefill", total_blocks=3), pool("decode", 2),
            incidents=(fail(12.5, 1),))  # fmt: skip


# Routers that hold and move, scalers
