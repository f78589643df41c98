"""What a proxy adds to each request and each token, under load, and which requests it loses.

    python -m experiments.engines.proxy_load

200 clients stream at once from four engines that are well, one that is dead (no connection) and one that is silent (it
takes connections and says nothing), all six in the router's list. Of the clients 20 read slowly and 10 leave in the
middle. Engines write a token every 750 ms, whatever the load, and say when; clients and engines run on one clock, so
what a router adds is the difference to clients that ask the engines themselves. Everything is on this machine; what
else it has to do is in the latencies, but not in the CPU time.

Routers: the proxy with round-robin and with GoRouting; nginx and HAProxy, round-robin, where they are installed. Each
is run twice in turns; figures are means of the runs. A request is lost where its client stayed and did not get
all of its tokens.
"""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from experiments.engines.proxy_cost import cpu_s
from servegym.evaluation.markdown import narrow_header, row

HOST = "127.0.0.1"
DEVICE = "h100-llama3-8b"
WELL = 4
CLIENTS, REQUESTS, TOKENS, BETWEEN_S = 200, 2, 24, 0.75
SLOW, LEAVING = 20, 10  # of the clients
SLOW_S = 0.3  # between reads of a slow one
ROUNDS = 2
KEYS = ("to_engine_p50", "to_engine_p99", "token_p50", "token_p99", "cpu")
STARTS_WITHIN_S, ENDS_WITHIN_S = 60.0, 90.0
PORT = 18300
NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 2048; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream engines {{ {servers} }}
  server {{
    listen {host}:{port};
    location / {{
      proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
      proxy_connect_timeout 10s; proxy_read_timeout 20s;
      proxy_next_upstream error timeout non_idempotent; proxy_next_upstream_tries 3;
    }}
  }}
}}
"""
HAPROXY = """
defaults
  mode http
  timeout connect 10s
  timeout client 60s
  timeout server 20s
  timeout check 5s
  retries 2
  option redispatch 1
  option http-no-delay
  retry-on conn-failure empty-response response-timeout
frontend f
  bind {host}:{port}
  default_backend engines
backend engines
  balance roundrobin
  option httpchk GET /health
  default-server inter 2s fall 3
{servers}
"""


# Engines


async def engines(port: int) -> None:
    """Those that are well, each at a port of its own, and the silent one at the port after them."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                came_s = time.monotonic()
                if head.startswith(b"GET"):
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                    continue
                lines = head.lower().split(b"\r\n")
                await reader.readexactly(next(int(line[15:]) for line in lines if line.startswith(b"content-length:")))
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                )
                for k in range(TOKENS):
                    choice = {"index": 0, "text": " token", "came_s": came_s, "sent_s": time.monotonic()}
                    event = b"data: " + json.dumps({"id": f"cmpl-{k:06}", "choices": [choice]}).encode() + b"\n\n"
                    writer.write(b"%x\r\n%s\r\n" % (len(event), event))
                    await writer.drain()
                    await asyncio.sleep(BETWEEN_S)
                writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
                await writer.drain()
        writer.close()

    async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    servers = [await asyncio.start_server(answer, HOST, port + k, backlog=1024) for k in range(WELL)]
    servers.append(await asyncio.start_server(nothing, HOST, port + WELL, backlog=1024))
    await asyncio.gather(*[server.serve_forever() for server in servers])


# Clients


class Seen:
    """What clients have seen. to_engine_s: from sending a request until the engine has it; token_s: of each token."""

    def __init__(self) -> None:
        self.to_engine_s: list[float] = []
        self.token_s: list[float] = []
        self.asked = self.lost = 0
        self.why: dict[str, int] = {}

    def lose(self, why: str) -> None:
        self.lost += 1
        self.why[why] = self.why.get(why, 0) + 1


