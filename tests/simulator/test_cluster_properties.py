"""What must hold in every run of a cluster, whatever its pools, its link, its router and its schedulers."""

import dataclasses

import numpy as np
import pytest
from hypothesis import strategies as st

from servegym.baselines.registry import router, router_names, scheduler
from servegym.simulator.inputs.cluster import Cluster, Link
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.statuses import QUEUE_FULL, TIMELINE_FULL
from servegym.simulator.records.types import DEPARTED, RECEIVED, ROLE_PREFILL
from servegym.simulator.runs.arrays import FIRST_CAPACITY
from servegym.simulator.runs.simulation import Simulation
from tests.seeds import drawn
from tests.simulator.arrays import as_bytes, router_bytes
from tests.simulator.forming import linear
from tests.simulator.named_blocks import assert_memory_is_whole
from tests.simulator.replay import replay
from tests.simulator.whole_runs import finished
from tests.strategies import cluster_scenarios, policies, scenarios

every_router = pytest.mark.parametrize("name", router_names())


def bytes_of(simulation: Simulation) -> dict[str, bytes]:
    known = router_bytes(simulation.router_state)
    return as_bytes(simulation.arrays) | {f"router_state.{k}": v for k, v in known.items()}


def assert_the_same_again(simulation: Simulation, scenario: Scenario, data: st.DataObject) -> None:
    """What a finished simulation has done: when it is reset, in part by steps, and without a timeline."""
    first = bytes_of(simulation)
    simulation.reset()
    simulation.run()
    assert bytes_of(simulation) == first
    some = Simulation(scenario, record_timeline=True)
    for _ in range(data.draw(st.integers(0, 60), label="steps before it runs on")):
        some.step()
    some.run()
    assert bytes_of(some) == first
    plain = bytes_of(finished(scenario, record_timeline=False))
    assert {k: v for k, v in plain.items() if k not in ("timeline", "status")} == {
        k: v for k, v in first.items() if k not in ("timeline", "status")
    }


# Everybody is served


@every_router
@drawn(60)
def test_every_request_finishes_once_and_tokens_are_conserved(name, data):
    scenario = data.draw(cluster_scenarios(name))
    simulation = finished(scenario)
    log, table, arrays = replay(simulation), scenario.workload.table, simulation.arrays
    np.testing.assert_array_equal(arrays.requests["num_output_tokens"], table["output_tokens"])
    assert all(log.finished) and arrays.status[0].finished == len(table)
    # What is computed: the prompt, every token but the last, again what an eviction (or a router that moves engines)
    # threw away; nothing for sending.
    again = np.array(log.lost_tokens) + log.unfinished_tokens
    assert log.scheduled_tokens == list(table["prompt_tokens"] + table["output_tokens"] - 1 + again)
    assert log.evictions == list(arrays.outcomes["evictions"])
    assert [len(times) for times in log.emission_s] == list(table["output_tokens"])
    np.testing.assert_array_equal([times[0] for times in log.emission_s], arrays.outcomes["first_token_s"])
    np.testing.assert_array_equal(arrays.requests["first_token_s"], arrays.outcomes["first_token_s"])
    np.testing.assert_array_equal([times[-1] for times in log.emission_s], arrays.outcomes["finish_s"])
    roles = [pool.role for pool in scenario.deployment.pools for _ in range(pool.engines)]
    for r, engines in enumerate(log.route):
        assert engines[-1] == arrays.requests["engine"][r]
        if log.reroutes[r]:
            continue
        went_on = roles[engines[0]] == "prefill" and int(table["output_tokens"][r]) > 1
        assert [roles[e] == "decode" for e in engines] == [False] + [True] * went_on
    for e, engine in enumerate(arrays.engines):
        mine = [batch for batch in log.batches if batch.engine == e]
        assert engine.iterations == len(mine)
        assert engine.scheduled_tokens == sum(batch.tokens for batch in mine)
        assert (engine.totals.num_output_tokens, engine.totals.evictions) == (log.emitted_at[e], log.evictions_at[e])
        assert engine.busy_s == pytest.approx(log.busy_at[e])
    summary = simulation.result().summary
    assert 0 <= summary["gain"] <= summary["ideal_gain"] * (1 + 1e-12)
    assert summary["gain"] == pytest.approx(sum(map(sum, log.gains)))


@every_router
@drawn(slow=True)
def test_a_truncated_run_is_the_start_of_the_whole(name, data):
    scenario = data.draw(cluster_scenarios(name))
    whole = finished(scenario).arrays
    lines = whole.timeline[: whole.status[0].timeline_used]
    at = float(lines["time_s"][data.draw(st.integers(0, len(lines) - 1), label="line")])
    simulation = finished(dataclasses.replace(scenario, until_s=at))
    part = simulation.arrays
    upto = lines[lines["time_s"] <= at]
    assert part.timeline[: part.status[0].timeline_used].tobytes() == upto.tobytes()
    log, summary = replay(simulation), simulation.result().summary
    assert summary["finished"] == sum(log.finished)
    assert summary["tokens_emitted"] == sum(map(len, log.emission_s))


