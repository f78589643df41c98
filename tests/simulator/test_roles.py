"""Engines that change their role, by hand: docs/cluster_rules.md, "Changing roles".

A batch takes 1 s and 1 s a token, a KV block holds a token, a link takes 1 s and 1 s a token. The scaler is asked every
2 s.
"""

import numpy as np
import pytest

from servegym.errors import DeploymentError, PolicyError
from servegym.simulator.memory.prefixes import PrefixStore, Prompts
from servegym.simulator.policies.policy import Parameter, Policy
from servegym.simulator.records.signatures import scaler as compiled_scaler
from servegym.simulator.records.types import ROLE_BOTH, ROLE_DECODE, ROLE_PREFILL
from tests.simulator.fleets import FIRST, back, fail, run
from tests.simulator.scenes import requests
from tests.simulator.test_cluster_transfers import lines, pool

pytestmark = pytest.mark.nojit
NEVER = 1e9


@compiled_scaler
def to_role(context, moves):
    now_s, parameters = context.now_s, context.parameters
    e = int(parameters[1])
    moves[e].role = int(parameters[2]) if parameters[3] <= now_s < parameters[4] else int(parameters[5])


def giving(engine: int, role: int, from_s: float, until_s: float = NEVER, otherwise: int | None = None) -> Policy:
    """Gives the engine a role from a time on, and another before and after: the other one of two, unless said."""
    other = ROLE_PREFILL + ROLE_DECODE - role if otherwise is None else otherwise
    said = {"interval_s": 2.0, "engine": engine, "role": role, "from_s": from_s, "until_s": until_s, "other": other}
    parameters = tuple(Parameter(name, value, "") for name, value in said.items())
    return Policy("to_role", "scaler", "", "made up", to_role, parameters=parameters)


def test_a_prefill_engine_drains_and_then_decodes():
    """Engines 0 and 1 prefill 2 and 3 tokens, to 3 and 4 s. From 2 s on engine 1 takes nothing: the request of 5 s goes
    to engine 0. The KV on engine 1 waits for the link, and has arrived at 10 s: then it is a decode engine, and takes
    requests at 13 s."""
    workload = requests(arrival_s=[0.0, 0.0, 5.0, 12.0, 12.0, 12.0], prompt_tokens=[2, 3, 1, 1, 1, 1], output_tokens=2)
    simulation = run(
        workload, pool("prefill", 2, role_change_s=3.0), pool("decode"), scaler=giving(1, ROLE_DECODE, 2.0)
    )
    assert lines(simulation, "arrival", "role") == [
        (0.0, "arrival", 0, 0, 0), (0.0, "arrival", 1, 1, 0), (5.0, "arrival", 0, 2, 0),
        (10.0, "role", 1, -1, ROLE_DECODE), *((12.0, "arrival", 0, r, 0) for r in (3, 4, 5)),
    ]  # fmt: skip
    # The three of 12 s are prefilled at 16 s, in 1 s + 3 tokens. Request i goes to engine 1 if i is even, else to 2.
    sent = [(time_s, e, r) for time_s, _, e, r, _ in lines(simulation, "sent")]
    assert sent == [(3.0, 2, 0), (6.0, 2, 1), (10.0, 2, 2), (16.0, 2, 3), (16.0, 1, 4), (18.0, 2, 5)]
    engines = simulation.result().engines
    assert engines["role"].tolist() == ["prefill", "decode", "decode"]
    assert engines["role_changes"].tolist() == [0, 1, 0]
    assert engines["requests"].tolist() == [5, 1, 5]


def test_a_change_takes_its_time():
    """The only prefill engine is empty at 2 s: a decode engine then, and a prefill engine again at 4 s, before it would
    have been ready at 5 s. The request of 3 s waits until 7 s."""
    workload = requests(arrival_s=[3.0], prompt_tokens=[1], output_tokens=1)
    policy = giving(0, ROLE_DECODE, 2.0, until_s=4.0)
    simulation = run(workload, pool("prefill", role_change_s=3.0), pool("decode"), scaler=policy)
    assert lines(simulation, "held", "arrival", "role") == [
        (2.0, "role", 0, -1, ROLE_DECODE), (3.0, "held", -1, 0, 0), (4.0, "role", 0, -1, ROLE_PREFILL),
        (7.0, "arrival", 0, 0, 0),
    ]  # fmt: skip


