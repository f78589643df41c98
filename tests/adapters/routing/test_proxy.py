"""The proxy before fake engines: what is passed on, what is tried again, and how it ends where engines fail."""

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from servegym.adapters.replay.bodies import Bodies
from servegym.adapters.replay.front import Limits
from servegym.adapters.replay.sending import Endpoint, replay
from servegym.adapters.routing.proxy import OPENING
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.prefixes import Prompts
from tests.adapters.routing.fakes import (
    LONGEST_S,
    QUICK,
    TOKENS,
    FakeEngine,
    Garbage,
    Served,
    proxied,
    stream,
    until,
    words,
)

ALL = [f"word{number} " for number in range(TOKENS)]


def idle(proxy: Served) -> None:
    """Nothing is left of any request."""
    state = proxy.proxy
    until(lambda: not state.router.rows.used and not any(one.attempts for one in state.backends.all), "all is over")
    assert state.router.rows.used == 0 and state.router.held == 0 and state._waiting == 0 and not state._held
    assert not any(one.attempts for one in state.backends.all)
    assert state.opening._value == OPENING and state._room._value == state.settings.max_in_flight
    snapshots = state.router.snapshots
    for field in ("requests", "prefills", "prefill_tokens", "decodes", "decode_tokens"):
        assert not snapshots[field].any(), field


def counted(proxy: Served, name: str) -> float:
    lines = httpx.get(f"{proxy.url}/metrics", trust_env=False).text.splitlines()
    values = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(f"servegym_proxy_{name}")]
    assert values, f"no metric {name}"
    return sum(map(float, values))


# What is passed on


def test_engines_that_are_not_there_use_up_no_retries(engines: list[FakeEngine]) -> None:
    """Three without a connection come before the one that is well, and one retry is allowed."""
    gone = [f"http://127.0.0.1:{port}" for port in (1, 2, 3)]
    settings = dataclasses.replace(QUICK, retries=1)
    with proxied([*gone, engines[0].url], settings=settings) as proxy:
        for _ in range(4):
            status, events, _ = stream(proxy.url)
            assert status == 200 and words(events) == ALL
        idle(proxy)


def test_a_stream_is_passed_on_as_it_comes(engines: list[FakeEngine]) -> None:
    engines[0].mood = engines[1].mood = "slow"
    with proxied([engine.url for engine in engines]) as proxy:
        body = {"prompt": "a", "stream": True}
        at_s = []
        with httpx.stream("POST", f"{proxy.url}/v1/completions", json=body, trust_env=False) as response:
            at_s.extend(time.monotonic() for line in response.iter_lines() if line.startswith("data: {"))
        assert response.headers["content-type"].startswith("text/event-stream")
        assert len(at_s) == TOKENS
        assert at_s[-1] - at_s[0] > 0.1, "tokens that come 50 ms apart should be passed on so"
        idle(proxy)


def test_an_answer_that_is_no_stream_and_chat(engines: list[FakeEngine]) -> None:
    with proxied([engine.url for engine in engines]) as proxy:
        done = httpx.post(f"{proxy.url}/v1/completions", json={"prompt": [1, 2]}, trust_env=False)
        assert (done.status_code, done.json()["usage"]["completion_tokens"]) == (200, TOKENS)
        chat = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        with httpx.stream("POST", f"{proxy.url}/v1/chat/completions", json=chat, trust_env=False) as response:
            assert "[DONE]" in "".join(response.iter_text())
        idle(proxy)


def test_bodies_and_headers(engines: list[FakeEngine]) -> None:
    raw = b'{"prompt":  "a",\n "vllm_xargs": {"ttft_slo_s": 0.5}, "unknown": [1, {"x": null}]}'
    with proxied([engines[0].url]) as proxy:
        headers = {
            "content-type": "application/json", "authorization": "Bearer k", "connection": "keep-alive, x-private",
            "x-private": "1", "te": "trailers", "proxy-authorization": "secret", "x-request-id": "7",
        }  # fmt: skip
        assert (
            httpx.post(f"{proxy.url}/v1/completions", content=raw, headers=headers, trust_env=False).status_code == 200
        )
        got = engines[0].headers[-1]
        assert (got["authorization"], got["x-request-id"]) == ("Bearer k", "7")
        assert not {"x-private", "te", "proxy-authorization"} & got.keys()
        assert got["content-length"] == str(len(raw)), "a body should be passed on as it came"
        # Engines read bodies only, so what headers say is put there; what the body says wins.
        said = {"x-servegym-tpot-slo-s": "0.02", "x-servegym-ttft-slo-s": "9"}
        httpx.post(f"{proxy.url}/v1/completions", content=raw, headers=headers | said, trust_env=False)
        assert engines[0].bodies[-1]["vllm_xargs"] == {"ttft_slo_s": 0.5, "tpot_slo_s": 0.02}
        assert engines[0].bodies[-1]["unknown"] == [1, {"x": None}]


