"""What the router and the proxy cost before live engines, in CPU time: other work on the machine does not count.

    python -m experiments.engines.proxy_cost

A decision: of each router, with so many engines, each with some requests in its queue record and some that decode. The
proxy: CPU seconds of its process for streamed requests of a trivial engine, with few tokens and with many; the
difference is what a token costs, and what is left is what a request costs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np

MODULE = "experiments.engines.proxy_cost"
HOST = "127.0.0.1"
DEVICE = "h100-llama3-8b"
ENGINES = (2, 16, 64)
RECORD, RUNNING = 8, 32  # requests of each engine without and with a token
DECISIONS = 300
REQUESTS, AT_ONCE = 300, 16
FEW, MANY = 4, 64  # tokens
BETWEEN_S = 0.005  # between an engine's tokens: without, several would come to the proxy together
STARTS_WITHIN_S = 60.0


def decision_us(name: str, engines: int) -> tuple[float, float]:
    """(median, 99th percentile) of a decision and its noting, in us of CPU."""
    from servegym.adapters.routing.live import LiveEngine, LiveRouter
    from servegym.adapters.routing.rows import RequestTerms
    from servegym.baselines.registry import router
    from servegym.latency_models.profile import load_profile

    estimator, rng = load_profile(DEVICE).estimator, np.random.default_rng(0)
    live = LiveRouter(router(name), [LiveEngine(str(e), estimator, 30_000) for e in range(engines)], (0.05,))

    def asked() -> RequestTerms:
        return RequestTerms(int(rng.integers(50, 2000)), 1.0, 0.05)

    for e in range(engines):
        for k in range(RECORD + RUNNING):
            r = live.arrive(0.0, asked())
            live.send(0.0, r, e)
            if k < RUNNING:
                live.token(0.0, r)
    took_s = []
    for k in range(DECISIONS):
        r, now_s = live.arrive(k * 1e-3, asked()), k * 1e-3
        begin_s = time.thread_time()
        live.route(now_s, r)
        took_s.append(time.thread_time() - begin_s)
        live.leave(now_s, r, finished=False)
    return median(took_s) * 1e6, float(np.percentile(took_s, 99)) * 1e6


async def body_of(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """The body of a request, whose head is given in lower case: of a known length, or in chunks; {}: it has none."""
    lengths = [int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
    if lengths:
        return await reader.readexactly(lengths[0])
    if b"\r\ntransfer-encoding: chunked" not in head:
        return b"{}"
    parts = []
    while size := int(await reader.readline(), 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return b"".join(parts)


async def engine(port: int) -> None:
    """A server that answers everything with a stream of as many tokens as the body's max_tokens, each in a write."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                body = await body_of(reader, head.lower())
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                )
                for k in range(int(json.loads(body).get("max_tokens", 0))):
                    event = b'data: {"id":"cmpl-0123456789","choices":[{"index":0,"text":" token %d"}]}\n\n' % k
                    writer.write(b"%x\r\n%s\r\n" % (len(event), event))
                    await writer.drain()
                    await asyncio.sleep(BETWEEN_S)
                writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, HOST, port)
    await server.serve_forever()


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, user and system."""
    import os

    with open(f"/proc/{pid}/stat") as stream:
        fields = stream.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def send(url: str, tokens: int) -> None:
    """REQUESTS streams, AT_ONCE at a time."""
    import httpx

    body = {"prompt": list(range(500)), "max_tokens": tokens, "stream": True}
    left = iter(range(REQUESTS))
    async with httpx.AsyncClient(timeout=60.0, trust_env=False) as client:

        async def one_after_the_other() -> None:
            for _ in left:
                answer = await client.post(f"{url}/v1/completions", json=body)
                assert answer.text.count("data: {") == tokens and answer.text.rstrip().endswith("[DONE]")

        await asyncio.gather(*[one_after_the_other() for _ in range(AT_ONCE)])


@contextlib.contextmanager
def engines_at(ports: Sequence[int]) -> Iterator[list[str]]:
    """Trivial engines in processes of their own; their URLs."""
    engines = [subprocess.Popen([sys.executable, "-P", "-m", MODULE, str(port)]) for port in ports]
    try:
        yield [f"http://{HOST}:{port}" for port in ports]
    finally:
        for process in engines:
            process.kill()
            process.wait()


def wait_for(url: str) -> None:
    """Until a server answers there."""
    import httpx

    end_s = time.monotonic() + STARTS_WITHIN_S
    while True:
        try:
            httpx.get(url, trust_env=False)
            return
        except httpx.HTTPError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.2)


def cost_of(pid: int, url: str) -> dict[str, float]:
    """CPU time of this process for a request and for a token that is streamed by way of it to `url`."""
    took_s = {}
    asyncio.run(send(url, FEW))  # what is done once
    for tokens in (FEW, MANY):
        begin_s = cpu_s(pid)
        asyncio.run(send(url, tokens))
        took_s[tokens] = (cpu_s(pid) - begin_s) / REQUESTS
    token_s = (took_s[MANY] - took_s[FEW]) / (MANY - FEW)
    return {"token_us": token_s * 1e6, "request_ms": (took_s[FEW] - FEW * token_s) * 1e3}


def proxy_cost(port: int) -> dict[str, float]:
    """CPU time of the proxy for a request and for a token."""
    with engines_at([port + 1, port + 2]) as urls:
        backends = [part for url in urls for part in ("--backend", url)]
        options = ["--router", "gorouting", "--device", DEVICE, "--port", str(port), *backends]
        with subprocess.Popen([sys.executable, "-P", "-m", "servegym", "proxy", *options]) as proxy:
            try:
                wait_for(f"http://{HOST}:{port}/health")
                return cost_of(proxy.pid, f"http://{HOST}:{port}")
            finally:
                proxy.kill()


def main(port: int = 18190) -> None:
    """Print what was measured as JSON."""
    from servegym.baselines.registry import router_names

    figures: dict[str, Any] = {"decision_us": {}}
    for engines in ENGINES:
        for name in router_names():
            middle, high = decision_us(name, engines)
            figures["decision_us"][f"{name} x {engines}"] = {"p50": round(middle, 1), "p99": round(high, 1)}
    figures["proxy"] = {key: round(value, 3) for key, value in proxy_cost(port).items()}
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(engine(int(sys.argv[1])))
    else:
        main()
