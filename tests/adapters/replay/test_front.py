"""What a replay may send when: by hand, and as in a simulation in which requests end at the same times."""

import heapq
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegym.adapters.replay.front import Front, Limits, Turn
from servegym.errors import ReplayError
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.simulation import Simulation
from tests.strategies import scenarios, sessions_of


def workload_of(arrival_s, after, think_s=0.0):
    columns = {"arrival_s": arrival_s, "prompt_tokens": np.full(len(after), 4), "output_tokens": 2}
    return Workload.from_columns(
        columns, turns=SessionDependencies(np.array(after), np.broadcast_to(think_s, len(after)))
    )


def sent(workload, limits, ended_s):
    """[(request, came, due)] where each request ends at its time (nan: it never does); at an instant ends go first."""
    front, ends, turns = Front(workload, limits), [], []
    while True:
        turn = front.next()
        if turn is not None and (not ends or turn.due_s < ends[0][0]):
            front.send(turn)
            turns.append(turn)
            if math.isfinite(ended_s[turn.request]):
                heapq.heappush(ends, (ended_s[turn.request], turn.request))
        elif ends:
            now_s, request = heapq.heappop(ends)
            front.end(request, now_s)
        else:
            return turns


@pytest.mark.slow
@settings(max_examples=150)
@given(data=st.data())
def test_requests_are_due_when_the_simulator_sends_them(data):
    scenario = data.draw(sessions_of(scenarios("vllm-v1")))
    result = Simulation(scenario).run()
    ended_s = np.full(len(scenario.workload), math.nan)
    ended_s[result.requests["request"]] = result.requests["finish_s"]
    turns = sent(scenario.workload, Limits(scenario.clients, scenario.max_concurrency), ended_s)
    live = sorted((turn.request, turn.came_s, turn.due_s) for turn in turns if turn.due_s <= scenario.until_s)
    assert live == list(result.requests[["request", "came_s", "arrival_s"]].itertuples(index=False, name=None))


def test_a_turn_comes_after_an_end_and_time_to_think():
    front = Front(workload_of([1.0, 0, 0], [-1, 0, 0], [0, 0.5, 0.25]), Limits())
    assert front.next() == Turn(0, 1.0, 1.0)
    front.send(Turn(0, 1.0, 1.0))
    assert front.next() is None
    front.end(0, 3.0)
    assert front.next() == Turn(2, 3.25, 3.25)
    front.send(Turn(2, 3.25, 3.25))
    assert front.next() == Turn(1, 3.5, 3.5)


def test_a_request_is_due_when_there_was_room_however_late_that_is_noticed():
    front = Front(workload_of([0.0, 1.0, 1.5, 9.0], [-1] * 4), Limits(max_concurrency=2))
    for turn in (Turn(0, 0.0, 0.0), Turn(1, 1.0, 1.0)):
        assert front.next() == turn
        front.send(turn)
    assert front.next() is None
    front.end(1, 2.0)
    front.end(0, 4.0)
    for turn in (Turn(2, 1.5, 2.0), Turn(3, 9.0, 9.0)):
        assert front.next() == turn
        front.send(turn)


def test_sessions_wait_for_clients_and_turns_do_not():
    front = Front(workload_of([0.0, 0.0, 0], [-1, -1, 0], 1.0), Limits(clients=1))
    front.send(front.next())
    front.end(0, 5.0)
    assert front.next() == Turn(2, 6.0, 6.0), "request 1 begins a session, and the first one is not over"
    front.send(front.next())
    assert front.next() is None
    front.end(2, 7.0)
    assert front.next() == Turn(1, 0.0, 7.0)


@pytest.mark.parametrize("limits", [{"clients": 0}, {"max_concurrency": -1}])
def test_limits_that_are_none(limits):
    with pytest.raises(ReplayError, match="1 or more"):
        Limits(**limits)
