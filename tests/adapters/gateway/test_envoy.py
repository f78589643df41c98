"""A real Envoy, configured by deploy/envoy.yaml, before an endpoint picker and fake engines."""

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from servegym.adapters.routing.settings import ProxySettings
from servegym.baselines.artifact.files import save_policy
from servegym.baselines.registry import router
from tests.adapters.gateway.pickers import Picker, envoy, picking
from tests.adapters.routing.fakes import LONGEST_S, QUICK, TOKENS, FakeEngine, stream, until, words
from tests.adapters.routing.proxies import ALL, counted, idle
from tests.baselines.learned.cases import refusing_where_late
from tests.pages import ROOT

pytestmark = pytest.mark.slow


def post(url: str, **more: Any) -> httpx.Response:
    body = {"prompt": "a b c"} | more
    return httpx.post(f"{url}/v1/completions", json=body, trust_env=False, timeout=LONGEST_S)


def buffered(processor: dict[str, Any], engines: dict[str, Any]) -> None:
    """Bodies of requests come whole, and the endpoint is read from metadata."""
    processor["processing_mode"] |= {"request_body_mode": "BUFFERED", "request_trailer_mode": "SKIP"}
    processor["processing_mode"] |= {"response_body_mode": "STREAMED", "response_trailer_mode": "SKIP"}
    processor["metadata_options"] = {"receiving_namespaces": {"untyped": ["envoy.lb"]}}
    key = {"key": "envoy.lb", "path": [{"key": "x-gateway-destination-endpoint"}]}
    engines["original_dst_lb_config"] = {"metadata_key": key}


@pytest.mark.parametrize("more", [None, buffered], ids=["duplex", "buffered"])
def test_requests_go_where_the_router_says(
    engines: list[FakeEngine], tmp_path: Path, more: Callable[..., None] | None
) -> None:
    """As recorded by the router, and by the engines; streams and bodies come through unchanged."""
    for engine in engines:
        engine.mood = "slow"
    with picking([engine.url for engine in engines], policy="predicted-cost") as picker:
        named: list[int] = []
        route = picker.proxy.router.route

        def noting(*arguments: Any) -> int:
            named.append(route(*arguments))
            return named[-1]

        picker.proxy.router.route = noting
        with envoy(picker, tmp_path, more) as url, ThreadPoolExecutor(12) as clients:
            prompts = [f"{k} " + "long " * 40_000 * (k % 3) for k in range(12)]
            for status, events, _ in clients.map(lambda text: stream(url, prompt=text), prompts):
                assert status == 200 and words(events) == ALL and events[-1] == "[DONE]"
            idle(picker)
        assert sorted(body["prompt"] for engine in engines for body in engine.bodies) == sorted(prompts)
        assert [len(engine.bodies) for engine in engines] == [named.count(0), named.count(1)]
        assert min(map(named.count, (0, 1))) > 0 and len(named) == 12
        assert counted(picker, "tokens_total") == 12 * TOKENS
        assert counted(picker, 'requests_total{outcome="finished"}') == 12


def test_first_tokens_are_seen_while_the_answer_streams(engines: list[FakeEngine], tmp_path: Path) -> None:
    engines[0].mood = "slower"
    with picking([engines[0].url]) as picker, envoy(picker, tmp_path) as url, ThreadPoolExecutor(1) as client:
        answer = client.submit(stream, url)
        snapshots = picker.proxy.router.snapshots
        until(lambda: snapshots["decodes"][0] == 1, "its first token is out")
        assert not answer.done() and snapshots["prefills"][0] == 0
        assert words(answer.result()[1]) == ALL
        idle(picker)


def test_a_conversation_stays_where_its_prefix_is(engines: list[FakeEngine], tmp_path: Path) -> None:
    urls = [engine.url for engine in engines]
    with picking(urls, policy="prefix-affinity") as picker, envoy(picker, tmp_path) as url:
        texts = {name: f"{name} " * 2000 for name in ("one", "two", "three", "four")}
        first: dict[str, str] = {}
        for turn in range(4):
            for name, text in texts.items():
                stream(url, prompt=text + " and so on" * 200 * turn)
                (there,) = [one.url for one in engines if any(b["prompt"].startswith(name) for b in one.bodies)]
                assert first.setdefault(name, there) == there, "a prompt that goes on should find its prefix"
        assert sum(len(engine.bodies) for engine in engines) == 16
        idle(picker)


def test_slos_and_sessions_come_by_headers(engines: list[FakeEngine], tmp_path: Path) -> None:
    with picking([engines[0].url]) as picker, envoy(picker, tmp_path) as url:
        asked: list[Any] = []
        arrive = picker.proxy.router.arrive
        picker.proxy.router.arrive = lambda now_s, terms, *more: asked.append(terms) or arrive(now_s, terms, *more)
        headers = {"x-servegym-ttft-slo-s": "0.4", "x-slo-tpot-ms": "25", "x-session-id": "agent-7"}
        httpx.post(f"{url}/v1/completions", json={"prompt": "x"}, headers=headers, trust_env=False)
        (terms,) = asked
        assert (terms.ttft_slo_s, terms.tpot_slo_s) == (0.4, 0.025) and terms.session >= 0
        assert engines[0].bodies[-1]["vllm_xargs"] == {"ttft_slo_s": 0.4, "tpot_slo_s": 0.025}


