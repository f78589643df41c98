"""The gain of sessions: once, with the last token of the last request, if that is out by the session's deadline."""

import dataclasses

import numpy as np
import pytest
from hypothesis import strategies as st

from servegym.simulator.features.front_end import FrontEnd
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.policies.gains import Gain
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation
from tests.seeds import drawn
from tests.simulator.scenes import requests, scene
from tests.simulator.test_session_figures import TREE
from tests.simulator.test_sessions import FOREVER_S, served, workload_of
from tests.strategies import cluster_scenarios, scenarios, sessions_of

GAIN = Gain("session-slo")
# Of TREE: the session of 0 takes 7 s in all, and that of 1 takes 2 s. By SLOs of ttft + 0.5 s the first is due
# after 3 x (ttft + 0.5) + 1 (or 2 x (ttft + 0.5) + 3), and the other after ttft + 0.5.
WEIGHTS = np.array([3.0, 5.0, 7.0, 7.0, 7.0])


def gained(ttft_slo_s: float, until_s: float = FOREVER_S, **more: object) -> Result:
    workload = workload_of(**TREE, ttft_slo_s=np.full(5, ttft_slo_s), tpot_slo_s=np.full(5, 0.5), weight=WEIGHTS)
    return served(workload, until_s=until_s, gain=GAIN, **more).result()


@pytest.mark.nojit
def test_a_session_earns_the_weight_of_its_first_request_once() -> None:
    result = gained(2.0)
    assert result.requests["gain"].tolist() == result.requests["ideal_gain"].tolist() == [3.0, 5.0, 0.0, 0.0, 0.0]
    assert result.summary["gain_ratio"] == 1.0 and result.arrays.status[0].gain == 8.0


@pytest.mark.nojit
def test_it_earns_nothing_where_its_last_request_is_late_and_all_on_its_deadline() -> None:
    assert gained(1.5).requests["gain"].tolist() == [3.0, 5.0, 0.0, 0.0, 0.0]  # due after 7 s and 2 s
    assert gained(1.25).requests["gain"].tolist() == [0.0] * 5  # after 6.5 s and 1.75 s


@pytest.mark.nojit
def test_what_has_not_ended_earns_nothing_and_counts_once_it_has_begun() -> None:
    result = gained(2.0, until_s=3.5)
    assert result.summary["gain"] == 5.0 and result.summary["ideal_gain"] == 8.0
    assert gained(2.0, until_s=0.5).summary["ideal_gain"] == 3.0


@pytest.mark.nojit
def test_behind_a_front_end_it_counts_when_the_client_has_the_last_token() -> None:
    # 2 comes after 3.25 s and 4 after 5.5 s, while 3 runs up to 6.25 s: 4 is there after 8.5 s.
    late, in_time = (gained(ttft_slo_s, front_end=FrontEnd(back_s=0.25)) for ttft_slo_s in (1.625, 2.0))
    assert late.sessions["session_s"].tolist() == [8.5, 2.25] and late.summary["gain"] == 0.0
    assert in_time.sessions["deadline_s"].tolist() == [8.5, 2.5] and in_time.summary["gain"] == 8.0


def test_a_request_in_no_session_is_a_session() -> None:
    workload = requests(prompt_tokens=[4, 4], output_tokens=[2, 2], ttft_slo_s=1000.0, weight=[2.0, 3.0])
    summary = Simulation(scene(workload, gain=GAIN)).run().summary
    assert summary["gain"] == summary["ideal_gain"] == 5.0


def test_one_that_was_taken_back_is_counted_once() -> None:
    incidents = (Incident(1.5, 0, "fail"), Incident(20.0, 0, "return"))
    result = gained(1000.0, incidents=incidents)
    assert result.requests["gain"].tolist() == [3.0, 5.0, 0.0, 0.0, 0.0]


@drawn(60)
def test_a_session_earns_its_weight_if_and_only_if_it_is_in_time(data: st.DataObject) -> None:
    made = cluster_scenarios("min-load") if data.draw(st.booleans()) else scenarios("vllm-v1")
    scenario = dataclasses.replace(data.draw(sessions_of(made)), gain=GAIN)
    if data.draw(st.booleans()):
        one_process = data.draw(st.booleans())
        scenario = dataclasses.replace(scenario, front_end=FrontEnd(0.01, 0.0, 0.003, 0.01, one_process=one_process))
    simulation = Simulation(scenario, record_timeline=True)
    result = simulation.run()
    table = result.requests.set_index("request") if scenario.workload.turns is not None else result.requests
    if scenario.workload.turns is None:
        assert (table["gain"] <= table["ideal_gain"]).all()
        return
    sessions = result.sessions
    assert (table["gain"] <= table["ideal_gain"]).all()
    weight = scenario.workload.table["weight"][sessions["session"]]
    assert table.loc[sessions["session"], "gain"].tolist() == np.where(sessions["attained"], weight, 0.0).tolist()
    lines = result.timeline
    assert lines.value[lines.kind == "finish"].sum() == pytest.approx(result.summary["gain"], abs=1e-9)
    assert simulation.arrays.status[0].gain == pytest.approx(result.summary["gain"], abs=1e-9)
