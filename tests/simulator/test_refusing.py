"""Requests that a router refuses (docs/cluster_rules.md, "Refusing")."""

import dataclasses

import numpy as np
import pytest
from hypothesis import strategies as st

from servegym.baselines.registry import scheduler
from servegym.errors import PolicyError
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.fleet.routing import nth_taker, takers
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.policy import Parameter, Policy
from servegym.simulator.records.signatures import router
from servegym.simulator.records.statuses import AT_ROUTES
from servegym.simulator.records.types import HOLD, REFUSE
from servegym.simulator.runs.simulation import Simulation
from tests.seeds import drawn
from tests.simulator.forming import linear
from tests.simulator.incident_strategies import incident_scenarios
from tests.simulator.test_sessions import workload_of
from tests.simulator.whole_runs import finished
from tests.strategies import cluster_scenarios, sessions_of


@router
def refuse_some(context, request, route):
    """Hold requests until `after_s`; then refuse those of a prompt of `refused` tokens, also when they have a token."""
    snapshots, record, p = context.known.snapshots, context.requests[request], context.parameters
    if context.now_s < p[1]:
        return
    if record.prompt_tokens == int(p[0]) and context.now_s >= p[2]:
        route.engine = REFUSE
        return
    route.engine = nth_taker(request % takers(snapshots, record), snapshots, record)


ROUTER = Policy(
    "refuse-some", "router", "Refuses requests of one length.", "made up", refuse_some,
    parameters=(
        Parameter("refused", 7, "", 0, 1e9),
        Parameter("after_s", 0.0, "", 0.0, 1e9),
        Parameter("from_s", 0.0, "", 0.0, 1e9),
    ),
)  # fmt: skip


