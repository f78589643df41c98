"""An endpoint picker before a gateway of tests: where requests go, what is refused, and what the router hears."""

import dataclasses
import json
import shutil
import socket
import subprocess
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import httpx
import pytest

from servegym.adapters.gateway.answers import LONGEST_PIECE, SUBSET, SUBSET_NAMESPACE
from servegym.adapters.gateway.wire import (
    BODY_MODES,
    CHECK,
    NOT_SERVING,
    PROCESS,
    SERVING,
    HealthCheckRequest,
    HealthCheckResponse,
    ProcessingRequest,
)
from servegym.baselines.artifact.files import save_policy
from servegym.baselines.registry import router
from servegym.simulator.features.adapters import Adapters
from servegym.simulator.records.types import HOLD
from tests.adapters.gateway.gateways import DUPLEX, Call, endpoint, prompt, refused
from tests.adapters.gateway.pickers import Picker, picking
from tests.adapters.routing.fakes import QUICK, event, until
from tests.adapters.routing.proxies import counted, idle
from tests.baselines.learned.cases import refusing_where_late

THREE = [f"http://10.0.0.{k}:8000" for k in (1, 2, 3)]
ENDPOINTS = [url.removeprefix("http://") for url in THREE]
UNCHECKED = dataclasses.replace(QUICK, health_s=1e6)  # nobody is at these addresses


@pytest.fixture(scope="module")
def shared() -> Iterator[Picker]:
    with picking(THREE, UNCHECKED) as picker:
        yield picker


@pytest.fixture
def picker(shared: Picker) -> Iterator[Picker]:
    """Its router is min-load, and it has no requests."""
    yield shared
    idle(shared)


def requests_at(picker: Picker) -> list[int]:
    return [int(n) for n in picker.proxy.router.snapshots["requests"]]


def test_requests_go_where_the_router_says_and_leave_with_their_answer(picker: Picker) -> None:
    calls = [Call(picker.target) for _ in THREE]
    assert sorted(endpoint(call.ask(prompt())) for call in calls) == ENDPOINTS
    assert requests_at(picker) == [1, 1, 1] and picker.proxy.router.snapshots["prefills"].tolist() == [1, 1, 1]
    for call in calls:
        assert json.loads(call.body()) == json.loads(prompt())
        call.answered()
    calls[1].token()
    assert sorted(picker.proxy.router.snapshots["decodes"].tolist()) == [0, 0, 1]
    calls[1].finish()
    until(lambda: sorted(requests_at(picker)) == [0, 1, 1], "the request has left")
    again = Call(picker.target)
    free = ENDPOINTS[requests_at(picker).index(0)]
    assert endpoint(again.ask(prompt())) == free
    for call in (calls[0], calls[2]):
        call.finish()
    again.body()
    again.answered(kind="application/json")
    again.came(b'{"usage": {"completion_tokens": 7}}', end=True)
    again.end()
    assert counted(picker, 'requests_total{outcome="finished"}') >= 4
    assert counted(picker, 'client_tokens_total{client="anybody",kind="output"}') >= 8


@pytest.mark.parametrize("trailers", [False, True])
@pytest.mark.parametrize("pieces", [1, 7])
def test_a_long_body_comes_in_pieces_and_is_passed_on_so(picker: Picker, pieces: int, trailers: bool) -> None:
    body = prompt(prompt="x" * (3 * LONGEST_PIECE))
    call = Call(picker.target)
    assert endpoint(call.ask(body, pieces=pieces, trailers=trailers)) in ENDPOINTS
    assert call.body() == body
    call.answered()
    call.finish()


def test_a_gateway_that_buffers_bodies_is_answered_with_the_body(picker: Picker) -> None:
    modes = (BODY_MODES.index("BUFFERED"), BODY_MODES.index("STREAMED"))
    call = Call(picker.target)
    answer = call.ask(prompt(), headers={"x-servegym-ttft-slo-s": "0.25"}, modes=modes)
    assert endpoint(answer) in ENDPOINTS and answer.WhichOneof("response") == "request_body"
    said = json.loads(answer.request_body.response.body_mutation.body)
    assert said["vllm_xargs"] == {"ttft_slo_s": 0.25} and said["prompt"] == "a b c"
    call.answered()
    message = ProcessingRequest()
    message.response_body.body = event({"choices": [{"index": 0, "text": "word"}]})
    call.say(message)
    assert not call.hear().response_body.HasField("response"), "a piece that is not changed needs no mutation"
    assert picker.proxy.router.snapshots["decodes"].sum() == 1
    call.cancel()


