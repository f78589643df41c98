"""Sending over HTTP: what is sent and when, and that every request ends."""

import asyncio
import os
import signal
import threading

import httpx
import numpy as np
import pytest

from servegym.adapters.replay.bodies import Bodies
from servegym.adapters.replay.front import Limits
from servegym.adapters.replay.measuring import Measured
from servegym.adapters.replay.records import CUT_OFF, FAILED, FINISHED, INTERRUPTED, NOT_SENT, REFUSED, TIMED_OUT
from servegym.adapters.replay.sending import Endpoint, replay
from servegym.baselines.registry import scheduler
from servegym.errors import ReplayError
from servegym.latency_models.model import LatencyModel
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.prefixes import Prompts
from servegym.simulator.runs.simulation import Simulation
from tests.adapters.replay.fake_server import Answer, serving

pytest.importorskip("httpx")
LATE_S = 2.0  # a busy machine


def workload(outputs, spacing_s=0.0, **columns):
    given = {"arrival_s": np.arange(len(outputs)) * spacing_s, "prompt_tokens": 8, "output_tokens": outputs}
    return Workload.from_columns({**given, **columns})


def replayed(table, script, timeout_s=20.0, **settings):
    with serving(script) as server:
        return replay(table, Endpoint(server.url, timeout_s), Bodies("fake", **settings)), server


def tokens(*times):
    return [(at_s, 1) for at_s in times]


@pytest.mark.slow
def test_tokens_come_when_the_server_sends_them():
    def script(number, body):
        return Answer([(0.1, 1), (0.2, 2), (0.4, 1)])

    done, _ = replayed(workload([4, 4, 4], 0.1), script)
    assert [record.status for record in done.records] == [FINISHED] * 3
    for record in done.records:
        assert 0 <= record.lateness_s < LATE_S
        since_s = np.array(record.token_s) - record.sent_s
        assert (since_s >= [0.1, 0.2, 0.2, 0.4]).all()
        assert (since_s < np.array([0.1, 0.2, 0.2, 0.4]) + LATE_S).all()
        assert record.token_s[1] == record.token_s[2]
        assert record.prompt_tokens == 7
    requests = Measured(workload([4, 4, 4], 0.1), done).requests
    for r, record in enumerate(done.records):
        assert requests["ttft_s"][r] == pytest.approx(record.token_s[0] - r / 10)
        assert requests["tpot_s"][r] == pytest.approx((record.token_s[3] - record.token_s[0]) / 3)


def test_nothing_waits_for_an_answer():
    """No request is answered before all of them have come."""

    def script(number, body):
        async def live(body):
            while len(server.bodies) < 20:
                await asyncio.sleep(0.01)
            yield 1

        return Answer(live=live)

    with serving(script) as server:
        done = replay(workload([1] * 20, 0.01), Endpoint(server.url, 20), Bodies("fake"))
    assert done.counts()[FINISHED] == 20


def sessions(after, think_s, outputs, **columns):
    given = {"arrival_s": np.zeros(len(after)), "prompt_tokens": 8, "output_tokens": outputs}
    return Workload.from_columns({**given, **columns}, turns=SessionDependencies(np.array(after), np.array(think_s)))


def paced(number, body):
    """A token each 0.1 s, whatever else is served."""
    return Answer(tokens(*(0.1 * (1 + k) for k in range(body["max_tokens"]))))


