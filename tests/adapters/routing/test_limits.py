"""What a proxy refuses, and clients that are slow, or gone."""

import asyncio
import contextlib
import dataclasses
import http.client
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

import servegym
from servegym.adapters.routing import refusals
from servegym.adapters.routing.server import listen
from servegym.adapters.routing.settings import ProxySettings, checked_url
from servegym.baselines.artifact.files import save_policy
from servegym.errors import RoutingError
from tests.adapters.routing.fakes import (
    HOST,
    LONGEST_S,
    QUICK,
    TOKENS,
    FakeEngine,
    Served,
    proxied,
    stream,
    until,
    words,
)
from tests.adapters.routing.proxies import ALL, counted, idle
from tests.baselines.learned.cases import refusing_where_late


def post(proxy: Served, content: bytes, **headers: str) -> httpx.Response:
    return httpx.post(
        f"{proxy.url}/v1/completions", content=content, headers=headers, trust_env=False, timeout=LONGEST_S
    )


def raw(
    proxy: Served, *parts: bytes, pause_s: float = 0.0, wait_s: float = LONGEST_S, enough: bytes | None = None
) -> bytes:
    """All that comes back for these bytes until the connection is closed, or until `enough` has come."""
    with socket.create_connection((HOST, proxy.port)) as connection:
        connection.settimeout(wait_s)
        with contextlib.suppress(OSError):  # it may be closed before all is sent
            for part in parts:
                connection.sendall(part)
                time.sleep(pause_s)
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while (enough is None or enough not in got) and (data := connection.recv(65536)):
                got += data
        return got


# Bodies


