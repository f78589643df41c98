"""Engines that fail behind the proxy: before an answer, in the middle of one, and all of them."""

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.adapters.routing.fakes import LONGEST_S, QUICK, FakeEngine, Garbage, proxied, stream, until, words
from tests.adapters.routing.proxies import ALL, counted, idle


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
