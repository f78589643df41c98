"""A proxy as it is operated: keys, reloading, engines that come and go, the end, TLS, the log of requests."""

import asyncio
import contextlib
import dataclasses
import json
import logging
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from servegym.adapters.routing.assumptions import Assumptions
from servegym.adapters.routing.clients import AdminKey, Client, Clients, digest_of
from servegym.adapters.routing.discovery import DnsSource, FileSource, urls_of
from servegym.adapters.routing.operation import Operation
from servegym.adapters.routing.request_log import Measured, RequestLog
from servegym.adapters.routing.rows import RequestTerms
from servegym.adapters.routing.server import listen, make_server
from servegym.baselines.artifact import Artifact, save_artifact
from servegym.baselines.registry import router
from servegym.errors import RoutingError
from servegym.latency_models.profile import load_profile
from servegym.traces.readers import read_trace
from tests.adapters.routing.fakes import LONGEST_S, QUICK, TOKENS, FakeEngine, Served, proxied, stream, until, words
from tests.adapters.routing.proxies import ALL, counted, idle

DEVICE = "h100-llama3-8b"
BODY = {"prompt": "a b c d", "stream": True}


def post(proxy: Served, key: str | None = None) -> httpx.Response:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx.post(f"{proxy.url}/v1/completions", json=BODY, headers=headers, trust_env=False, timeout=LONGEST_S)


# Keys


def test_keys_and_limits(engines: list[FakeEngine]) -> None:
    known = Clients([Client("chat", digest_of("one"), requests_per_minute=2), Client("batch", digest_of("two"))])
    operation = Operation(known, engine_headers=[(b"authorization", b"Bearer of-the-engine")])
    with proxied([engines[0].url], operation=operation) as proxy:
        answers = [post(proxy, key) for key in (None, "nope", "one", "one", "one", "two")]
        assert [one.status_code for one in answers] == [401, 401, 200, 200, 429, 200]
        assert answers[0].json()["error"] == {
            "message": "no API key was given: authorization: Bearer KEY", "type": "invalid_request_error",
            "param": None, "code": "invalid_api_key",
        }  # fmt: skip
        assert answers[4].json()["error"]["code"] == "rate_limit_exceeded"
        assert 1 <= int(answers[4].headers["retry-after"]) <= 30
        assert {one["authorization"] for one in engines[0].headers} == {"Bearer of-the-engine"}
        assert counted(proxy, 'client_requests_total{client="chat",outcome="finished"}') == 2
        assert counted(proxy, 'client_requests_total{client="chat",outcome="rate_limit_exceeded"}') == 1
        assert counted(proxy, 'client_tokens_total{client="batch",kind="output"}') == TOKENS
        assert counted(proxy, 'engine_requests_total{engine="0",outcome="finished"}') == 3
        get = {path: httpx.get(proxy.url + path, trust_env=False).status_code
               for path in ("/v1/models", "/health", "/ready", "/metrics", "/admin/policy")}  # fmt: skip
        assert list(get.values()) == [401, 200, 200, 200, 404], "no admin's key, nothing to administer"
        idle(proxy)
    assert [client.in_flight for client in known.all] == [0, 0]


# Another policy


@contextlib.contextmanager
def administered(urls: list[str]) -> Iterator[Served]:
    with proxied(urls, operation=Operation(admin=AdminKey.of("admin"), device=DEVICE)) as proxy:
        yield proxy


def put(proxy: Served, content: bytes, key: str = "admin") -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.put(f"{proxy.url}/admin/policy", content=content, headers=headers, trust_env=False, timeout=LONGEST_S)


@pytest.mark.slow
def test_the_policy_is_changed_while_requests_stream(engines: list[FakeEngine], tmp_path: Path) -> None:
    for engine in engines:
        engine.mood = "slower"
    estimator = load_profile(DEVICE).estimator
    said = {"profile": DEVICE, "form": estimator.form, "coefficients": estimator.coefficients.tolist(), "fit": {}}
    artifact = save_artifact(Artifact({"router": router("gorouting:alpha=0.8")}, said), tmp_path / "policy.json")
    with administered([engine.url for engine in engines]) as proxy, ThreadPoolExecutor(4) as pool:
        streams = [pool.submit(stream, proxy.url) for _ in range(4)]
        until(lambda: sum(len(engine.bodies) for engine in engines) == 4, "they are at the engines")
        assert put(proxy, b'{"router": "round-robin"}').json() == {"router": "round-robin"}
        assert put(proxy, artifact.read_bytes()).json()["router"].startswith("gorouting")
        assert proxy.proxy.router.snapshots["requests"].sum() == 4, "it knows of them"
        assert all(words(one.result()[1]) == ALL for one in streams)
        assert words(stream(proxy.url)[1]) == ALL
        assert counted(proxy, 'reloads_total{outcome="done"}') == 2
        assert counted(proxy, 'policy_info{router="gorouting') == 1
        idle(proxy)


