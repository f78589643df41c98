"""Running statistics by client and by application: counted as they happen, and only for a policy that reads them."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.baselines.registry import scheduler as find
from servegym.simulator.inputs.settings import clients_of
from servegym.simulator.policies.policy import Policy, StateFields
from servegym.simulator.records.signatures import scheduler
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.scenes import requests, scene
from tests.strategies import scenarios

pytestmark = pytest.mark.nojit

BOTH = StateFields(by_client=True, by_application=True)


@scheduler
def least_served_first(context, ranks, limits):
    """The client whose requests have emitted fewest tokens first."""
    requests, queue, state = context.requests, context.queue, context.state
    limits.max_num_batched_tokens = 8
    for position in range(queue.shape[0]):
        ranks[position].tier = 0
        ranks[position].key = float(state.by_client[requests[queue[position]].client].num_output_tokens)


LEAST_SERVED_FIRST = Policy("least-served-first", "scheduler", "", "", least_served_first, state=BOTH)


def test_what_is_counted_and_when():
    # 8 tokens a batch. 0-9: request 0. 9-17: its decode and 6 of request 1 (1 + 1 + 6 s). 17-: request 0 is done.
    workload = requests(prompt_tokens=[8, 6, 2], output_tokens=[2, 1, 3], client=[7, 3, 7], application=[0, 0, 5])
    policy = dataclasses.replace(find("sarathi-fcfs").with_settings(max_num_batched_tokens=8), state=BOTH)
    simulation = Simulation(scene(workload, policy))
    assert simulation.step()
    tables = simulation.arrays.state
    assert tables.by_client["queued"].tolist() == [[1, 2]], "client 3, then client 7"
    assert tables.by_client["admitted_prompt_tokens"].tolist() == [[0, 0]]
    assert simulation.step()  # at 9 s, one token out
    assert tables.by_client["admitted_prompt_tokens"].tolist() == [[0, 8]]
    assert tables.by_client["num_output_tokens"].tolist() == [[0, 1]]
    assert simulation.step()  # at 17 s: request 0 finished with 2 tokens, request 1 with 1
    assert tables.by_client["queued"].tolist() == [[0, 1]]
    assert tables.by_client["finished"].tolist() == [[1, 1]]
    assert tables.by_application["mean_output_tokens"].tolist() == [[1.5, 0]]
    assert tables.by_application["squared_deviations"].tolist() == [[0.5, 0]]
    simulation.run()
    assert tables.by_application["finished"].tolist() == [[2, 1]]
    assert tables.by_client["mean_output_tokens"].tolist() == [[1, 2.5]]
    assert tables.by_client["admitted_prompt_tokens"].tolist() == [[6, 10]]


@given(data=st.data())
def test_statistics_are_those_of_what_was_served(data):
    scenario = dataclasses.replace(data.draw(scenarios("edf")), scheduler=LEAST_SERVED_FIRST)
    simulation = Simulation(scenario)
    simulation.run()
    arrays, table = simulation.arrays, scenario.workload.table
    groups = ((clients_of(table), arrays.state.by_client), (table["application"], arrays.state.by_application))
    for group, counted in groups:
        assert (counted["queued"] == 0).all()
        for e in range(scenario.deployment.engines):
            for i, value in enumerate(np.unique(group)):
                mine = table[(group == value) & (arrays.requests["engine"] == e)]
                lengths = mine["output_tokens"]
                assert counted[e, i]["finished"] == len(mine)
                # An eviction and a second admission do not count the prompt again.
                assert counted[e, i]["admitted_prompt_tokens"] == mine["prompt_tokens"].sum()
                assert counted[e, i]["num_output_tokens"] == lengths.sum()
                if len(mine):
                    assert counted[e, i]["mean_output_tokens"] == pytest.approx(lengths.mean())
                    squared = ((lengths - lengths.mean()) ** 2).sum()
                    assert counted[e, i]["squared_deviations"] == pytest.approx(squared, abs=1e-9)