@every_router
@drawn(slow=True)
def test_a_link_that_takes_no_time_brings_all_at_once_where_there_is_memory(name, data):
    scenario = data.draw(cluster_scenarios(name))
    pools = tuple(dataclasses.replace(pool, total_blocks=2000) for pool in scenario.deployment.pools)
    link = Link(1.0, np.inf, shared=data.draw(st.booleans()))
    cluster = dataclasses.replace(scenario.deployment, pools=pools, link=link)
    simulation = finished(dataclasses.replace(scenario, deployment=cluster))
    log = replay(simulation)
    assert all(log.finished)
    if log.holds or any(log.reroutes):
        return  # where there is memory, and the router lets them go
    lines = simulation.arrays.timeline[: simulation.arrays.status[0].timeline_used]
    departed, received = lines[lines["kind"] == DEPARTED], lines[lines["kind"] == RECEIVED]
    first_token_s = simulation.arrays.outcomes["first_token_s"]
    np.testing.assert_array_equal(received["time_s"], first_token_s[received["request"]])
    assert sorted(received["request"]) == sorted(departed["request"])
    at_prefill = simulation.arrays.engines["role"] == ROLE_PREFILL
    assert at_prefill.any() or len(received) == 0


# KV memory


@every_router
@drawn(slow=True)
def test_every_block_is_free_or_held_by_one_request_at_an_engine(name, data):
    simulation = Simulation(data.draw(cluster_scenarios(name)))
    for _ in range(data.draw(st.integers(0, 40), label="decisions")):
        if not simulation.step():
            break
        assert_blocks_add_up(simulation)
    simulation.run()
    assert_blocks_add_up(simulation)
    arrays, engines = simulation.arrays, simulation.arrays.engines
    assert (engines["free_blocks"] == engines["total_blocks"]).all()
    assert (engines["free_host_blocks"] == engines["host_blocks"]).all()
    for field in ("running", "decode_tokens"):
        assert (engines[field] == 0).all(), field
    for field in ("leaving", "leaving_blocks", "coming_blocks"):
        assert (engines["transfers"][field] == 0).all(), field
    assert (engines["transfers"]["receiving"] == -1).all() and (simulation.router_state.coming["waiting"] == 0).all()
    assert (arrays.requests["blocks"] == 0).all() and (arrays.requests["offloaded_tokens"] == 0).all()
    assert (arrays.outcomes["source"] == -1).all()