def test_slos_of_llm_d_reach_the_router_and_the_engine(picker: Picker) -> None:
    call = Call(picker.target)
    call.ask(prompt(), headers={"x-slo-ttft-ms": "300", "x-llm-d-slo-tpot-ms": "20"})
    assert json.loads(call.body())["vllm_xargs"] == {"ttft_slo_s": 0.3, "tpot_slo_s": 0.02}
    (r,) = picker.proxy.router.rows.taken.nonzero()[0]
    row = picker.proxy.router.rows.table[r]
    assert (float(row.ttft_slo_s), float(row.tpot_slo_s)) == (0.3, 0.02)
    call.cancel()


@pytest.mark.parametrize("form", [list, ",".join])
def test_only_endpoints_that_the_gateway_names_are_chosen(picker: Picker, form: type) -> None:
    subset = {SUBSET_NAMESPACE: {SUBSET: form([ENDPOINTS[2], ENDPOINTS[1], "10.9.9.9:1"])}}
    calls = [Call(picker.target) for _ in range(6)]
    went = [endpoint(call.ask(prompt(), metadata=subset)) for call in calls]
    assert went.count(ENDPOINTS[1]) == went.count(ENDPOINTS[2]) == 3
    for call in calls:
        call.cancel()


@pytest.mark.parametrize("listed", [[], ["10.9.9.9:1"]])
def test_a_subset_without_an_engine_is_503_at_once(picker: Picker, listed: list[str]) -> None:
    status, message = refused(Call(picker.target).ask(prompt(), metadata={SUBSET_NAMESPACE: {SUBSET: listed}}))
    assert (status, message) == (503, "no engine of those that the gateway names takes requests")


@pytest.mark.parametrize("body, status, word", [
    (b"{", 400, "not JSON"), (b'{"prompt": 3}', 400, "'prompt' should be"),
    (b"x" * (QUICK.max_body_bytes + 1), 413, "longer than"),
])  # fmt: skip
def test_bodies_that_are_no_request_are_refused(picker: Picker, body: bytes, status: int, word: str) -> None:
    said, message = refused(Call(picker.target).ask(body, pieces=8))
    assert said == status and word in message


@pytest.mark.parametrize("modes, word", [
    (("STREAMED", "STREAMED"), "request_body_mode is STREAMED"), (("NONE", "STREAMED"), "request_body_mode is NONE"),
    (("BUFFERED", "NONE"), "response_body_mode is NONE"),
])  # fmt: skip
def test_modes_that_tell_too_little_are_refused(picker: Picker, modes: tuple[str, str], word: str) -> None:
    answer = Call(picker.target).ask(prompt(), modes=tuple(BODY_MODES.index(mode) for mode in modes))  # type: ignore[arg-type]
    status, message = refused(answer)
    assert status == 500 and word in message


def test_other_requests_go_where_fewest_are(picker: Picker) -> None:
    calls = [Call(picker.target) for _ in range(2)]
    busy = {endpoint(call.ask(prompt())) for call in calls}
    models = Call(picker.target)
    message = ProcessingRequest()
    for name, value in ((":method", "GET"), (":path", "/v1/models")):
        message.request_headers.headers.headers.add(key=name, value=value)
    message.request_headers.end_of_stream = True
    models.say(message)
    assert {endpoint(models.hear())} == set(ENDPOINTS) - busy
    models.answered(kind="application/json")
    assert models.came(b"{}", end=True) == b"{}"
    models.end()
    for call in calls:
        call.cancel()


