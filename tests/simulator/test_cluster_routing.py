"""What a router knows and what it cannot know, in any cluster; and that names of engines do not matter."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegym.baselines.registry import router, scheduler
from servegym.simulator.features.disturbances import Disturbance
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.fleet.routing import takers
from servegym.simulator.inputs.cluster import Cluster, Link
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import FIELDS, Workload
from servegym.simulator.policies.gains import Gain
from servegym.simulator.records.types import HOLD, REQUEST, ROLE_DECODE, ROLE_PREFILL
from servegym.simulator.runs.simulation import Simulation
from tests.seeds import drawn
from tests.simulator.forming import linear
from tests.simulator.test_cluster_properties import every_router
from tests.simulator.whole_runs import finished
from tests.strategies import cluster_scenarios

# What the router knows


@every_router
@drawn(slow=True)
def test_with_no_delay_the_router_knows_what_is_so(name, data):
    scenario = data.draw(cluster_scenarios(name))
    cluster = dataclasses.replace(scenario.deployment, signal_delay_s=0.0)
    if cluster.engines == 1:
        return  # nothing is kept for one engine
    simulation = Simulation(dataclasses.replace(scenario, deployment=cluster))
    for _ in range(data.draw(st.integers(0, 40), label="decisions")):
        if not simulation.step():
            break
        arrays, snapshots = simulation.arrays, simulation.router_state.known.snapshots
        for e, snapshot in enumerate(snapshots):
            here = np.flatnonzero((arrays.requests["engine"] == e) & np.isnan(arrays.outcomes["finish_s"]))
            sent = arrays.outcomes["sent_tokens"]
            with_token = arrays.requests["num_output_tokens"][here] > sent[here]  # since it was sent there
            record = simulation.router_state.known.prefilling[e, : snapshot.prefills]
            assert sorted(record) == ([] if snapshot.role == ROLE_DECODE else sorted(here[~with_token]))
            assert snapshot.prefill_tokens == (arrays.requests["prompt_tokens"] + sent)[record].sum()
            assert (snapshot.requests, snapshot.decodes) == (len(here), with_token.sum())


@every_router
@drawn(slow=True)
def test_in_the_end_the_router_has_heard_of_everything_or_it_is_on_its_way(name, data):
    simulation = finished(data.draw(cluster_scenarios(name)))
    status, router_state = simulation.arrays.status[0], simulation.router_state
    under_way = router_state.signals[status.signals.heard : status.signals.sent]
    first, last = ([signal for signal in under_way if signal.kind == kind] for kind in (0, 1))
    for e, snapshot in enumerate(router_state.known.snapshots):
        tokens = sum(signal.engine == e for signal in first)
        ends = sum(signal.engine == e for signal in last)
        assert snapshot.prefills == tokens
        assert snapshot.requests == (tokens if snapshot.role == ROLE_PREFILL else ends)
        assert snapshot.decodes == (
            0 if snapshot.role == ROLE_PREFILL else ends if snapshot.role == ROLE_DECODE else ends - tokens
        )


# What a router cannot know


@every_router
@drawn(40, slow=True)
def test_a_routing_decision_reads_of_a_request_what_was_given_and_its_tokens(name, data):
    scenario = data.draw(cluster_scenarios(name))
    simulation = Simulation(scenario)
    for _ in range(data.draw(st.integers(0, 40), label="decisions before")):
        if not simulation.step():
            break
    n = len(scenario.workload)
    r = data.draw(st.integers(0, n - 1), label="request")
    requests = simulation.arrays.requests.copy()
    if takers(simulation.router_state.known.snapshots, requests[r]) == 0:
        return
    now_s = float(simulation.arrays.status[0].now_s)
    expected = routed(simulation, requests, r, now_s)
    assert HOLD <= expected[0] < scenario.deployment.engines
    given_and_tokens = {
        *FIELDS, "session", "session_engine", "sent_cached_tokens", "first_deadline_s", "token_interval_s",
        "first_token_gain", "decode_token_gain",
    }  # fmt: skip
    for field in set(REQUEST.names) - given_and_tokens - {"num_output_tokens", "computed_tokens"}:
        requests[field] = np.arange(n) * 7 % 23 - 1
    # Whether its KV is somewhere, not how much of it there is.
    requests["computed_tokens"] = np.where(requests["computed_tokens"] > 0, np.arange(n) * 7 % 23 + 1, 0)
    assert routed(simulation, requests, r, now_s) == expected


def routed(simulation: Simulation, requests: np.ndarray, r: int, now_s: float) -> tuple[Any, ...]:
    """What the router says now, and what it notes; the run stays as it is."""
    router_state, policy = simulation.router_state, simulation.settings.router
    route, state = router_state.route.copy(), router_state.state.copy()
    scratch = np.zeros((policy.scratch.rows, router_state.known.prefilling.shape[1] + 1))
    known = router_state.known._replace(snapshots=router_state.known.snapshots.copy())
    context = simulation.router_context(now_s)._replace(
        requests=requests, known=known, state=state, scratch=scratch
    )  # fmt: skip
    policy.function.entry(context, r, route[0])
    return int(route[0].engine), int(route[0].decode_engine), state.tobytes()


@every_router
@drawn(40)
def test_hidden_lengths_change_nothing_before_an_answer_ends(name, data):
    """Up to the first instant at which a request ends in one run and not in the other, the two runs are one."""
    drawn = data.draw(cluster_scenarios(name))
    scenario = dataclasses.replace(drawn, gain=Gain(first_weight=1.0), predictor=None)
    table = scenario.workload.table.copy()
    more = data.draw(st.lists(st.integers(0, 3), min_size=len(table), max_size=len(table)), label="longer by")
    table["output_tokens"] += more
    longer = dataclasses.replace(scenario.workload, table=table)
    roomy = tuple(dataclasses.replace(pool, total_blocks=pool.total_blocks + 9) for pool in scenario.deployment.pools)
    scenario = dataclasses.replace(scenario, deployment=dataclasses.replace(scenario.deployment, pools=roomy))
    one, other = (
        finished(dataclasses.replace(scenario, workload=workload)).arrays for workload in (scenario.workload, longer)
    )
    ends_s = np.minimum(one.outcomes["finish_s"], other.outcomes["finish_s"])[np.array(more) > 0]
    until_s = min(ends_s, default=np.inf)
    lines = [run.timeline[: run.status[0].timeline_used] for run in (one, other)]
    first, second = (part[part["time_s"] < until_s] for part in lines)
    assert first.tobytes() == second.tobytes()


# Names do not matter


@pytest.mark.slow
@settings(max_examples=60)
@given(data=st.data())
@pytest.mark.parametrize("name", ["min-load", "min-tokens", "min-cycle-time", "gorouting:fallback=least-loaded"])
@pytest.mark.parametrize("roles", [("both", "both"), ("prefill", "prefill", "decode", "decode")])
def test_permuting_engines_permutes_the_results(roles, name, data):
    """Pools in another order; what tells engines of a pool apart (which was sent a request last) goes with them."""
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6), label="seed"))
    n = data.draw(st.integers(1, 40), label="requests")
    workload = Workload.from_columns({  # no two things happen at one instant
        "arrival_s": np.cumsum(rng.exponential(0.05, n)),
        "prompt_tokens": rng.integers(1, 200, n),
        "output_tokens": rng.integers(1, 20, n),
        "ttft_slo_s": rng.uniform(0.05, 2.0, n),
        "tpot_slo_s": rng.uniform(0.02, 0.3, n),
    })  # fmt: skip

    def pool(role: str) -> Deployment:
        model = linear(a_p=rng.uniform(0, 1e-6), c_p=rng.uniform(1e-4, 1e-3), b_d=rng.uniform(1e-3, 1e-2),
                       a_d=rng.uniform(0, 1e-5), b_p=rng.uniform(0, 1e-6), t_c=rng.uniform(1e-3, 1e-2))  # fmt: skip
        tier = int(rng.integers(0, 2)) if rng.random() < 0.5 else None
        return Deployment(model, model, 300, int(rng.integers(1, 4)), 2, role=role, tier=tier)

    pools = [pool(role) for role in roles]
    shuffled = data.draw(st.permutations(range(len(pools))), label="pools")
    engines = np.split(np.arange(sum(p.engines for p in pools)), np.cumsum([p.engines for p in pools])[:-1])
    within = [rng.permutation(group) for group in engines]  # engines of a pool change places too
    old_of_new = np.concatenate([within[p] for p in shuffled])
    link, delay_s = Link(1.0, rng.uniform(1e3, 1e5), rng.uniform(0, 0.05)), rng.choice([0.0, rng.uniform(0, 0.3)])
    # Engines fail and return (in the end all do), each at a time of its own; they are in tiers, or in the pool.
    drawn = [(rng.uniform(0, 1.5), int(e), str(rng.choice(["fail", "drain", "return"])))
                for e in rng.integers(0, len(old_of_new), data.draw(st.integers(0, 4), label="incidents"))]  # fmt: skip
    drawn += [(rng.uniform(2.0, 3.0), e, "return") for e in range(len(old_of_new))] if drawn else []
    keys = -1.0 - rng.permutation(len(old_of_new))  # of the engines: no tie is left to their index
    outcomes = []
    for order, own in ((range(len(pools)), np.arange(len(old_of_new))), (shuffled, old_of_new)):
        cluster = Cluster(tuple(pools[p] for p in order), link, float(delay_s), tiers=(0.05, 0.1))
        new_of_old = np.argsort(own)
        incidents = tuple(Incident(time_s, int(new_of_old[e]), kind) for time_s, e, kind in drawn)
        simulation = Simulation(
            Scenario(workload, cluster, scheduler("slide-batching"), router=router(name), incidents=incidents)
        )
        simulation.router_state.state[:, 0] = keys[own]
        simulation.run()
        arrays = simulation.arrays
        outcomes.append((arrays.outcomes, own[arrays.requests["engine"]], arrays.engines[np.argsort(own)]))
    (one, at, busy), (other, at_other, busy_other) = outcomes
    for field in ("admitted_s", "first_token_s", "finish_s", "on_time_tokens", "evictions", "reroutes"):
        np.testing.assert_array_equal(one[field], other[field])
    np.testing.assert_array_equal(at, at_other)
    for field in ("iterations", "scheduled_tokens", "tier", "busy_s"):
        np.testing.assert_array_equal(busy[field], busy_other[field])
    for field in ("num_output_tokens", "peak_blocks", "failures", "recalled", "lost_tokens", "service_s"):
        np.testing.assert_array_equal(busy["totals"][field], busy_other["totals"][field])


def test_a_router_that_takes_an_engine_to_be_busy_is_asked_when_that_should_be_over():
    """Iterations take half of what is estimated. PolyServe holds a request while an engine is busy as far as it knows;
    that engine waits for memory, which KV of this request takes, and nothing else is to happen."""
    second = 1 / 64
    model = linear(c_p=second, b_d=second, t_c=second)
    workload = Workload.from_columns({
        "arrival_s": 0.0, "prompt_tokens": [1] * 11 + [35], "output_tokens": [1] * 9 + [2, 2, 1],
        "ttft_slo_s": [second] * 8 + [1.0] + [second] * 3, "tpot_slo_s": [second] * 9 + [1.375, 0.5, second],
        "ttlt_slo_s": [np.inf] * 9 + [0.109375, 11.75, 11.75],
    })  # fmt: skip
    pool = Deployment(model, model, 35, block_tokens=1, watermark=0.0)
    pools = tuple(dataclasses.replace(pool, role=role) for role in ("prefill", "decode", "both"))
    scenario = Scenario(
        workload, Cluster(pools, Link(0.0, np.inf), second), scheduler("distserve-cp2k"), router=router("polyserve"),
        disturbance=Disturbance(shift_s=0.0, shift_ratio=0.5),
    )  # fmt: skip
    assert Simulation(scenario).run().summary["finished"] == len(workload)
