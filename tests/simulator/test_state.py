"""Numbers a policy declares and keeps: per request, engine and client, in the run's arrays."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.baselines.registry import scheduler as find
from servegym.simulator.policies.policy import Policy, StateFields
from servegym.simulator.records import types as layout
from servegym.simulator.records.signatures import scheduler
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.arrays import as_bytes
from tests.simulator.scenes import requests, scene
from tests.strategies import scenarios

pytestmark = pytest.mark.nojit


@scheduler
def least_seen_first(context, ranks, limits):
    """The client that was ranked least often first; counts every look."""
    now_s, engine, state = context.now_s, context.engine, context.state
    requests, queue = context.requests, context.queue
    limits.max_num_batched_tokens = 8
    state.engines[engine.index, 0] += 1
    state.engines[engine.index, 1] = now_s
    for position in range(queue.shape[0]):
        r = queue[position]
        state.requests[r, 0] += 1
        ranks[position].tier = 0
        ranks[position].key = state.clients[requests[r].client, 0]
    for position in range(queue.shape[0]):
        state.clients[requests[queue[position]].client, 0] += 1


POLICY = Policy(
    "least-seen-first", "scheduler", "", "", least_seen_first,
    state=StateFields(request=("looks",), engine=("looks", "last_s"), client=("looks",)),
)  # fmt: skip


def test_state_has_a_row_for_each():
    workload = requests(prompt_tokens=[2, 3, 4], client=[0, 4, 1])
    simulation = Simulation(scene(workload, POLICY, engines=2))
    state = simulation.arrays.state
    assert (state.requests.shape, state.engines.shape, state.clients.shape) == ((3, 1), (2, 2), (2, 3, 1))
    assert not any(table.any() for table in state[:3])
    assert simulation.arrays.requests["client"].tolist() == [0, 2, 1], "rows for the clients there are"
    nothing = Simulation(scene(workload, "edf", engines=2)).arrays.state
    assert [table.size for table in nothing] == [0, 0, 0, 0, 0, 0]


def test_state_counts_calls():
    # One at a time within 8 tokens: 0-9: request 0 (8 tokens), 9-15: request 1 (5): two looks at it, one at 0.
    simulation = Simulation(scene(requests(prompt_tokens=[8, 5], client=[0, 2]), POLICY))
    result = simulation.run()
    assert result.requests.first_token_s.tolist() == [9, 15]
    state = simulation.arrays.state
    assert state.requests.tolist() == [[1], [2]] and state.clients.tolist() == [[[1], [2]]]
    assert state.engines.tolist() == [[2, 9]]
    simulation.reset()
    assert not any(table.any() for table in simulation.arrays.state[:3])


@given(data=st.data())
def test_state_goes_with_the_run(data):
    scenario = dataclasses.replace(data.draw(scenarios("edf")), scheduler=POLICY)
    ran, walked = Simulation(scenario), Simulation(scenario)
    ran.run()
    while walked.step():
        pass
    assert as_bytes(ran.arrays) == as_bytes(walked.arrays)
    state, engines = ran.arrays.state, ran.arrays.engines
    assert (ran.arrays.status[0].evictions > 0) or (state.engines[:, 0] == engines["iterations"]).all()
    assert (state.engines[:, 0] >= engines["iterations"]).all()
    clients, sent_to = ran.arrays.requests["client"], ran.arrays.requests["engine"]
    looks = np.zeros(state.clients.shape[:2])
    np.add.at(looks, (sent_to, clients), state.requests[:, 0])
    np.testing.assert_array_equal(looks, state.clients[:, :, 0])


def test_a_policy_without_state_can_be_given_some():
    policy = dataclasses.replace(find("edf"), state=StateFields(request=("a", "b")))
    simulation = Simulation(scene(requests(prompt_tokens=[8, 5]), policy))
    simulation.run()
    assert simulation.arrays.state.requests.shape == (2, 2)


def test_what_a_rank_pass_reads_of_a_request_is_one_cache_line():
    at = {name: layout.REQUEST.fields[name][1] for name in layout.REQUEST.names}
    read = ("first_deadline_s", "token_interval_s", "first_token_gain", "prompt_tokens", "num_output_tokens", "blocks")
    assert layout.REQUEST.itemsize % 64 == 0 and all(at[name] < 64 for name in read)
    assert sorted(at.values()) == list(at.values()) and at["first_token_s"] + 8 <= layout.REQUEST.itemsize