def test_models_health_metrics_and_what_there_is_not(engines: list[FakeEngine]) -> None:
    with proxied([engine.url for engine in engines]) as proxy:
        get = {path: httpx.get(f"{proxy.url}{path}", trust_env=False) for path in ("/v1/models", "/ready", "/metrics")}
        assert get["/v1/models"].json()["data"] == [{"id": "fake"}]
        assert get["/ready"].json() == {"engines": {"0": "up", "1": "up"}, "draining": False}
        assert "servegym_proxy_decision_seconds_bucket" in get["/metrics"].text
        assert httpx.get(f"{proxy.url}/v1/completions", trust_env=False).status_code == 405
        assert httpx.post(f"{proxy.url}/v1/embeddings", json={}, trust_env=False).json()["error"]["code"] == 404


def test_requests_go_where_the_policy_says(engines: list[FakeEngine]) -> None:
    engines[0].mood = engines[1].mood = "slow"
    with proxied([engine.url for engine in engines]) as proxy, ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda _: stream(proxy.url), range(8)))
        went = [headers["x-servegym-engine"] for _, _, headers in done]
        assert sorted(went) == ["0"] * 4 + ["1"] * 4
        assert counted(proxy, "routed_total") == 8
        assert counted(proxy, "tokens_total") == 8 * TOKENS
        idle(proxy)


@pytest.mark.parametrize("policy", ["prefix-affinity", "kv-aware"])
@pytest.mark.parametrize("text", [False, True], ids=["ids", "text"])
def test_prompts_that_begin_alike_go_to_one_engine(engines: list[FakeEngine], policy: str, text: bool) -> None:
    with proxied([engine.url for engine in engines], policy=policy) as proxy:
        for number, begin in enumerate((1, 2, 1, 2, 1)):
            prompt = [begin] * 2048 + [begin, number]
            stream(proxy.url, prompt="".join(f"{one:4}" for one in prompt) if text else prompt)
        by_engine = [{str(body["prompt"]).lstrip("[ ")[0] for body in engine.bodies} for engine in engines]
        assert sorted(map(sorted, by_engine)) == [["1"], ["2"]]


def test_turns_of_a_session_go_to_one_engine(engines: list[FakeEngine]) -> None:
    with proxied([engine.url for engine in engines], policy="session-hash") as proxy:
        went: dict[str, list[str]] = {}
        for turn in range(3):
            for session in "abcdefgh":
                by_header = turn < 2
                body = {"prompt": [turn], "stream": True} | ({} if by_header else {"user": session})
                headers = {"x-session-id": session} if by_header else {}
                answer = httpx.post(f"{proxy.url}/v1/completions", json=body, headers=headers, trust_env=False)
                went.setdefault(session, []).append(answer.headers["x-servegym-engine"])
        assert all(len(set(engines_of)) == 1 for engines_of in went.values()), "whichever way it is said"
        assert {engines_of[0] for engines_of in went.values()} == {"0", "1"}


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["kv-aware", "session-hash"])
def test_sessions_that_are_replayed_stay_where_they_began(engines: list[FakeEngine], policy: str) -> None:
    """Six conversations of three turns, each prompt beginning with the one before."""
    session, turn = np.repeat(np.arange(6), 3), np.tile(np.arange(3), 6)
    lengths = 64 + 32 * turn
    numbers = [1000 * s + np.arange(n // 16) for s, n in zip(session, lengths, strict=True)]
    columns = {"arrival_s": np.zeros(18), "prompt_tokens": lengths, "output_tokens": TOKENS, "priority": np.arange(18)}
    after = np.where(turn == 0, -1, np.arange(18) - 1)
    made = Workload.from_columns(columns, turns=SessionDependencies(after, np.zeros(18)))
    chunks = [numbers[row] for row in made.table["priority"]]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in chunks])])
    served = dataclasses.replace(made, prefixes=Prompts(16, offsets, np.concatenate(chunks)))
    with proxied([engine.url for engine in engines], policy=policy) as proxy:
        done = replay(served, Endpoint(proxy.url), Bodies("fake"), limits=Limits(clients=1))
    assert done.counts()["finished"] == 18
    users = [{body["user"] for body in engine.bodies} for engine in engines]
    assert users[0] and users[1] and not users[0] & users[1] and len(users[0] | users[1]) == 6