async def ask(port: int, seen: Seen, slow: bool, leaves: bool) -> None:
    """One request over a connection of its own."""
    body = json.dumps({"model": "m", "prompt": list(range(500)), "max_tokens": TOKENS, "stream": True}).encode()
    sent_s, tokens = time.monotonic(), 0
    try:
        async with asyncio.timeout(ENDS_WITHIN_S):
            reader, writer = await asyncio.open_connection(HOST, port, limit=2**12 if slow else 2**16)
            try:
                head = f"POST /v1/completions HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: application/json\r\n"
                writer.write(f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
                status = await reader.readline()
                async for line in reader:
                    now_s = time.monotonic()
                    if line.startswith(b"data: {"):
                        event = json.loads(line[6:])
                        if "choices" not in event:
                            return seen.lose(event["error"]["message"])
                        choice, tokens = event["choices"][0], tokens + 1
                        if not slow:
                            seen.token_s.append(now_s - choice["sent_s"])
                        if tokens == 1:
                            seen.to_engine_s.append(choice["came_s"] - sent_s)
                        if leaves and tokens == TOKENS // 2:
                            return None
                        if slow:
                            await asyncio.sleep(SLOW_S)
                    if line.startswith(b"data: [DONE]"):
                        break
                if tokens < TOKENS:
                    seen.lose(status.decode(errors="replace").strip() or "nothing came")
            finally:
                writer.close()
    except (TimeoutError, OSError) as error:
        seen.lose(type(error).__name__)


async def load(ports: list[int]) -> Seen:
    """All clients at once, each one request after the other."""
    seen = Seen()

    async def client(number: int) -> None:
        await asyncio.sleep(number * TOKENS * BETWEEN_S / CLIENTS)
        for k in range(REQUESTS):
            seen.asked += 1
            leaves = SLOW <= number < SLOW + LEAVING
            await ask(ports[(number + k) % len(ports)], seen, number < SLOW, leaves)

    await asyncio.gather(*[client(number) for number in range(CLIENTS)])
    return seen


# Routers


@contextlib.contextmanager
def running(command: list[str], port: int) -> Iterator[int]:
    """The number of a process that listens at this port."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        asyncio.run(_listens(port))
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def used_s(pid: int | None) -> float:
    """CPU time so far of a process and of those it has started."""
    if pid is None:
        return 0.0
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return cpu_s(pid) + sum(cpu_s(int(child)) for child in children)


async def _listens(port: int) -> None:
    async with asyncio.timeout(STARTS_WITHIN_S):
        while True:
            try:
                _, writer = await asyncio.open_connection(HOST, port)
                return writer.close()
            except OSError:
                await asyncio.sleep(0.1)


def commands(port: int, behind: list[int], folder: Path) -> dict[str, list[str]]:
    """How each router is started at a port before these."""
    urls = [part for one in behind for part in ("--backend", f"http://{HOST}:{one}")]
    options = ["--device", DEVICE, "--port", str(port), *urls, "--router"]
    proxy = [sys.executable, "-P", "-m", "servegym", "proxy", *options]
    found = {f"servegym, {name}": [*proxy, name] for name in ("round-robin", "gorouting")}
    where = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
    if nginx := shutil.which("nginx", path=where):
        servers = " ".join(f"server {HOST}:{one};" for one in behind)
        (folder / "nginx.conf").write_text(NGINX.format(folder=folder, host=HOST, port=port, servers=servers))
        found["nginx"] = [nginx, "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    if haproxy := shutil.which("haproxy", path=where):
        servers = "\n".join(f"  server e{one} {HOST}:{one} check" for one in behind)
        (folder / "haproxy.cfg").write_text(HAPROXY.format(host=HOST, port=port, servers=servers))
        found["haproxy"] = [haproxy, "-db", "-f", str(folder / "haproxy.cfg")]
    return found


def figures(seen: Seen, router_s: float) -> dict[str, Any]:
    """Of one run; times in ms, and the router's CPU time in ms a request."""

    def ms(values: list[float], percent: float) -> float:
        return float(np.percentile(values, percent) * 1e3) if values else float("nan")

    return {
        "requests": seen.asked, "lost": seen.lost, "why": seen.why, "cpu": router_s / seen.asked * 1e3,
        "to_engine_p50": ms(seen.to_engine_s, 50), "to_engine_p99": ms(seen.to_engine_s, 99),
        "token_p50": ms(seen.token_s, 50), "token_p99": ms(seen.token_s, 99),
    }  # fmt: skip


def measured(port: int = PORT) -> dict[str, list[dict[str, Any]]]:
    """Figures of each run, by router; "none": clients ask the engines that are well."""
    well, silent, dead, at = [port + 1 + k for k in range(WELL)], port + 1 + WELL, port + 2 + WELL, port
    runs: dict[str, list[dict[str, Any]]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        running([sys.executable, "-P", "-m", __spec__.name, "engines", str(port + 1)], silent),
    ):
        routers = commands(at, [*well[:2], dead, silent, *well[2:]], Path(folder))
        for turn in range(ROUNDS):
            names = ["none", *routers]
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                start = contextlib.nullcontext() if name == "none" else running(routers[name], at)
                with start as pid:
                    before_s = used_s(pid)
                    seen = asyncio.run(load(well if name == "none" else [at]))
                    runs.setdefault(name, []).append(figures(seen, used_s(pid) - before_s))
                print(f"{name}: {runs[name][-1]}", file=sys.stderr, flush=True)
    return runs


def main() -> None:
    """Print what was measured as JSON, and as a table for the page."""
    runs = measured()
    print(json.dumps(runs, indent=2))
    heads = "router", "lost", "to the engine p50", "p99", "a token p50", "p99", "CPU a request"
    print("", *narrow_header(*heads), sep="\n")
    for name, of in runs.items():
        lost, asked = sum(run["lost"] for run in of), sum(run["requests"] for run in of)
        middle = [mean(run[key] for run in of) for key in KEYS]
        print(row(name, f"{lost} of {asked}", *(f"{value:.1f} ms" for value in middle)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["engines"]:
        asyncio.run(engines(int(sys.argv[2])))
    else:
        main()