def test_a_client_cannot_choose_its_endpoint(engines: list[FakeEngine], tmp_path: Path) -> None:
    with picking([engines[0].url]) as picker, envoy(picker, tmp_path) as url:
        elsewhere = {"x-gateway-destination-endpoint": engines[1].url.removeprefix("http://")}
        httpx.post(f"{url}/v1/completions", json={"prompt": "x"}, headers=elsewhere, trust_env=False)
        assert (len(engines[0].bodies), len(engines[1].bodies)) == (1, 0)


def test_other_requests_and_errors(engines: list[FakeEngine], tmp_path: Path) -> None:
    with picking([engine.url for engine in engines]) as picker, envoy(picker, tmp_path) as url:
        assert httpx.get(f"{url}/v1/models", trust_env=False).json()["data"] == [{"id": "fake"}]
        bad = httpx.post(f"{url}/v1/completions", content=b"{", trust_env=False)
        assert bad.status_code == 400 and "not JSON" in bad.json()["error"]["message"]
        assert bad.headers["content-type"] == "application/json"
        engines[0].mood = engines[1].mood = "error"
        assert post(url).json()["error"]["message"] == "out of memory"
        idle(picker)


@pytest.mark.parametrize("more", [None, buffered], ids=["duplex", "buffered"])
def test_what_a_learned_router_refuses_is_429(
    engines: list[FakeEngine], tmp_path: Path, more: Callable[..., None] | None
) -> None:
    """The client gets the whole answer, also where its body is long; what can be in time is served."""
    path = save_policy(refusing_where_late(router("min-load")), tmp_path / "mine.json", {})
    with picking([engine.url for engine in engines], policy=f"learned:{path}") as picker:
        with envoy(picker, tmp_path, more) as url:
            for text in ("a b c", "long " * 40_000):
                late = post(url, prompt=text, stream=True, vllm_xargs={"ttft_slo_s": 1e-6})
                assert (late.status_code, late.headers["retry-after"]) == (429, "1")
                assert late.headers["content-type"] == "application/json"
                assert late.json()["error"]["code"] == "refused"
                assert post(url, prompt=text, vllm_xargs={"ttft_slo_s": 100.0}).status_code == 200
            idle(picker)
        assert counted(picker, 'requests_total{outcome="refused"}') == 2 and picker.proxy.router.fallbacks == 0
        assert sum(len(engine.bodies) for engine in engines) == 2


def test_an_engine_dies_and_comes_back(tmp_path: Path) -> None:
    """The first request that finds it dead fails; later ones go to the other."""
    one, other = FakeEngine(), FakeEngine()
    with picking([one.url, other.url]) as picker, envoy(picker, tmp_path) as url:
        one.mood = other.mood = "slower"
        with ThreadPoolExecutor(2) as clients:
            streams = [clients.submit(stream, url) for _ in range(2)]
            until(lambda: picker.proxy.router.snapshots["decodes"].sum() == 2, "each has a request")
            one.stop()
            broken = [future for future in streams if future.exception() is not None]
        assert len(broken) == 1, "the one at the engine that has died is broken off"
        until(lambda: not picker.proxy.backends.all[0].up, "it is closed")
        other.mood = "well"
        assert [post(url).status_code for _ in range(4)] == [200] * 4
        idle(picker)
    other.stop()


def test_a_dead_engine_is_closed_by_the_first_request_it_fails(engines: list[FakeEngine], tmp_path: Path) -> None:
    """Long before a check would close it."""
    settings = dataclasses.replace(QUICK, health_s=1e6)
    with picking(["http://127.0.0.1:1", engines[0].url], settings) as picker, envoy(picker, tmp_path) as url:
        statuses = [post(url).status_code for _ in range(2)]
        assert statuses.count(503) == 1
        until(lambda: not picker.proxy.backends.all[0].up, "it is closed")
        assert [post(url).status_code for _ in range(4)] == [200] * 4


def test_no_engine_is_one_clear_error(tmp_path: Path) -> None:
    with picking(["http://127.0.0.1:1"]) as picker, envoy(picker, tmp_path) as url:
        until(lambda: not picker.proxy.backends.all[0].up, "it is closed")
        answer = post(url)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["message"] == "no engine takes requests"


def test_a_client_that_leaves_is_noticed(engines: list[FakeEngine], tmp_path: Path) -> None:
    engines[0].mood = "endless"
    with picking([engines[0].url]) as picker, envoy(picker, tmp_path) as url:
        with httpx.stream("POST", f"{url}/v1/completions", json={"prompt": "x", "stream": True}, trust_env=False) as it:
            next(it.iter_bytes())
        idle(picker)
        until(lambda: engines[0].cancelled == 1, "the engine has noticed too")
        assert counted(picker, 'requests_total{outcome="client-gone"}') == 1


def test_without_a_picker_requests_go_nowhere(engines: list[FakeEngine], tmp_path: Path) -> None:
    """Envoy fails closed: failure_mode_allow is false."""
    with picking([engines[0].url]) as picker, envoy(picker, tmp_path) as url:
        assert post(url).status_code == 200
        Picker.stop(picker)
        assert post(url).status_code >= 500
        assert len(engines[0].bodies) == 1


def test_the_configuration_waits_longer_than_a_request_may() -> None:
    text = (ROOT / "deploy" / "envoy.yaml").read_text("utf-8")
    said = next(line for line in text.splitlines() if "message_timeout" in line)
    assert float(said.split(":")[1].split("s")[0]) > ProxySettings().queue_s