@pytest.mark.slow
@pytest.mark.parametrize("limits", [Limits(clients=1), Limits(max_concurrency=1)], ids=["clients", "concurrency"])
def test_sessions_go_as_they_do_in_a_simulation(limits):
    """A server that takes 0.1 s for a token, and the same one simulated: a request at a time is alike in both."""
    table = sessions([-1, 0, 1, -1, 3], [0, 0.3, 0.0, 0, 0.2], [3, 2, 1, 2, 2], ttft_slo_s=60.0, tpot_slo_s=60.0)
    device = LatencyModel.from_values("linear", {"a_p": 0, "b_p": 0, "c_p": 0, "a_d": 0, "b_d": 0, "t_c": 0.1})
    scenario = Scenario(
        table, Deployment(device, device, 100, 1, 16), scheduler("vllm-v1"), clients=limits.clients,
        max_concurrency=limits.max_concurrency,
    )  # fmt: skip
    simulated = Simulation(scenario).run()
    with serving(paced) as server:
        done = replay(table, Endpoint(server.url, 20), Bodies("fake"), limits=limits)
    live = Measured(table, done)
    assert live.summary["tdg_ratio"] == simulated.summary["tdg_ratio"] == 1
    for name in ("request", "session", "after", "num_output_tokens"):
        assert live.requests[name].tolist() == simulated.requests[name].tolist(), name
    for name in ("came_s", "arrival_s", "first_token_s", "finish_s"):
        later_s = live.requests[name] - simulated.requests[name]
        assert (later_s > -1e-6).all() and (later_s < LATE_S).all(), name
    order = np.argsort(simulated.requests["arrival_s"])
    assert np.argsort(live.requests["arrival_s"]).tolist() == order.tolist()
    assert (live.requests["ttft_s"] >= 0.1).all(), "it counts from a turn's own arrival"


@pytest.mark.slow
def test_a_turn_comes_however_the_one_before_has_ended():
    after = [-1, 0, 1, 2, 3]
    ends = [Answer(status=500), Answer(tokens(0), dies=True), Answer(tokens(0)), Answer(hangs=True)]
    answers = [*ends, Answer(tokens(0, 0))]
    table = sessions(after, [0, 0.1, 0.1, 0.1, 0.1], 2, priority=np.arange(5))
    done, server = replayed(table, lambda number, body: answers[body["priority"]], 0.5)
    assert [record.status for record in done.records] == [REFUSED, FAILED, CUT_OFF, TIMED_OUT, FINISHED]
    assert [body["priority"] for body in server.bodies] == list(range(5))
    assert {body["user"] for body in server.bodies} == {"session-0"}
    for before, record in zip(done.records, done.records[1:], strict=False):
        assert record.came_s == record.due_s == before.ended_s + 0.1
    result = Measured(table, done)
    assert result.summary["requests"] == 5 and result.summary["finished"] == 1
    assert result.requests["came_s"].tolist() == [record.came_s for record in done.records]


def test_no_more_are_under_way_than_there_are_clients():
    under_way, most = set(), []

    def script(number, body):
        async def live(body):
            under_way.add(number)
            most.append(len(under_way))
            await asyncio.sleep(0.05)
            yield 1
            under_way.discard(number)

        return Answer(live=live)

    for limits in (Limits(clients=3), Limits(max_concurrency=3)):
        most.clear()
        with serving(script) as server:
            done = replay(workload([1] * 12), Endpoint(server.url, 20), Bodies("fake"), limits=limits)
        assert done.counts()[FINISHED] == 12 and max(most) == 3
        due_s = np.array([record.due_s for record in done.records])
        assert (due_s[:3] == 0).all() and (due_s[3:] >= 0.05).all(), "waiting for room is no latency"


def test_an_interruption_counts_no_turn_that_has_not_come():
    table = sessions([-1, 0, 1, -1], [0, 0, 30.0, 0], 1)

    def script(number, body):
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start() if number == 2 else None
        return Answer(tokens(0))

    with serving(script) as server:
        done = replay(table, Endpoint(server.url), Bodies("fake"))
    result = Measured(table, done)
    assert done.interrupted and done.counts()[NOT_SENT] == 1
    assert result.requests["request"].tolist() == [0, 1, 2]
    assert result.tokens["request"].tolist() == [0, 1, 2]