def test_it_is_called_off_while_the_engine_drains():
    """Engine 1 computes 5 tokens, to 6 s. It takes nothing from 2 to 4 s, and has its old role throughout."""
    workload = requests(arrival_s=[0.0, 0.0, 3.0, 3.0, 5.0, 5.0], prompt_tokens=[1, 5, 1, 1, 1, 1], output_tokens=1)
    policy = giving(1, ROLE_DECODE, 2.0, until_s=4.0)
    simulation = run(workload, pool("prefill", 2, role_change_s=3.0), pool("decode"), scaler=policy)
    arrivals = [(time_s, r, e) for time_s, _, e, r, _ in lines(simulation, "arrival", "role")]
    assert arrivals == [(0.0, 0, 0), (0.0, 1, 1), (3.0, 2, 0), (3.0, 3, 0), (5.0, 4, 0), (5.0, 5, 1)]


def test_a_decode_engine_ends_what_comes_to_it():
    """Prompts of 2 and 3 tokens end at 6 s, and go to engines 1 and 2. At 8 s the KV of the second is on its way; it
    arrives at 10 s and two more tokens end at 14 s. Engine 2 is then a prefill engine at once, and takes a request."""
    workload = requests(arrival_s=[0.0, 0.0, 14.0, 14.0], prompt_tokens=[2, 3, 1, 1], output_tokens=[3, 3, 2, 2])
    pools = pool("prefill"), pool("decode", 2, role_change_s=0.0)
    simulation = run(workload, *pools, scaler=giving(2, ROLE_PREFILL, 8.0))
    assert lines(simulation, "arrival", "received", "finish", "role")[2:8] == [
        (9.0, "received", 1, 0, 2), (10.0, "received", 2, 1, 3), (13.0, "finish", 1, 0, 0), (14.0, "finish", 2, 1, 0),
        (14.0, "role", 2, -1, ROLE_PREFILL), (14.0, "arrival", 0, 2, 0),
    ]  # fmt: skip
    assert (14.0, "arrival", 2, 3, 0) in lines(simulation, "arrival")
    assert {e for _, _, e, r, _ in lines(simulation, "sent") if r > 1} == {1}


def test_what_waits_to_be_sent_there_is_sent():
    """Two prompts of 3 tokens end at 7 s and are both for engine 1, which is to prefill from 8 s on: the second is sent
    when the first is there, at 11 s, and ends at 17 s."""
    workload = requests(prompt_tokens=[3, 3], output_tokens=[2, 2])
    pools = pool("prefill"), pool("decode", role_change_s=5.0), pool("decode")
    simulation = run(workload, *pools, routing=FIRST, scaler=giving(1, ROLE_PREFILL, 8.0))
    assert lines(simulation, "sent", "finish", "role") == [
        (7.0, "sent", 1, 0, 3), (11.0, "sent", 1, 1, 3), (13.0, "finish", 1, 0, 0), (17.0, "finish", 1, 1, 0),
        (17.0, "role", 1, -1, ROLE_PREFILL),
    ]  # fmt: skip


def test_the_router_hears_of_all_its_tokens_when_the_role_changes():
    """Signals take 100 s. Engine 1 ends its only request at 8 s and is a prefill engine then, as the router knows."""
    workload = requests(arrival_s=[0.0, 9.0], prompt_tokens=[2, 1], output_tokens=[2, 1])
    pools = pool("prefill"), pool("decode", role_change_s=0.0), pool("decode")
    simulation = run(workload, *pools, routing=FIRST, delay_s=100.0, scaler=giving(1, ROLE_PREFILL, 2.0))
    assert lines(simulation, "role") == [(2.0, "role", 1, -1, ROLE_PREFILL)]  # nothing was on its way there
    simulation = run(workload, *pools, routing=FIRST, delay_s=100.0, scaler=giving(1, ROLE_PREFILL, 6.0))
    assert lines(simulation, "role") == [(8.0, "role", 1, -1, ROLE_PREFILL)]
    snapshot = simulation.router_state.known.snapshots[1]
    assert (snapshot.role, snapshot.requests, snapshot.decodes, snapshot.finished) == (ROLE_PREFILL, 0, 0, 1)


