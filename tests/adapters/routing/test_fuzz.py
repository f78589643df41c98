"""Anything sent to the proxy: it is always answered, and never with an error of the proxy's own."""

import contextlib
import json
import socket
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.adapters.routing.fakes import HOST, LONGEST_S, FakeEngine, Served, proxied, stream
from tests.adapters.routing.proxies import idle
from tests.adapters.routing.test_request_terms import anything

FEW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def proxy(shared_engines: list[FakeEngine]) -> Iterator[Served]:
    with proxied([engine.url for engine in shared_engines], policy="gorouting") as served:
        yield served


@pytest.fixture(scope="module")
def client(proxy: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=proxy.url, timeout=LONGEST_S, trust_env=False) as made:
        yield made


KEYS = ("prompt", "messages", "stream", "priority", "vllm_xargs", "model", "max_tokens", "n")
documents = st.dictionaries(st.sampled_from(KEYS), anything)
xargs = st.dictionaries(st.sampled_from(["ttft_slo_s", "tpot_slo_ms", "ttlt_slo_s", "weight"]), anything)
requests = st.fixed_dictionaries(
    {"prompt": st.text() | st.lists(st.integers(0, 2**40)), "vllm_xargs": xargs | anything}
)
bodies = st.one_of(
    st.binary(max_size=200), (documents | requests | anything).map(lambda value: json.dumps(value).encode())
)
said = st.dictionaries(
    st.sampled_from(["x-servegym-ttft-slo-s", "x-servegym-weight", "x-servegym-priority", "accept", "connection"]),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40).map(str.strip),  # or the client refuses
)


@FEW
@given(body=bodies, headers=said, chat=st.booleans())
def test_any_body(client: httpx.Client, body: bytes, headers: dict[str, str], chat: bool) -> None:
    path = "/v1/chat/completions" if chat else "/v1/completions"
    answer = client.post(path, content=body, headers=headers)
    assert answer.status_code in (200, 400)


@FEW
@given(data=st.binary(max_size=300) | st.text(st.sampled_from("POST /v1:\r\nabc0")).map(str.encode))
def test_any_bytes(proxy: Served, data: bytes) -> None:
    with socket.create_connection((HOST, proxy.port)) as connection, contextlib.suppress(OSError):
        connection.settimeout(0.05)
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        got = connection.recv(65536)
        assert not got or b" 4" in got.split(b"\r\n")[0] or b" 200" in got.split(b"\r\n")[0]


def test_and_then_it_still_serves(proxy: Served) -> None:
    assert stream(proxy.url)[0] == 200
    idle(proxy)