def test_what_is_sent():
    table = workload(
        [2, 3], priority=[0, 2], weight=[2.0, 1.0], ttft_slo_s=1.5, tpot_slo_s=0.1, ttlt_slo_s=[np.inf, 9.0]
    )
    _, server = replayed(table, lambda number, body: Answer(tokens(*[0.0] * body["max_tokens"])))
    first, second = sorted(server.bodies, key=lambda body: body["max_tokens"])
    assert first["vllm_xargs"] == {"ttft_slo_s": 1.5, "tpot_slo_s": 0.1, "weight": 2.0}
    assert second["vllm_xargs"] == {"ttft_slo_s": 1.5, "tpot_slo_s": 0.1, "ttlt_slo_s": 9.0, "weight": 1.0}
    assert (first["priority"], second["priority"]) == (0, 2)
    assert first["max_tokens"] == 2
    assert first["ignore_eos"] and first["stream"]
    assert "user" not in first, "it is of no session"
    assert len(first["prompt"]) == 8
    assert all(16 <= token < 256 for token in first["prompt"])
    assert first["prompt"] != second["prompt"]


def test_what_is_left_out_and_prompts_as_text():
    _, server = replayed(
        workload([1]), lambda number, body: Answer(tokens(0)), slos=False, priority=False, prompt="text"
    )
    (body,) = server.bodies
    assert not {"vllm_xargs", "priority"} & set(body)
    assert body["prompt"].split()[2:] == ["the"] * 4


def test_prompts_that_begin_alike_are_the_same_ids():
    prompts = Prompts(4, [0, 2, 4], np.array([0, 1, 0, 2]))
    table = workload([1, 1], prompt_tokens=10)
    table = Workload(table.table, prefixes=prompts)
    first, second = (Bodies("fake").prompt_of(table, index) for index in (0, 1))
    assert first[:4] == second[:4]
    assert first[4:8] != second[4:8]
    assert first[8:] != second[8:]
    assert Bodies("fake", seed=1).prompt_of(table, 0)[:4] != first[:4]


def test_the_prompt_of_a_turn_begins_with_the_one_before():
    """Chunks 0 to 2 are of the first prompt (of 10 tokens) and its answer; the next turn's prompt begins with both."""
    table = Workload.from_columns(
        {"arrival_s": [0.0, 0.0], "prompt_tokens": [10, 17], "output_tokens": [4, 4]},
        turns=SessionDependencies(np.array([-1, 0]), np.zeros(2)),
    )
    table = Workload(table.table, prefixes=Prompts(4, [0, 3, 7], np.array([0, 1, 2, 0, 1, 2, 3])), turns=table.turns)
    first, second = (Bodies("fake").prompt_of(table, index) for index in (0, 1))
    assert second[:10] == first
    assert (len(first), len(second)) == (10, 17)


def test_ids_are_spread_evenly():
    table = workload([1], prompt_tokens=100_000)
    ids = np.array(Bodies("fake", vocabulary=116).prompt_of(table, 0)) - 16
    counts = np.bincount(ids, minlength=100)
    assert len(counts) == 100
    assert ((counts - 1000) ** 2 / 1000).sum() < 200, "chi-squared with 99 degrees of freedom"
    following = np.bincount(100 * ids[:-1] + ids[1:], minlength=10_000)
    assert ((following - 10) ** 2 / 10).sum() < 11_000, "pairs too"


FAULTS = {
    "cut short": (Answer(tokens(0, 0)), CUT_OFF, "before all requested tokens"),
    "refused": (Answer(status=429, body='{"error": {"message": "too\\nmany"}}'), REFUSED, "HTTP 429: too many"),
    "broken": (Answer(status=500, body="<html>oh"), REFUSED, "HTTP 500: <html>oh"),
    "dies": (Answer(tokens(0), dies=True), FAILED, ""),
    "dies at once": (Answer(dies=True), FAILED, ""),
    "no end": (Answer(tokens(0), done=False), FAILED, "broke off"),
    "hangs": (Answer(tokens(0), hangs=True), TIMED_OUT, "0.5 s"),
    "hangs at once": (Answer(hangs=True), TIMED_OUT, "0.5 s"),
    "dies after all": (Answer(tokens(0, 0, 0), dies=True), FINISHED, None),
}