def test_a_failed_engine_has_nothing_left():
    """Engine 1 computes 9 tokens from 0 s on and drains from 2 s on; it fails at 3 s and is a decode engine then. It
    returns at 4 s, and is ready at 5 s. Its request goes to engine 0."""
    workload = requests(prompt_tokens=[1, 9], output_tokens=2)
    simulation = run(
        workload, pool("prefill", 2, role_change_s=2.0), pool("decode"), scaler=giving(1, ROLE_DECODE, 2.0),
        incidents=(fail(3.0, 1), back(4.0, 1)),
    )  # fmt: skip
    assert lines(simulation, "failed", "recalled", "role", "arrival")[2:] == [
        (3.0, "failed", 1, -1, 1), (3.0, "recalled", 1, 1, 0), (3.0, "role", 1, -1, ROLE_DECODE),
        (3.0, "arrival", 0, 1, 0),
    ]  # fmt: skip
    assert simulation.result().engines["lost_tokens"].tolist() == [0, 0, 0]  # in the middle of its only batch


def test_engines_that_drain_and_change_are_in_service():
    workload = requests(arrival_s=[0.0, 9.0], prompt_tokens=[1, 1], output_tokens=1)
    simulation = run(
        workload, pool("prefill", 2, role_change_s=4.0), pool("decode"), scaler=giving(1, ROLE_DECODE, 2.0)
    )
    assert simulation.result().engines["service_s"].tolist() == [11.0, 11.0, 0.0]  # the last is in no tier


def test_a_scaler_that_leaves_no_decode_engine_for_requests_that_wait():
    """The decode engine prefills from 4 s on, and the KV of the request is at the prefill engine from 6 s on."""
    pools = pool("prefill", role_change_s=1.0), pool("decode", role_change_s=1.0)
    with pytest.raises(PolicyError, match=r"1 requests wait, .* give one their role"):
        run(requests(prompt_tokens=[5], output_tokens=2), *pools, scaler=giving(1, ROLE_PREFILL, 4.0))


@pytest.mark.parametrize(("policy", "says"), [
    (giving(2, ROLE_PREFILL, 0.0), r"gave engine 2 the role prefill; the role of its pool is fixed \(set role_change"),
    (giving(1, ROLE_BOTH, 0.0), "gave engine 1 the role both; it should be prefill or decode"),
    (giving(1, 7, 0.0, otherwise=1), "gave engine 1 the role number 7; it should be prefill or decode"),
])  # fmt: skip
def test_a_role_that_an_engine_cannot_have(policy, says):
    with pytest.raises(PolicyError, match=f"at 2 s.*{says}"):
        run(requests(arrival_s=[3.0], prompt_tokens=[1]), pool("prefill", 2, role_change_s=0.0), pool("decode"),
            scaler=policy)  # fmt: skip


@pytest.mark.parametrize(("more", "says"), [
    ({"role_change_s": -1.0}, "role_change_s is -1.0; it should be 0 or more, and finite"),
    ({"role_change_s": np.inf}, "role_change_s is inf"),
    ({"role_change_s": 1.0, "role": "both"}, "of engines that do both; it should be left out"),
    ({"role_change_s": 1.0, "prefix_caching": True}, "not simulated with prefix caching"),
    ({"role_change_s": 1.0, "prefix_store": PrefixStore(10, 0.0)}, "not simulated with a prefix store"),
    ({"role_change_s": 1.0, "engines": 2, "lockstep": 2}, "not simulated with lockstep"),
])  # fmt: skip
def test_what_is_refused(more, says):
    with pytest.raises(DeploymentError, match=says):
        pool(**({"role": "prefill"} | more))


def test_prompts_that_begin_alike_need_caching_turned_off():
    workload = requests(prompt_tokens=[2, 2])
    prompts = Prompts(1, np.array([0, 2, 4]), np.array([1, 2, 1, 2]))
    workload = type(workload)(workload.table, workload.name, workload.provenance, prefixes=prompts)
    pools = pool("prefill", role_change_s=1.0), pool("decode")
    with pytest.raises(DeploymentError, match="turn it off"):
        run(workload, *pools)
    off = pool("prefill", role_change_s=1.0, prefix_caching=False)
    run(workload, off, pool("decode"))


def test_a_prefill_engine_that_may_decode_needs_room_for_whole_requests():
    workload = requests(prompt_tokens=[5], output_tokens=[5])
    small = pool("prefill", total_blocks=5)
    run(workload, small, pool("decode"))
    with pytest.raises(DeploymentError, match="do not fit the KV cache"):
        run(workload, pool("prefill", total_blocks=5, role_change_s=1.0), pool("decode"))