def assert_blocks_add_up(simulation: Simulation) -> None:
    """A request on its way has blocks where it was prefilled, and once the sending begins where it goes too."""
    arrays = simulation.arrays
    for e, engine in enumerate(arrays.engines):
        queue = arrays.queues[e, : engine.queue_length]
        leaving = np.flatnonzero(arrays.outcomes["source"] == e)
        here = arrays.requests["engine"] == e
        coming = np.flatnonzero(here & (arrays.outcomes["source"] >= 0) & (arrays.requests["blocks"] > 0))
        waiting = np.flatnonzero(here & (arrays.outcomes["source"] >= 0) & (arrays.requests["blocks"] == 0))
        assert not set(queue) & set(leaving) and not set(queue) & set(coming)
        assert (engine.transfers.leaving, simulation.router_state.coming[e].waiting) == (len(leaving), len(waiting))
        assert list(coming) == [engine.transfers.receiving][: int(engine.transfers.receiving >= 0)]
        running = [r for r in queue if arrays.requests[r].blocks > 0]
        assert engine.running == len(running) + len(leaving) + len(coming)
        kept = arrays.requests["offloaded_tokens"][queue] * (arrays.outcomes["borrowed"][queue] == 0)
        assert engine.host_blocks - engine.free_host_blocks == (-(-kept // engine.block_tokens)).sum()
        if engine.cache.on:
            assert_memory_is_whole(simulation, e)
            continue
        left = -(-arrays.requests["computed_tokens"][leaving] // engine.block_tokens)
        held = arrays.requests["blocks"][[*running, *coming]].sum() + left.sum()
        assert engine.free_blocks + held == engine.total_blocks, "a block is lost, or is given twice"
        assert engine.transfers.coming_blocks == sum(arrays.requests["blocks"][coming])
        assert engine.transfers.leaving_blocks == left.sum()
        if len(arrays.engines) == 1:
            continue  # what only a router asks for is not counted for one engine
        context = arrays.requests["prompt_tokens"] + arrays.requests["num_output_tokens"]
        with_token = arrays.requests["num_output_tokens"] > arrays.outcomes["sent_tokens"]  # since it was sent there
        assert engine.decode_tokens == sum(context[r] for r in queue if with_token[r])


# The same again


@every_router
@drawn(slow=True)
def test_same_inputs_same_bytes_and_stepping_is_running(name, data):
    scenario = data.draw(cluster_scenarios(name))
    simulation = finished(scenario)
    assert bytes_of(finished(scenario)) == bytes_of(simulation)
    assert_the_same_again(simulation, scenario, data)


@every_router
@drawn(40, slow=True)
def test_one_engine_in_a_cluster_is_one_engine(name, data):
    alone = data.draw(scenarios("slide-batching", most_engines=1))
    delay_s = data.draw(st.sampled_from([0.0, 0.5]))
    cluster = Cluster((alone.deployment,), Link(1.0, 1.0), delay_s)
    policy = data.draw(policies(name, "router"))
    beside = finished(dataclasses.replace(alone, deployment=cluster, router=policy)).arrays
    beside.status[0].signals.delay_s = beside.status[0].router.moving = 0
    found, expected = (as_bytes(arrays) for arrays in (beside, finished(alone).arrays))
    del found["scratch"], expected["scratch"]  # what policies worked with
    assert found == expected


def test_engines_of_one_pool_in_a_cluster_without_a_router_are_engines_in_turn():
    workload = crowd(60, burst=20)
    pool = Deployment(DEVICE, DEVICE, 40, engines=3, block_tokens=8)
    alone = finished(Scenario(workload, pool, scheduler("edf"))).arrays
    for name in (None, "round-robin"):
        cluster = Scenario(workload, Cluster((pool,)), scheduler("edf"), router=router(name) if name else None)
        assert as_bytes(finished(cluster).arrays) == as_bytes(alone)
    np.testing.assert_array_equal(alone.requests["engine"], np.arange(60) % 3)


DEVICE = linear(a_p=1e-6, b_p=1e-6, c_p=1e-3, a_d=1e-6, b_d=1e-3, t_c=2e-3)


def crowd(n: int, burst: int, seed: int = 5) -> Workload:
    """Requests of which the first `burst` come at once."""
    rng = np.random.default_rng(seed)
    return Workload.from_columns({
        "arrival_s": np.r_[np.zeros(burst), np.sort(rng.uniform(0, 20.0, n - burst))],
        "prompt_tokens": rng.integers(1, 60, n),
        "output_tokens": rng.integers(1, 6, n),
        "priority": rng.integers(0, 3, n),
        "ttft_slo_s": rng.choice([0.5, 5.0, 50.0], n),
        "tpot_slo_s": 1.0,
    })  # fmt: skip


@pytest.mark.slow
@every_router
@pytest.mark.parametrize(("decode_engines", "delay_s"), [(0, 0.01), (2, 0.0), (2, 30.0)])
def test_growing_arrays_leave_no_trace(name, decode_engines, delay_s):
    """More requests at once than a queue or a record has room for at first, on prefill and on decode engines."""
    n = 3 * FIRST_CAPACITY
    pools = [Deployment(DEVICE, DEVICE, 2000, 1 if decode_engines else 2, block_tokens=8)]
    if decode_engines:
        slow = linear(b_d=0.5, a_d=1e-4, c_p=0.1, t_c=0.5)  # so that a queue forms there too
        pools = [
            dataclasses.replace(pools[0], role="prefill"),
            Deployment(slow, slow, 20_000, decode_engines, block_tokens=8, role="decode"),
        ]
    scenario = Scenario(
        crowd(n, burst=n - 9),
        Cluster(tuple(pools), Link(1.0, 1e6, 1e-3, shared=True), delay_s),
        scheduler("vllm-fcfs"),
        router=router(name),
    )
    ran, walked = finished(scenario), Simulation(scenario, record_timeline=True)
    while walked.step():
        pass
    assert bytes_of(walked) == bytes_of(ran)
    assert ran.arrays.queues.shape[1] > FIRST_CAPACITY and len(ran.arrays.timeline) > 4096
    assert all(replay(ran).finished)
    roomy = Simulation(scenario, record_timeline=True)
    while roomy.arrays.queues.shape[1] < 2 * n:
        roomy.make_room(QUEUE_FULL)
    while len(roomy.arrays.timeline) < len(ran.arrays.timeline):
        roomy.make_room(TIMELINE_FULL)
    roomy.run()
    for array in ("timeline", "outcomes", "engines", "requests"):
        assert as_bytes(roomy.arrays)[array] == as_bytes(ran.arrays)[array]
    assert router_bytes(roomy.router_state)["snapshots"] == router_bytes(ran.router_state)["snapshots"]