BODIES = [
    (b"", 400), (b"{", 400), (b"[]", 400), (b'"x"', 400), (b"\xff\xfe", 400), (b"{}", 400), (b'{"prompt": 5}', 400),
    (b'{"prompt": []}', 400), (b'{"prompt": [1.5]}', 400), (b'{"prompt": "x", "stream": 1}', 400),
    (b'{"prompt": "x", "max_tokens": ' + b"9" * 5000 + b"}", 400), (b"[" * 200_000, 400),
    (b'{"prompt": "x", "vllm_xargs": [1]}', 200),
    (b'{"prompt": "x", "vllm_xargs": {"ttft_slo_s": "soon", "tpot_slo_s": -1, "weight": 1e999}}', 200),
    (b'{"prompt": "x", "vllm_xargs": {"ttft_slo_s": NaN, "weight": true, "ttlt_slo_s": [1]}, "priority": "a"}', 200),
    (b'{"prompt": "x", "priority": 1e400, "vllm_xargs": {"weight": "' + b"1" * 100_000 + b'"}}', 200),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status"), BODIES, ids=[str(number) for number in range(len(BODIES))])
def test_what_is_no_request_is_a_400_and_wrong_slos_count_as_not_said(
    engines: list[FakeEngine], body: bytes, status: int
) -> None:
    engine = engines[0]
    with proxied([engine.url]) as proxy:
        answer = post(proxy, body)
        assert answer.status_code == status, answer.text
        if status == 400:
            assert answer.json()["error"]["type"] == "invalid_request_error" and not engine.bodies
        else:
            assert counted(proxy, "malformed_total") >= 1
        idle(proxy)


def test_a_body_that_is_too_long(engines: list[FakeEngine]) -> None:
    with proxied([engines[0].url], dataclasses.replace(QUICK, max_body_bytes=1000)) as proxy:
        long = json.dumps({"prompt": "x" * 2000}).encode()
        assert post(proxy, long).status_code == 413
        chunked = httpx.post(
            f"{proxy.url}/v1/completions",
            content=(long[k : k + 100] for k in range(0, len(long), 100)),
            trust_env=False,
        )
        assert chunked.status_code == 413
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000000\r\n\r\n"
        answer = raw(proxy, head, enough=b"too_large")
        assert answer.startswith(b"HTTP/1.1 413"), "before any of it has come"
        assert not engines[0].bodies


@pytest.mark.parametrize("chunked", [False, True])
def test_clients_that_send_all_before_they_read_get_their_413(engines: list[FakeEngine], chunked: bool) -> None:
    body = b"x" * (12 * 2**20)
    with proxied([engines[0].url]) as proxy:
        for _ in range(3):
            connection = http.client.HTTPConnection(HOST, proxy.port, timeout=LONGEST_S)
            with contextlib.closing(connection):
                parts = iter([body[: 2**20]] * 12) if chunked else body
                connection.request("POST", "/v1/completions", parts, encode_chunked=chunked)
                answer = connection.getresponse()
                assert answer.status == 413 and json.loads(answer.read())["error"]["type"] == "too_large"


def test_a_refused_request_is_read_to_its_end_within_bounds(
    engines: list[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "LINGER_BYTES", 2**20)
    monkeypatch.setattr(refusals, "LINGER_IDLE_S", 0.1)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000000\r\n\r\n"
    with proxied([engines[0].url]) as proxy, socket.create_connection((HOST, proxy.port)) as endless:
        assert raw(proxy, head).count(b"HTTP/1.1 413") == 1, "one that sends nothing more is closed"
        endless.settimeout(LONGEST_S)
        endless.sendall(head)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            for _ in range(256):
                endless.sendall(b"x" * 2**20)


def test_an_answer_that_is_too_long(engines: list[FakeEngine]) -> None:
    with proxied([engines[0].url], dataclasses.replace(QUICK, max_answer_bytes=10)) as proxy:
        answer = post(proxy, b'{"prompt": "x"}')
        assert (answer.status_code, answer.json()["error"]["type"]) == (502, "too-long")
        idle(proxy)


# Clients


@pytest.mark.slow
def test_a_client_that_sends_slowly_is_answered_408_or_dropped(engines: list[FakeEngine]) -> None:
    with (
        proxied([engines[0].url], dataclasses.replace(QUICK, read_s=0.6, body_s=1.0)) as proxy,
        ThreadPoolExecutor(5) as pool,
    ):
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n"
        stops = pool.submit(raw, proxy, head + b'{"pro')
        drips = pool.submit(raw, proxy, head, *[b"x"] * 5, pause_s=0.3)  # never idle so long, but too long in all
        no_head = pool.submit(raw, proxy, b"POST /v1/comp")
        nothing = pool.submit(raw, proxy)
        body = b'{"prompt": "a"}'
        whole = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        second = pool.submit(raw, proxy, whole, b"POST /v1/comp", pause_s=0.2)
        assert stops.result().startswith(b"HTTP/1.1 408")
        assert drips.result().startswith(b"HTTP/1.1 408")
        assert no_head.result() == nothing.result() == b""
        assert second.result().count(b"HTTP/1.1 200") == 1
        assert stream(proxy.url)[0] == 200
        idle(proxy)


def test_a_client_that_leaves_takes_its_request_along(engines: list[FakeEngine]) -> None:
    engine = engines[0]
    engine.mood = "slow"
    with proxied([engine.url]) as proxy:
        with httpx.stream(
            "POST", f"{proxy.url}/v1/completions", json={"prompt": "a", "stream": True}, trust_env=False
        ) as one:
            next(one.iter_bytes())
        with pytest.raises(httpx.ReadTimeout):  # one that has no token yet, too
            engine.mood = "hang"
            httpx.post(f"{proxy.url}/v1/completions", json={"prompt": "a"}, timeout=0.2, trust_env=False)
        idle(proxy)
        until(lambda: engine.cancelled == 1, "it is over at the engine")
        assert counted(proxy, 'requests_total{outcome="client-gone"}') == 2


@pytest.mark.slow
def test_a_client_that_does_not_read_is_dropped_and_others_are_served(engines: list[FakeEngine]) -> None:
    engine = engines[0]
    engine.mood = "endless"
    with (
        proxied([engine.url], dataclasses.replace(QUICK, write_s=2.0)) as proxy,
        socket.create_connection((HOST, proxy.port)) as deaf,
    ):
        body = b'{"prompt": "a", "stream": true}'
        deaf.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        until(lambda: engine.bodies, "it is there")
        engine.mood = "slow"
        assert words(stream(proxy.url)[1]) == ALL
        assert engine.cancelled == 0, "the other one is still there"
        idle(proxy)
        until(lambda: engine.cancelled == 1, "its request is over at the engine")
        assert counted(proxy, 'requests_total{outcome="client-gone"}') == 1


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_of_http_1_0_gets_no_chunks(engines: list[FakeEngine], streams: bool) -> None:
    body = json.dumps({"prompt": "a", "stream": streams}).encode()
    with proxied([engines[0].url]) as proxy:
        head = b"POST /v1/completions HTTP/1.%d\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        old, new = (raw(proxy, head % (minor, len(body)) + body).partition(b"\r\n\r\n") for minor in (0, 1))
        assert old[0].startswith(b"HTTP/1.1 200") and b"transfer-encoding" not in old[0]
        assert (b"transfer-encoding: chunked" in new[0]) is streams, "or this test shows nothing"
        if streams:
            text = httpx.post(f"{proxy.url}/v1/completions", content=body, trust_env=False).content
            assert old[2] == text, "the stream as it is, and then the end of the connection"
        else:
            assert old[2] == new[2]
        idle(proxy)


# Too many


def test_too_many_requests_are_answered_429_or_503(engines: list[FakeEngine]) -> None:
    engines[0].mood = "hang"
    settings = dataclasses.replace(QUICK, max_in_flight=1, max_queued=1, queue_s=0.5, total_s=2.0, health_s=99.0)
    with proxied([engines[0].url], settings) as proxy, ThreadPoolExecutor(2) as pool:
        first = pool.submit(post, proxy, b'{"prompt": "a"}')
        until(lambda: engines[0].bodies, "the engine has the first")
        second = pool.submit(post, proxy, b'{"prompt": "a"}')
        until(lambda: proxy.proxy._waiting, "the second waits")
        third = post(proxy, b'{"prompt": "a"}')
        assert [third.status_code, second.result().status_code, first.result().status_code] == [429, 503, 504]
        assert third.headers["retry-after"] == second.result().headers["retry-after"] == "1"
        idle(proxy)


def test_what_the_router_refuses_is_answered_429(engines: list[FakeEngine]) -> None:
    urls = [engine.url for engine in engines]
    with proxied(urls, dataclasses.replace(QUICK, health_s=99.0), "prefix-affinity:refuse=0.000001") as proxy:
        answer = post(proxy, b'{"prompt": "a"}')
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert answer.json()["error"] == {
            "message": "the engines are overloaded; try again later", "type": "overloaded", "param": None,
            "code": "refused",
        }  # fmt: skip
        assert not any(engine.bodies for engine in engines) and proxy.proxy.router.fallbacks == 0
        assert counted(proxy, 'requests_total{outcome="refused"}') == 1
        idle(proxy)


def test_what_a_learned_router_refuses_is_answered_429(engines: list[FakeEngine], tmp_path: Path) -> None:
    """It serves a prompt that can be in time, and refuses one that takes longer than its first token may."""
    path = save_policy(refusing_where_late(servegym.router("min-load")), tmp_path / "mine.json", {})
    urls = [engine.url for engine in engines]
    with proxied(urls, dataclasses.replace(QUICK, health_s=99.0), f"learned:{path}") as proxy:
        served, refused = (post(proxy, b'{"prompt": "a"}', **{"x-servegym-ttft-slo-s": slo}) for slo in ("1", "1e-6"))
        assert (served.status_code, refused.status_code, refused.headers["retry-after"]) == (200, 429, "1")
        assert proxy.proxy.router.fallbacks == 0
        idle(proxy)


def test_a_burst_is_served(engines: list[FakeEngine]) -> None:
    async def burst(url: str, count: int) -> list[int]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(limits=limits, timeout=LONGEST_S, trust_env=False) as client:
            body = {"prompt": [1] * 100, "stream": True}
            done = await asyncio.gather(*[client.post(f"{url}/v1/completions", json=body) for _ in range(count)])
            return [one.text.count("data: {") for one in done if one.status_code == 200]

    with proxied([engine.url for engine in engines], policy="gorouting") as proxy:
        assert asyncio.run(burst(proxy.url, 60)) == [TOKENS] * 60
        idle(proxy)


@pytest.mark.slow
def test_an_answer_that_takes_too_long_in_all(engines: list[FakeEngine]) -> None:
    engines[0].mood = "endless"
    with proxied([engines[0].url], dataclasses.replace(QUICK, total_s=1.0)) as proxy:
        status, events, _ = stream(proxy.url)
        assert status == 200 and events[-1]["error"] == {
            "message": "the answer took too long", "type": "timeout", "param": None, "code": 504,
        }  # fmt: skip
        idle(proxy)


# Settings


def test_it_listens_on_this_machine_only_unless_told_otherwise() -> None:
    assert ProxySettings().host == "127.0.0.1"
    bound = listen(ProxySettings(port=0))
    address = bound.getsockname()
    assert address[0] == "127.0.0.1"
    with pytest.raises(RoutingError, match="in use; name another port"):
        listen(ProxySettings(port=address[1]))
    bound.close()
    with pytest.raises(RoutingError, match=r"cannot listen on 203\.0\.113\.1:0"):
        listen(ProxySettings(host="203.0.113.1", port=0))


@pytest.mark.parametrize(
    "url",
    ["", "foo", "ftp://x", "http://", "http://x:y", "http://a@x", "http://x/?q", "file:///etc/passwd", "http://[::1"],
)
def test_addresses_of_engines_are_checked(url: str) -> None:
    with pytest.raises(RoutingError, match="it should be http://HOST:PORT"):
        checked_url(url)


def test_addresses_are_kept_without_a_slash() -> None:
    assert checked_url("http://10.0.0.1:8000/") == "http://10.0.0.1:8000"


@pytest.mark.parametrize(
    ("field", "value"),
    [("queue_s", float("nan")), ("total_s", 0.0), ("max_in_flight", 0), ("port", 70000), ("retries", -1)],
)
def test_settings_out_of_range(field: str, value: float) -> None:
    with pytest.raises(RoutingError, match=f"proxy: {field} is"):
        ProxySettings(**{field: value})  # type: ignore[arg-type]