def test_a_gateway_that_tried_another_endpoint_says_so(picker: Picker) -> None:
    call = Call(picker.target)
    went = endpoint(call.ask(prompt()))
    call.body()
    other = next(one for one in ENDPOINTS if one != went)
    call.answered(served=other)
    assert requests_at(picker)[ENDPOINTS.index(other)] == 1 and sum(requests_at(picker)) == 1
    call.finish()


@pytest.mark.parametrize("how, outcome", [("error", "error"), ("cut", "broken"), ("gone", "client-gone")])
def test_answers_that_end_badly(picker: Picker, how: str, outcome: str) -> None:
    before = counted(picker, "requests_total")
    call = Call(picker.target)
    endpoint(call.ask(prompt()))
    call.body()
    call.answered(status=502 if how == "error" else 200)
    if how != "error":
        call.token()
    if how == "gone":
        call.cancel()
    else:
        call.came(b"", end=True)
        call.end()
    until(lambda: counted(picker, "requests_total") == before + 1, "it is counted")
    assert counted(picker, f'requests_total{{outcome="{outcome}"}}') >= 1


def test_too_many_requests_are_429_and_one_that_waits_503() -> None:
    settings = dataclasses.replace(UNCHECKED, max_in_flight=1, max_queued=0)
    with picking(THREE, settings) as picker:
        first = Call(picker.target)
        endpoint(first.ask(prompt()))
        assert refused(Call(picker.target).ask(prompt()))[0] == 429
        first.cancel()
        idle(picker)
    settings = dataclasses.replace(UNCHECKED, max_in_flight=1, queue_s=0.1)
    with picking(THREE, settings) as picker:
        first = Call(picker.target)
        endpoint(first.ask(prompt()))
        assert refused(Call(picker.target).ask(prompt())) == (503, "no room within the time to wait")
        first.cancel()
        idle(picker)


def test_what_the_router_refuses_is_429() -> None:
    with picking(THREE, UNCHECKED, "prefix-affinity:refuse=0.000001") as picker:
        assert refused(Call(picker.target).ask(prompt())) == (429, "the engines are overloaded; try again later")
        idle(picker)


@pytest.mark.parametrize(
    "modes", [(DUPLEX, DUPLEX), (BODY_MODES.index("BUFFERED"), DUPLEX)], ids=["duplex", "buffered"]
)
def test_what_a_learned_router_refuses_is_429(modes: tuple[int, int], tmp_path: Path) -> None:
    """It serves a prompt that can be in time, and refuses one that takes longer than its first token may."""
    path = save_policy(refusing_where_late(router("min-load")), tmp_path / "mine.json", {})
    with picking(THREE, UNCHECKED, f"learned:{path}") as picker:
        call, late = Call(picker.target), Call(picker.target)
        endpoint(call.ask(prompt(vllm_xargs={"ttft_slo_s": 1.0}), modes=modes))
        answer = late.ask(prompt(vllm_xargs={"ttft_slo_s": 1e-6}), modes=modes)
        assert refused(answer) == (429, "the engines are overloaded; try again later")
        response = answer.immediate_response
        headers = {one.header.key: one.header.raw_value for one in response.headers.set_headers}
        assert headers == {"content-type": b"application/json", "retry-after": b"1"}
        assert response.details == "servegym_refused" and json.loads(response.body)["error"]["code"] == "refused"
        late.end()
        assert counted(picker, 'requests_total{outcome="refused"}') == 1 and picker.proxy.router.fallbacks == 0
        assert sum(requests_at(picker)) == 1
        call.cancel()
        idle(picker)


def test_a_request_goes_where_its_model_is_within_the_subset() -> None:
    """404 for a model that no engine lists."""
    with picking(THREE, UNCHECKED, "lora-affinity", adapters=Adapters(1, 0.5, 0.01)) as picker:
        for one, names in zip(picker.proxy.backends.all, ("ab", "b", "b"), strict=True):
            one.models = {"base": {}} | {name: {"parent": "base"} for name in names}
        calls = {model: Call(picker.target) for model in "cab"}
        assert refused(calls["c"].ask(prompt(model="c"))) == (404, "The model `c` does not exist.")
        assert endpoint(calls["a"].ask(prompt(model="a"))) == ENDPOINTS[0]
        subset = {SUBSET_NAMESPACE: {SUBSET: [ENDPOINTS[0], ENDPOINTS[2]]}}
        assert endpoint(calls["b"].ask(prompt(model="b"), metadata=subset)) == ENDPOINTS[2], "the first has another"
        assert picker.proxy.router.known.adapters.tolist() == [[1], [0], [2]]
        for call in (calls["a"], calls["b"]):
            call.cancel()
        idle(picker)