def test_only_routers_that_look_at_prompts_pay_for_an_index(engines: list[FakeEngine]) -> None:
    urls = [engine.url for engine in engines]
    for policy, prefix_cache_tokens, has in (
        ("min-load", None, False),
        ("kv-aware", None, True),
        ("kv-aware", 0, False),
    ):
        with proxied(urls, policy=policy, prefix_cache_tokens=prefix_cache_tokens) as proxy:
            assert (proxy.proxy.router.known.prefixes.sent.size > 0) == has


def test_memory_is_read_from_an_engines_metrics(engines: list[FakeEngine]) -> None:
    engines[
        0
    ].metrics = 'vllm:cache_config_info{block_size="32",num_gpu_blocks="500"} 1.0\nvllm:kv_cache_usage_perc{} 0.25\n'
    with proxied([engines[0].url], dataclasses.replace(QUICK, poll_s=0.05)) as proxy:
        snapshot = proxy.proxy.router.snapshots[0]
        until(lambda: snapshot.total_blocks == 500, "metrics are read")
        assert (snapshot.total_blocks, snapshot.block_tokens, snapshot.free_blocks) == (500, 32, 375)
        assert snapshot.index_sets == 0
        engines[0].metrics = 'sglang:token_usage{model_name="m",tp_rank="0"} 0.5\n'  # it has the share only
        until(lambda: snapshot.free_blocks == 250, "SGLang's are read")


# Where engines fail


@pytest.mark.parametrize("mood", ["error", "busy", "redirect"])
def test_another_engine_is_tried_where_nothing_was_streamed(engines: list[FakeEngine], mood: str) -> None:
    engines[0].mood = mood
    with proxied([engine.url for engine in engines]) as proxy:
        status, events, headers = stream(proxy.url)
        assert (status, words(events), headers["x-servegym-engine"]) == (200, ALL, "1")
        assert len(engines[0].bodies) == 1
        assert counted(proxy, "retries_total") == 1
        idle(proxy)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "said",
    [b"", b"\x00\x01 no HTTP \r\n\r\n", HEAD, HEAD[:30], b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"],
    ids=["nothing", "garbage", "head", "half-head", "half-body"],
)
def test_another_engine_is_tried_where_one_dies_early(engines: list[FakeEngine], said: bytes) -> None:
    bad = Garbage(said)
    # Its checks fail too: here they come too late.
    with proxied([bad.url, engines[1].url], dataclasses.replace(QUICK, health_s=30.0)) as proxy:
        status, events, headers = stream(proxy.url)
        assert (status, words(events), headers["x-servegym-engine"]) == (200, ALL, "1")
        idle(proxy)
    bad.stop()


def test_an_engine_without_a_connection_is_left_alone(engines: list[FakeEngine]) -> None:
    closed = Garbage()
    closed.stop()
    with proxied([closed.url, engines[1].url], dataclasses.replace(QUICK, health_s=30.0)) as proxy:
        for _ in range(4):
            assert stream(proxy.url)[0] == 200
        assert counted(proxy, "retries_total") == 1
        assert httpx.get(f"{proxy.url}/ready", trust_env=False).json()["engines"]["0"] == "down"


def test_what_the_last_engine_said_is_passed_on_where_all_fail(engines: list[FakeEngine]) -> None:
    engines[0].mood = engines[1].mood = "error"
    with proxied([engine.url for engine in engines]) as proxy:
        status, _, _ = stream(proxy.url)
        assert status == 500 and len(engines[0].bodies) == len(engines[1].bodies) == 1
        done = httpx.post(f"{proxy.url}/v1/completions", json={"prompt": "a"}, trust_env=False)
        assert done.json()["error"]["message"] == "out of memory"
        idle(proxy)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mood", "kind"), [("die-mid", "died"), ("cut", "died"), ("hang-mid", "timeout"), ("event-error", None)]
)
def test_a_broken_stream_ends_in_an_error_event(engines: list[FakeEngine], mood: str, kind: str | None) -> None:
    engines[0].mood = engines[1].mood = mood
    # Short where it is waited for alone: on a busy machine the end of a connection may take half a second too.
    between_s = 2.0 if kind == "timeout" else QUICK.between_tokens_s
    settings = dataclasses.replace(QUICK, between_tokens_s=between_s, health_s=30.0)
    with proxied([engine.url for engine in engines], settings) as proxy:
        status, events, _ = stream(proxy.url)
        assert status == 200 and words(events)[:2] == ALL[:2]
        if kind is None:  # the engine said so itself, and went on
            assert events[2]["error"]["message"] == "lost" and events[-1] == "[DONE]"
        else:
            assert len(events) == 3 and events[-1]["error"]["type"] == kind
        assert len(engines[0].bodies) + len(engines[1].bodies) == 1, "what was streamed is not sent again"
        idle(proxy)