@pytest.mark.parametrize(
    ("content", "word"),
    [(b"{", "not JSON"), (b'{"router": "nope"}', "gorouting"), (b"[]", "policy"), (b'{"router": "edf"}', "edf"),
     (b'{"router": "min-load", "device": 5}', "PROFILE"), (b'{"x": 1}', ": the policy that was sent")],
)  # fmt: skip
def test_a_bad_policy_leaves_the_old_one_and_says_why(engines: list[FakeEngine], content: bytes, word: str) -> None:
    with administered([engines[0].url]) as proxy:
        answer = put(proxy, content)
        assert answer.status_code == 400 and word in answer.json()["error"]["message"]
        assert answer.json()["error"]["message"].startswith("the policy stays min-load: ")
        assert put(proxy, b'{"router": "round-robin"}', "wrong").status_code == 401
        assert post(proxy).status_code == 200
        assert counted(proxy, 'reloads_total{outcome="failed"}') == 1


def test_rereading_has_the_new_policy_and_the_new_clients(
    engines: list[FakeEngine], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["round-robin"]
    policy = tmp_path / "policy"
    policy.write_text("1")
    clients = tmp_path / "clients.yaml"
    clients.write_text("clients: {a: {key: old}}")
    load = lambda: Assumptions.of(router(names[0]), DEVICE)  # noqa: E731
    operation = Operation.of(clients, {}, load=load, policy_files=[policy], device=DEVICE)
    log = RequestLog(tmp_path / "requests.jsonl")
    with proxied([engines[0].url], operation=operation, log=log) as proxy, caplog.at_level(logging.WARNING):
        loop = proxy.server._loop  # type: ignore[attr-defined]

        def reread() -> None:
            asyncio.run_coroutine_threadsafe(operation.reread(proxy.proxy), loop).result(LONGEST_S)

        clients.write_text("clients: {a: {key: new}}")
        (tmp_path / "requests.jsonl").rename(tmp_path / "rotated.jsonl")
        reread()
        assert proxy.proxy.router.policy.label == "min-load", "its file is as it was"
        policy.write_text("2")
        reread()
        assert [post(proxy, key).status_code for key in ("old", "new")] == [401, 200]
        assert proxy.proxy.router.policy.label == "round-robin"
        clients.write_text("clients: [")
        names[0] = "nope"
        policy.write_text("3")
        reread()
        assert post(proxy, "new").status_code == 200 and proxy.proxy.router.policy.label == "round-robin"
        assert "clients stay as they are" in caplog.text and "the policy stays round-robin" in caplog.text
        idle(proxy)
    log.close()
    assert (tmp_path / "rotated.jsonl").read_text() == ""
    assert len((tmp_path / "requests.jsonl").read_text().splitlines()) == 2


# Engines that come and go


def up(proxy: Served, engine: int) -> float | None:
    """1: it takes requests; 0: it does not; None: it is not there yet."""
    lines = httpx.get(f"{proxy.url}/metrics", trust_env=False).text.splitlines()
    found = [line for line in lines if line.startswith(f'servegym_proxy_engine_up{{engine="{engine}"}}')]
    return float(found[0].split()[1]) if found else None


@pytest.mark.slow
def test_engines_come_and_go_by_a_file(engines: list[FakeEngine], tmp_path: Path) -> None:
    path = tmp_path / "engines.txt"
    path.write_text(f"{engines[0].url}  # the first\n\n")
    operation = Operation(sources=[FileSource(path)], look_s=0.05)
    with proxied([engines[0].url], operation=operation) as proxy, ThreadPoolExecutor(1) as pool:
        engines[0].mood = "slower"
        under_way = pool.submit(stream, proxy.url)
        until(lambda: engines[0].bodies, "it is there")
        path.write_text(engines[1].url)
        until(lambda: up(proxy, 1) == 1, "the second is found")
        until(lambda: up(proxy, 0) == 0, "the first is to go")
        assert stream(proxy.url)[2]["x-servegym-engine"] == "1"
        assert words(under_way.result()[1]) == ALL, "what it had it has finished"
        path.write_text("nonsense")
        time.sleep(0.2)
        assert stream(proxy.url)[2]["x-servegym-engine"] == "1", "a wrong file changes nothing"
        path.write_text(f"{engines[1].url}\n{engines[0].url}/")
        until(lambda: up(proxy, 0) == 1, "it is back, in its place")
        assert len(proxy.proxy.backends.all) == 2 == len(proxy.proxy.router.engines)
        idle(proxy)


def test_an_engine_that_joins_is_sent_nothing_until_it_is_well(engines: list[FakeEngine]) -> None:
    engines[1].mood = "refuse-health"
    with proxied([engines[0].url]) as proxy:
        loop = proxy.server._loop  # type: ignore[attr-defined]
        loop.call_soon_threadsafe(proxy.proxy.set_engines, [engine.url for engine in engines])
        until(lambda: len(proxy.proxy.backends.all) == 2, "it is there")
        assert {stream(proxy.url)[2]["x-servegym-engine"] for _ in range(4)} == {"0"}
        engines[1].mood = "well"
        until(lambda: up(proxy, 1) == 1, "it is well")


def test_where_engines_are_said_to_be(tmp_path: Path) -> None:
    def found(*sources: FileSource | DnsSource) -> list[str]:
        return asyncio.run(urls_of(["http://a:1"], sources))

    path = tmp_path / "engines"
    path.write_text("http://b:2/ # b\n#\nhttp://a:1\n")
    assert found(FileSource(path)) == ["http://a:1", "http://b:2"]
    assert found(DnsSource("127.0.0.1:8001")) == ["http://a:1", "http://127.0.0.1:8001"]
    assert found(DnsSource("https://[::1]:9"))[1] == "https://[::1]:9"
    for wrong in ("", "# none", "ftp://x"):
        path.write_text(wrong)
        with pytest.raises(RoutingError):
            found(FileSource(path))
    with pytest.raises(RoutingError, match=r"nope:? cannot be read: No such file or directory$"):
        found(FileSource(tmp_path / "nope"))
    with pytest.raises(RoutingError, match="NAME:PORT"):
        DnsSource("engines")
    with pytest.raises(RoutingError, match="no address"):
        found(DnsSource("no-such-host.invalid:80"))


# The end


def test_it_ends_when_streams_have_ended(engines: list[FakeEngine]) -> None:
    engines[0].mood = "slower"
    settings = dataclasses.replace(QUICK, drain_notice_s=2.0)
    with proxied([engines[0].url], settings) as proxy, ThreadPoolExecutor(2) as pool:
        first = pool.submit(stream, proxy.url)
        until(lambda: engines[0].bodies, "it is there")
        proxy.server.handle_exit(15, None)
        answer = httpx.get(f"{proxy.url}/ready", trust_env=False)
        assert (answer.status_code, answer.json()["draining"]) == (503, True)
        assert httpx.get(f"{proxy.url}/health", trust_env=False).status_code == 200
        late = pool.submit(stream, proxy.url)  # a balancer may not have seen it yet
        assert words(first.result()[1]) == words(late.result()[1]) == ALL
        proxy.thread.join(LONGEST_S)
        assert not proxy.thread.is_alive()


def test_what_does_not_end_in_time_is_told_so(engines: list[FakeEngine]) -> None:
    engines[0].mood = "endless"
    settings = dataclasses.replace(QUICK, drain_s=0.3)
    with proxied([engines[0].url], settings) as proxy, ThreadPoolExecutor(1) as pool:
        one = pool.submit(stream, proxy.url)
        until(lambda: engines[0].bodies, "it is there")
        proxy.server.handle_exit(15, None)
        status, events, _ = one.result()
        assert status == 200 and events[-1]["error"]["message"] == "the proxy is shutting down"
        proxy.thread.join(LONGEST_S)
        assert not proxy.thread.is_alive()


# TLS


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
def test_it_speaks_tls(engines: list[FakeEngine], tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = (
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost "
        f"-addext subjectAltName=IP:127.0.0.1 -out {certificate} -keyout {key}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    settings = dataclasses.replace(QUICK, certificate=certificate, certificate_key=key)
    with proxied([engines[0].url], settings) as proxy:
        url = f"https://127.0.0.1:{proxy.port}/v1/completions"
        context = ssl.create_default_context(cafile=str(certificate))
        with httpx.Client(verify=context, trust_env=False, timeout=LONGEST_S) as client:
            assert client.post(url, json=BODY).text.count("data: {") == TOKENS
        with pytest.raises(httpx.HTTPError):
            httpx.post(url, json=BODY, trust_env=False, timeout=2.0)
        idle(proxy)
    with pytest.raises(RoutingError, match="TLS: "):
        make_server(
            Assumptions.of(router("min-load"), DEVICE), ["http://a:1"],
            dataclasses.replace(settings, certificate_key=certificate),
        )  # fmt: skip
    with pytest.raises(RoutingError, match="goes with its key"):
        dataclasses.replace(QUICK, certificate=certificate)
    listen(dataclasses.replace(QUICK, port=0)).close()


# The log of requests


def test_requests_are_logged(engines: list[FakeEngine], tmp_path: Path) -> None:
    log = RequestLog(tmp_path / "requests.jsonl")
    began_s = time.time()
    with proxied([engines[0].url], log=log) as proxy:
        stream(proxy.url, vllm_xargs={"ttft_slo_s": 20.0, "tpot_slo_s": 1.0}, priority=2)
        engines[0].mood = "cut"
        stream(proxy.url)
        idle(proxy)
        until(lambda: len((tmp_path / "requests.jsonl").read_text().splitlines()) == 2, "both are logged")
    log.close()
    one, two = (json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines())
    assert began_s - 1 < one["at_s"] < time.time() and 0 <= one["arrival_s"] < 60
    later = RequestLog(tmp_path / "requests.jsonl")  # a proxy that is started again goes on with it
    later.write(time.monotonic(), {name: one[name] for name in one if name not in ("arrival_s", "at_s")})
    later.close()
    assert json.loads((tmp_path / "requests.jsonl").read_text().splitlines()[2])["arrival_s"] > one["arrival_s"]
    assert len(read_trace(tmp_path / "requests.jsonl").prompt_tokens) == 3, "it is a trace"
    assert (one["output_tokens"], one["tokens_in_time"], one["outcome"], one["priority"]) == (
        TOKENS, TOKENS, "finished", 2,
    )  # fmt: skip
    assert 0 < one["ttft_s"] <= one["e2e_s"] and (one["ttft_slo_s"], one["engine"], one["router"]) == (
        20.0, "0", "min-load",
    )  # fmt: skip
    assert (two["outcome"], two["output_tokens"], two["adapter"]) == ("broken", 2, "")
    assert "a b c" not in (tmp_path / "requests.jsonl").read_text()


def test_the_engine_counts_the_prompt_and_its_errors_are_no_broken_streams(
    engines: list[FakeEngine], tmp_path: Path
) -> None:
    path = tmp_path / "requests.jsonl"
    log = RequestLog(path)
    engines[0].usage = {"prompt_tokens": 77}
    with proxied([engines[0].url], dataclasses.replace(QUICK, retries=0), log=log) as proxy:
        stream(proxy.url)
        httpx.post(f"{proxy.url}/v1/completions", json={"prompt": "a b c d"}, trust_env=False)
        for engines[0].mood in ("error", "busy"):
            post(proxy)
        until(lambda: len(path.read_text().splitlines()) == 4, "all are logged")
    log.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["prompt_tokens"] for line in lines] == [77, 77, 2, 2]
    assert [line["outcome"] for line in lines] == ["finished", "finished", "error", "error"]


@pytest.mark.parametrize(("at", "in_time"), [
    ([(0.5, 1)], 1), ([(1.5, 1)], 0), ([(0.5, 1), (1.2, 3)], 3), ([(2.0, 12)], 2),
    ([(1.0, 1), (1.1, 1), (1.3, 1)], 2),
])  # fmt: skip
def test_tokens_in_time(at: list[tuple[float, int]], in_time: int) -> None:
    """TTFT SLO 1 s, TPOT SLO 0.1 s: token k is due at 1 + k / 10."""
    measured = Measured(10.0, RequestTerms(5, 1.0, 0.1))
    for late_s, count in at:
        measured.token(10.0 + late_s - 1e-9, count)
    assert measured.in_time == in_time and measured.tokens == sum(count for _, count in at)
