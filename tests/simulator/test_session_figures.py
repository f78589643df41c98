"""Sessions as a whole: tokens computed for them so far, when they end, and whether by their deadlines."""

import numpy as np
import pytest

from servegym.simulator.runs.simulation import Simulation
from tests.simulator.scenes import requests, scene
from tests.simulator.test_sessions import served, workload_of

pytestmark = pytest.mark.nojit

# 0 is followed by 2 and 3 (1 s and 3 s after its end), 2 by 4 (at once); 1 is by itself. Each takes 2 s.
TREE = {"arrival_s": [0, 1, 0, 0, 0], "after": [-1, -1, 0, 0, 2], "think_s": [0.0, 0.0, 1.0, 3.0, 0.0]}


def test_a_request_knows_what_was_computed_for_those_before_it() -> None:
    workload = workload_of(**TREE, prompt_tokens=np.array([4, 5, 6, 7, 8]))
    tokens = served(workload).arrays.requests["session_tokens"]
    assert tokens.tolist() == [0, 0, 4 + 2, 4 + 2, 4 + 2 + 6 + 2]


def test_a_session_ends_with_its_last_request_and_is_due_as_its_slos_add_up() -> None:
    # By their SLOs requests take 2 s (TTFT) + 1 x 0.5 s; the way 0, 2, 4 takes 3 x 2.5 + 1, the way 0, 3 2 x 2.5 + 3.
    workload = workload_of(**TREE, ttft_slo_s=np.full(5, 2.0), tpot_slo_s=np.full(5, 0.5))
    result = served(workload).result()
    assert result.sessions.to_dict("list") == {
        "session": [0, 1], "arrival_s": [0.0, 1.0], "requests": [4, 1], "finished": [4, 1], "finish_s": [7.0, 3.0],
        "session_s": [7.0, 2.0], "deadline_s": [8.5, 2.5], "attained": [True, True],
    }  # fmt: skip
    summary = result.summary
    assert (summary["sessions"], summary["session_slo_attainment"], summary["session_s"]["p50"]) == (2, 1.0, 4.5)


def test_a_session_that_has_not_ended_is_not_in_time() -> None:
    result = served(workload_of(**TREE, ttft_slo_s=np.full(5, 2.0)), until_s=3.5).result()
    sessions = result.sessions
    assert sessions["finished"].tolist() == [1, 1] and sessions["attained"].tolist() == [False, True]
    assert np.isnan(sessions["session_s"][0]) and result.summary["session_s"]["p99"] == 2.0


def test_a_session_of_one_ttlt_class_is_due_by_that() -> None:
    result = served(workload_of(**TREE, ttlt_slo_s=np.full(5, 1.5))).result()
    assert result.sessions["deadline_s"].tolist() == [6.0, 1.5]
    assert result.summary["session_slo_attainment"] == 0.0


def test_where_requests_follow_none_there_are_no_sessions() -> None:
    result = Simulation(scene(requests(prompt_tokens=[1, 1]))).run()
    assert "sessions" not in result.summary and result.sessions.empty and "sessions" not in result.tables()