@pytest.mark.parametrize("streams", [True, False])
def test_an_engine_that_never_answers(engines: list[FakeEngine], streams: bool) -> None:
    engines[0].mood = "hang"
    settings = dataclasses.replace(QUICK, first_token_s=0.3, health_s=30.0)
    with proxied([engines[0].url], settings) as proxy:
        status, _, _ = stream(proxy.url, stream=streams)
        assert status == 504
        idle(proxy)


def test_an_answer_that_is_no_stream_stops_half_way(engines: list[FakeEngine]) -> None:
    engines[0].mood = "half"
    settings = dataclasses.replace(QUICK, between_tokens_s=0.3, health_s=30.0)
    with proxied([engines[0].url], settings) as proxy:
        status, _, _ = stream(proxy.url, stream=False)
        assert status == 504
        idle(proxy)


@pytest.mark.slow
def test_requests_at_an_engine_that_is_found_gone_are_not_left_hanging(engines: list[FakeEngine]) -> None:
    """Its checks fail long before the time that tokens may take: what has no token is served elsewhere."""
    first, second = engines
    patient = dataclasses.replace(
        QUICK, first_token_s=999.0, between_tokens_s=999.0, total_s=999.0, health_timeout_s=1.0, health_failures=3
    )
    with proxied([first.url, second.url], patient) as proxy, ThreadPoolExecutor(2) as pool:
        first.mood = "hang-mid"
        broken = pool.submit(stream, proxy.url)
        until(lambda: first.bodies, "the first engine has one")
        first.mood = "hang"
        second.mood = "slower"
        fillers = pool.submit(stream, proxy.url)  # so that the next one goes to the first engine
        until(lambda: second.bodies, "the second engine has one")
        moved = stream(proxy.url)
        assert len(first.bodies) == 2, "both should have been at the first engine"
        assert (moved[0], words(moved[1]), moved[2]["x-servegym-engine"]) == (200, ALL, "1")
        assert broken.result()[1][-1]["error"]["type"] == "lost"
        assert words(fillers.result()[1]) == ALL
        idle(proxy)


@pytest.mark.parametrize("mood", ["refuse-health", "hang"])
def test_an_engine_that_fails_its_checks_but_streams_keeps_its_requests(engines: list[FakeEngine], mood: str) -> None:
    engines[0].mood = "slow"
    settings = dataclasses.replace(QUICK, health_s=0.01, health_timeout_s=0.01, health_failures=8)
    with proxied([engines[0].url], settings) as proxy, ThreadPoolExecutor(1) as pool:
        running = pool.submit(stream, proxy.url)
        until(lambda: engines[0].bodies, "it is there")
        engines[0].mood = mood
        assert words(running.result()[1]) == ALL
        assert proxy.proxy.backends.all[0].up == (mood == "hang"), "only one that says that it is not well is closed"


@pytest.mark.slow
def test_all_engines_down_and_up_again(engines: list[FakeEngine]) -> None:
    engines[0].mood = "refuse-health"
    settings = dataclasses.replace(QUICK, health_s=0.05, queue_s=0.2, longest_backoff_s=0.1)
    with proxied([engines[0].url], settings) as proxy:
        until(lambda: httpx.get(f"{proxy.url}/ready", trust_env=False).status_code == 503, "it is closed")
        refused = httpx.post(f"{proxy.url}/v1/completions", json={"prompt": "a"}, trust_env=False)
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
        with ThreadPoolExecutor(1) as pool:  # one that waits is served as soon as there is an engine
            proxy.proxy.settings = dataclasses.replace(settings, queue_s=10.0)
            waiting = pool.submit(stream, proxy.url)
            time.sleep(0.1)
            engines[0].mood = "well"
            assert words(waiting.result()[1]) == ALL
        idle(proxy)


@pytest.mark.slow
def test_an_engine_that_is_killed_under_load_leaves_no_request_hanging() -> None:
    engines = [FakeEngine(), FakeEngine()]
    for engine in engines:
        engine.mood = "slower"
    with proxied([engine.url for engine in engines], policy="gorouting") as proxy, ThreadPoolExecutor(24) as pool:
        running = [pool.submit(stream, proxy.url) for _ in range(24)]
        until(lambda: sum(len(engine.bodies) for engine in engines) == 24, "all are there")
        held = len(engines[0].bodies)
        engines[0].stop()
        later = [pool.submit(stream, proxy.url) for _ in range(12)]
        done = [future.result(LONGEST_S) for future in running + later]
        whole = [one for one in done if one[1][-1] == "[DONE]"]
        assert all(words(events) == ALL for _, events, _ in whole)
        broken = [one for one in done if one[1][-1] != "[DONE]"]
        assert 0 < len(broken) <= held
        assert all(events[-1]["error"]["code"] == 502 for _, events, _ in broken)
        idle(proxy)
    engines[1].stop()