@router
def refuse_at_random(context, request, route):
    """What has no token yet is held, refused or sent, as the router's record of the engines has it."""
    snapshots, record = context.known.snapshots, context.requests[request]
    drawn = request
    for e in range(snapshots.shape[0]):
        drawn += (e + 1) * (snapshots[e].version + 3 * snapshots[e].free_blocks)
    if record.num_output_tokens == 0 and drawn % 7 < int(context.parameters[0]):
        route.engine = REFUSE
    elif drawn % 11 > 0 or snapshots["requests"].sum() == 0:
        route.engine = nth_taker(drawn // 3 % takers(snapshots, record), snapshots, record)


AT_RANDOM = Policy(
    "refuse-at-random", "router", "Refuses some.", "made up", refuse_at_random,
    parameters=(Parameter("refuses", 2, "", 0, 7, integer=True),),
)  # fmt: skip


def served(workload: Workload, policy: Policy = ROUTER, incidents=(), engines=2, **more) -> Simulation:
    """A batch takes 1 s, whatever is in it; a request of two tokens 2 s."""
    device = linear(t_c=1.0)
    deployment = Deployment(device, device, 100, engines, 16)
    scenario = Scenario(
        workload, deployment, scheduler("vllm-v1"), router=policy, until_s=1e6, incidents=incidents, **more
    )
    return finished(scenario)


def three(prompt_tokens=(4, 7, 4)) -> Workload:
    return Workload.from_columns(
        {
            "arrival_s": [0.0, 0.5, 0.5], "prompt_tokens": list(prompt_tokens), "output_tokens": 2, "ttft_slo_s": 1.5,
            "tpot_slo_s": 2.0,
        }
    )  # fmt: skip


# By hand


@pytest.mark.nojit
def test_what_is_refused_is_not_served_and_counts_as_neither_attained_nor_starved():
    result = served(three()).result()
    table, summary = result.requests, result.summary
    assert table["refused_s"].tolist() == pytest.approx([np.nan, 0.5, np.nan], nan_ok=True)
    assert table["engine"].tolist() == [0, -1, 0] and table["num_output_tokens"].tolist() == [2, 0, 2]
    assert table["attained"].tolist() == [True, False, False] and table["violated"].tolist()[1]
    assert table["starved"].tolist() == [False] * 3 and table["gain"][1] == 0 < table["ideal_gain"][1]
    assert (summary["requests"], summary["finished"], summary["refused"]) == (3, 2, 1)
    lines = result.timeline.query("kind == 'refused'")
    assert lines[["time_s", "request", "engine"]].to_numpy().tolist() == [[0.5, 1, -1]]


@pytest.mark.nojit
def test_where_none_is_refused_a_summary_does_not_speak_of_it():
    assert "refused" not in served(three((4, 4, 4))).result().summary


@pytest.mark.nojit
def test_a_request_that_is_held_may_be_refused_later():
    result = served(three(), ROUTER.with_settings(after_s=0.75), incidents=(Incident(2.0, 1, "drain"),)).result()
    table = result.requests
    # All wait for a last retry, which comes with the incident at 2 s: nothing else happens before it.
    assert table["refused_s"].tolist() == pytest.approx([np.nan, 2.0, np.nan], nan_ok=True)
    assert table["first_token_s"].tolist() == pytest.approx([3.0, np.nan, 3.0], nan_ok=True)


@pytest.mark.nojit
def test_a_request_that_its_engine_lost_may_be_refused_before_its_first_token_alone():
    policy = ROUTER.with_settings(from_s=0.75)
    taken_back = served(three((4, 7, 7)), policy, (Incident(0.75, 1, "fail"),))
    assert taken_back.result().requests["refused_s"].tolist() == pytest.approx([np.nan, 0.75, np.nan], nan_ok=True)
    assert taken_back.arrays.outcomes["reroutes"].tolist() == [0, 1, 0]
    with pytest.raises(
        PolicyError, match=r"at 1.75 s router refuse-some.* refused request 1, which had its first token at 1.5 s; it "
        "should refuse a request before its first token"
    ):  # fmt: skip
        served(three((4, 7, 4)), policy, (Incident(1.75, 1, "fail"),))


@pytest.mark.nojit
def test_a_session_ends_with_the_turn_that_is_refused():
    # 0 <- 1 <- 3 <- 4 and 0 <- 2: the second turn (1) is refused, and what follows it; its sibling goes on.
    workload = workload_of([0] * 5, [-1, 0, 0, 1, 3], [0, 1, 2, 0, 0], prompt_tokens=[4, 7, 4, 4, 4])
    simulation = served(workload)
    result = simulation.result()
    nan = float("nan")
    assert result.requests["refused_s"].tolist() == pytest.approx([nan, 3, nan, 3, 3], nan_ok=True)
    assert result.requests["arrival_s"].tolist() == [0, 3, 4, 3, 3]
    assert (result.summary["requests"], result.summary["finished"], result.summary["refused"]) == (5, 2, 3)
    assert result.sessions["attained"].tolist() == [False] and simulation.arrays.status[0].front.sessions == 0
    assert result.summary["ideal_gain"] == pytest.approx(served(workload, ROUTER.with_settings(refused=0)).result()
                                                         .summary["ideal_gain"])  # fmt: skip


@pytest.mark.nojit
def test_a_client_whose_request_is_refused_sends_its_next_at_once():
    workload = Workload.from_columns({"arrival_s": np.zeros(4), "prompt_tokens": [4, 7, 7, 4], "output_tokens": 2})
    for limits in ({"clients": 1}, {"max_concurrency": 1}):
        simulation = served(workload, **limits)
        assert simulation.arrays.requests["arrival_s"].tolist() == [0.0, 2.0, 2.0, 2.0]
        assert simulation.arrays.status[0].now_s == 4.0


@pytest.mark.nojit
def test_with_one_engine_no_router_is_asked():
    assert served(three(), engines=1).result().summary["finished"] == 3


@pytest.mark.nojit
def test_a_caller_that_decides_may_refuse():
    policy = ROUTER.with_settings(refused=0)
    device = linear(t_c=1.0)
    simulation = Simulation(
        Scenario(three(), Deployment(device, device, 100, 2, 16), scheduler("vllm-v1"), router=policy)
    )
    asked = []
    while simulation.advance_to(AT_ROUTES):
        asked.append(int(simulation.arrays.status[0].deciding_request))
        if asked[-1] == 2:
            simulation.router_state.route[0].engine = REFUSE
    assert asked == [0, 1, 2] and simulation.arrays.status[0].refused == 1
    assert np.isfinite(simulation.arrays.outcomes["finish_s"]).tolist() == [True, True, False]


# What holds for all


@drawn(60)
def test_every_request_is_finished_or_refused_and_none_is_both(data):
    """With sessions, or with engines that fail, and then with some that are left in the end."""
    whole = st.one_of(cluster_scenarios("min-load"), sessions_of(cluster_scenarios("min-load")))
    drawn = data.draw(st.one_of(whole, incident_scenarios("min-load")))
    policy = AT_RANDOM.with_settings(refuses=data.draw(st.integers(0, 7)))
    scenario = dataclasses.replace(drawn, router=policy)
    simulation = Simulation(scenario, record_timeline=True)
    simulation.run()
    arrays, table, status = simulation.arrays, scenario.workload.table, simulation.arrays.status[0]
    finished, refused = np.isfinite(arrays.outcomes["finish_s"]), np.isfinite(arrays.outcomes["refused_s"])
    assert (finished ^ refused).all() and (status.finished, status.refused) == (finished.sum(), refused.sum())
    np.testing.assert_array_equal(arrays.requests["num_output_tokens"], np.where(finished, table["output_tokens"], 0))
    assert (arrays.requests["engine"][refused] == HOLD).all() and not arrays.outcomes["gain"][refused].any()
    if scenario.workload.turns is not None:
        after = scenario.workload.turns.after
        follows = after >= 0
        gone = refused[after[follows]]
        np.testing.assert_array_equal(
            arrays.outcomes["refused_s"][follows][gone], arrays.outcomes["refused_s"][after[follows]][gone]
        )
        assert (status.front.sessions, status.front.requests) == (0, 0)
    assert status.router.held == 0 and (simulation.router_state.known.tiers["waiting"] == 0).all()
    assert (arrays.engines["free_blocks"] == arrays.engines["total_blocks"]).all()
    result = simulation.result()
    assert result.summary.get("refused", 0) == refused.sum() and len(result.requests) == len(table)
    assert 0 <= result.summary["gain"] <= result.summary["ideal_gain"] * (1 + 1e-12)
    again = Simulation(scenario, record_timeline=True)
    while again.step():
        pass
    assert arrays.outcomes.tobytes() == again.arrays.outcomes.tobytes()