def test_a_request_that_is_held_stays_within_the_subset() -> None:
    """A policy that is asked again about a held request knows of no subset."""
    with picking(THREE, UNCHECKED) as picker, ThreadPoolExecutor(1) as thread:
        other, call = Call(picker.target), Call(picker.target)
        endpoint(other.ask(prompt()))
        other.body()
        other.answered()
        router, held = picker.proxy.router, []
        route, ask_again = router.route, router.ask_again

        def hold(now_s: float, r: int, exclude: Collection[int] = ()) -> int:
            held.append(r)
            return HOLD

        def to_the_first(now_s: float) -> list[tuple[int, int]]:
            gone = [(r, 0) for r in held]
            for r, e in gone:
                router.send(now_s, r, e)
            held.clear()
            return gone

        router.route, router.ask_again = hold, to_the_first
        asked = thread.submit(call.ask, prompt(), metadata={SUBSET_NAMESPACE: {SUBSET: [ENDPOINTS[2]]}})
        until(lambda: held, "the request is held")
        other.token()  # which is news: held requests are asked about again
        assert endpoint(asked.result()) == ENDPOINTS[2]
        assert requests_at(picker)[2] >= 1
        router.route, router.ask_again = route, ask_again
        other.finish()
        call.cancel()
        idle(picker)


def health(channel: grpc.Channel, service: str) -> int:
    check = channel.unary_unary(
        f"/{CHECK[0]}/{CHECK[1]}",
        request_serializer=HealthCheckRequest.SerializeToString,
        response_deserializer=HealthCheckResponse.FromString,
    )
    return int(check(HealthCheckRequest(service=service), timeout=10.0).status)


def test_health(picker: Picker) -> None:
    channel = grpc.insecure_channel(picker.target)
    services = ("", "liveness", "readiness", PROCESS[0])
    assert [health(channel, one) for one in services] == [SERVING] * 4
    picker.proxy.draining = True
    assert [health(channel, one) for one in services] == [SERVING, SERVING, NOT_SERVING, NOT_SERVING]
    assert httpx.get(f"{picker.url}/ready", trust_env=False).status_code == 503
    picker.proxy.draining = False
    with pytest.raises(grpc.RpcError, match="there is no service 'nope'"):
        health(channel, "nope")
    channel.close()


@pytest.mark.slow
def test_it_ends_once_its_requests_have() -> None:
    with picking(THREE, UNCHECKED) as picker:
        call = Call(picker.target)
        endpoint(call.ask(prompt()))
        call.body()
        call.answered()
        picker.server.should_exit = True
        until(lambda: picker.proxy.draining, "it is ending")
        call.token()
        call.finish()
    assert counted_offline(picker) == 1


def counted_offline(picker: Picker) -> float:
    return float(picker.proxy.metrics.requests.labels("finished")._value.get())


@pytest.mark.slow
def test_tls(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    pair = {"certificate": tmp_path / "cert.pem", "certificate_key": tmp_path / "key.pem"}
    with picking(THREE, dataclasses.replace(UNCHECKED, **pair)) as picker:
        trusted = grpc.ssl_channel_credentials((tmp_path / "cert.pem").read_bytes())
        with grpc.secure_channel(f"localhost:{picker.grpc_port}", trusted) as channel:
            call = Call("", channel)
            assert endpoint(call.ask(prompt())) in ENDPOINTS
            call.cancel()
            idle(picker)
        with socket.create_connection(("127.0.0.1", picker.grpc_port)) as plain:
            plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            plain.settimeout(5.0)
            assert plain.recv(100)[:1] != b"\x00", "it should speak nothing but TLS"