@pytest.mark.parametrize("hang", [True, False])
def test_every_request_ends_whatever_the_server_does(hang):
    """Those that hang end by the timeout, which a busy machine must not have the others reach."""
    faults = {name: fault for name, fault in FAULTS.items() if (fault[1] == TIMED_OUT) == hang}
    answers = [answer for answer, _, _ in faults.values()]
    with serving(lambda number, body: answers[body["priority"]]) as server:
        table = workload([3] * len(faults), priority=np.arange(len(faults)))
        done = replay(table, Endpoint(server.url, 0.5 if hang else 60.0), Bodies("fake"))
    for (name, (_, status, reason)), record in zip(faults.items(), done.records, strict=True):
        assert record.status == status, name
        assert (record.reason is None) if reason is None else (reason in record.reason), name
    assert done.wall_s < 20
    assert sum(done.counts().values()) == len(faults)


@pytest.mark.parametrize(("usage", "count"), [("each", 6), ("last", 6), ("ids", 6), ("none", 3)])
def test_servers_that_count_in_other_ways(usage, count):
    done, _ = replayed(workload([6]), lambda number, body: Answer([(0, 1), (0.05, 3), (0.1, 2)], usage))
    assert len(done.records[0].token_s) == count
    assert done.records[0].status == (FINISHED if count == 6 else CUT_OFF)


def test_an_interruption_keeps_what_came():
    table = workload([2, 2, 2], [0.0, 0.0, 30.0], arrival_s=[0.0, 0.0, 30.0])

    def script(number, body):
        if number == 1:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        return Answer(tokens(0, 0)) if body["priority"] == 0 else Answer(tokens(0), hangs=True)

    with serving(script) as server:
        done = replay(table.replace(priority=[0, 1, 0]), Endpoint(server.url), Bodies("fake"))
    assert done.interrupted
    assert [record.status for record in done.records] == [FINISHED, INTERRUPTED, NOT_SENT]
    assert [len(record.token_s) for record in done.records] == [2, 1, 0]
    assert done.wall_s < 25  # before the last one was due


def test_endpoints_that_are_none():
    with pytest.raises(ReplayError, match="http://"):
        Endpoint("localhost:8000")
    with pytest.raises(ReplayError, match="above 0"):
        Endpoint("http://localhost", 0)
    with pytest.raises(ReplayError, match="cannot be reached"):
        Endpoint("http://127.0.0.1:9").model()
    with serving(lambda number, body: Answer()) as server:
        assert Endpoint(server.url + "/v1/").model() == "fake"
        with pytest.raises(ReplayError, match="without the name of a model"):
            Endpoint(server.url + "/elsewhere").model()
    done, _ = replay(workload([2]), Endpoint("http://127.0.0.1:9"), Bodies("fake")), None
    assert done.records[0].status == FAILED


@pytest.mark.parametrize(("status", "headers", "words"), [
    (401, (), "models answered 401: it wants a key; set OPENAI_API_KEY"),
    (401, (("authorization", "Bearer x"),), "models answered 401: it refuses the key in OPENAI_API_KEY"),
    (503, (), "models answered 503: no engine answers; it should have an engine that is up"),
])  # fmt: skip
def test_what_an_endpoint_without_a_model_needs(monkeypatch, status, headers, words):
    answer = httpx.Response(
        status, json={"error": {"message": "no engine answers"}}, request=httpx.Request("GET", "http://a")
    )
    monkeypatch.setattr(httpx, "get", lambda *_, **__: answer)
    with pytest.raises(ReplayError, match=words):
        Endpoint("http://a", headers=headers).model()


@pytest.mark.parametrize("settings", [{"prompt": "image"}, {"vocabulary": 16}])
def test_bodies_that_are_none(settings):
    with pytest.raises(ReplayError):
        Bodies("fake", **settings)


@pytest.mark.slow
def test_hundreds_at_once():
    done, _ = replayed(workload([3] * 300), lambda number, body: Answer(tokens(0.2, 0.3, 0.4)))
    assert done.counts()[FINISHED] == 300
