"""Fake engines: OpenAI servers in threads, which do what a test's script says; and a proxy before them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from servegym.adapters.routing.assumptions import Assumptions
from servegym.adapters.routing.operation import Operation
from servegym.adapters.routing.request_log import RequestLog
from servegym.adapters.routing.request_terms import DEFAULTS
from servegym.adapters.routing.server import listen, make_server
from servegym.adapters.routing.settings import ProxySettings
from servegym.adapters.vllm.terms import Defaults
from servegym.baselines.registry import router
from servegym.simulator.features.adapters import Adapters

HOST = "127.0.0.1"
TOKENS = 5
STARTED_WITHIN_S = 20.0
LONGEST_S = 30.0
BASE: list[dict[str, Any]] = [{"id": "fake"}]


def until(condition: Callable[[], Any], what: str) -> None:
    """Wait until this is so; an AssertionError where it takes too long."""
    end_s = time.monotonic() + LONGEST_S
    while not condition():
        assert time.monotonic() < end_s, f"it took too long until {what}"
        time.sleep(0.005)


class FakeEngine:
    """An engine that streams TOKENS tokens, unless `mood` says otherwise.

    moods: well, slow, slower (a token each 50 or 200 ms), die-mid (closes after 2 tokens), cut (ends the stream
    properly, without [DONE]), hang (never answers), half (of an answer that is no stream), hang-mid (2 tokens, then it
    and its checks hang), error, busy, event-error, redirect, endless, refuse-health (but it serves).
    """

    def __init__(self) -> None:
        self.mood = "well"
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.cancelled = 0
        self.metrics = ""
        self.usage: dict[str, int] = {}  # of an answer, beside its tokens
        self.ids: list[int] | None = None  # of every prompt, as /tokenize says them
        self.cards: list[dict[str, Any]] | None = BASE  # of its models; None: it wants a key
        self.keys: list[str | None] = []  # that came with requests for them
        app = Starlette(
            routes=[
                Route("/v1/completions", self.complete, methods=["POST"]),
                Route("/v1/chat/completions", self.complete, methods=["POST"]),
                Route("/v1/models", self.models),
                Route("/tokenize", self.tokenize, methods=["POST"]),
                Route("/health", self.health),
                Route("/metrics", self.say_metrics),
            ]
        )
        self.server = Served(app)

    @property
    def url(self) -> str:
        return self.server.url

    async def health(self, request: Request) -> Response:
        if self.mood.startswith("hang"):
            await asyncio.sleep(30)
        return PlainTextResponse("", 503 if self.mood == "refuse-health" else 200)

    async def models(self, request: Request) -> Response:
        self.keys.append(request.headers.get("authorization"))
        return JSONResponse({"object": "list", "data": self.cards}, 401 if self.cards is None else 200)

    async def tokenize(self, request: Request) -> Response:
        return JSONResponse({"count": 77} if self.ids is None else {"count": len(self.ids), "tokens": self.ids})

    async def say_metrics(self, request: Request) -> Response:
        return PlainTextResponse(self.metrics)

    async def complete(self, request: Request) -> Response:
        document = await request.json()
        self.bodies.append(document)
        self.headers.append(dict(request.headers))
        mood = self.mood
        if mood == "error":
            return JSONResponse({"error": {"message": "out of memory", "type": "internal", "code": 500}}, 500)
        if mood == "busy":
            return JSONResponse({"error": {"message": "busy", "type": "busy", "code": 429}}, 429)
        if mood == "redirect":
            return Response(status_code=307, headers={"location": "http://example.invalid/"})
        if mood == "hang":
            await asyncio.sleep(60)
        if mood == "half":
            return StreamingResponse(self.half(), media_type="application/json")
        if not document.get("stream"):
            await asyncio.sleep(0.05 if mood == "slow" else 0)
            usage = {"completion_tokens": TOKENS} | self.usage
            return JSONResponse({"choices": [{"text": "word " * TOKENS}], "usage": usage})
        return StreamingResponse(self.stream(mood), media_type="text/event-stream")

    async def half(self) -> AsyncIterator[bytes]:
        yield b'{"choices": ['
        await asyncio.sleep(60)

    async def stream(self, mood: str) -> AsyncIterator[bytes]:
        try:
            number = 0
            while number < TOKENS or mood == "endless":
                yield event({"choices": [{"index": 0, "text": f"word{number} "}]})
                number += 1
                if mood == "endless":
                    yield b": " + b"x" * 65536 + b"\n\n"
                    await asyncio.sleep(0.001)
                if mood.startswith("slow"):
                    await asyncio.sleep(0.2 if mood == "slower" else 0.05)
                if mood == "hang-mid" and number == 2:
                    await asyncio.sleep(60)
                if mood == "die-mid" and number == 2:
                    raise Died
                if mood == "event-error" and number == 2:
                    yield event({"error": {"message": "lost", "code": 500}})
                if mood == "cut" and number == 2:
                    return
            if self.usage:
                yield event({"choices": [], "usage": self.usage})
            yield b"data: [DONE]\n\n"
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise

    def stop(self) -> None:
        self.server.stop()


class Died(Exception):
    """Uvicorn closes the connection of an application that raises."""


def event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


class Served:
    """An application on a port of its own, in a thread; or a server that has been made, on a socket."""

    def __init__(self, app: Starlette | None, server: uvicorn.Server | None = None, bound: socket.socket | None = None):
        if bound is None:
            bound = socket.socket()
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((HOST, 0))
        self.proxy: Any = None
        self.socket, self.port = bound, bound.getsockname()[1]
        self.url = f"http://{HOST}:{self.port}"
        if server is None:
            assert app is not None
            server = uvicorn.Server(uvicorn.Config(app, log_level="critical", loop="asyncio", lifespan="off"))
        self.server = server
        self.server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self.thread = threading.Thread(target=lambda: self.server.run([self.socket]), daemon=True)
        self.thread.start()
        end_s = time.monotonic() + STARTED_WITHIN_S
        while not self.server.started:
            assert time.monotonic() < end_s, "the server should have started"
            time.sleep(0.005)

    def stop(self) -> None:
        self.server.force_exit = self.proxy is None  # a fake engine drops what it has
        self.server.should_exit = True
        self.thread.join(STARTED_WITHIN_S)
        assert not self.thread.is_alive(), "the server should have stopped"
        self.socket.close()


class Garbage:
    """A server that does not speak HTTP: each connection gets the same bytes, and is closed."""

    def __init__(self, data: bytes = b"\x00\x01\x02 nonsense\r\n\r\n"):
        self.socket = socket.create_server((HOST, 0))
        self.url = f"http://{HOST}:{self.socket.getsockname()[1]}"
        self.data = data
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.socket.accept()
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(1.0)
                    connection.recv(65536)
                    connection.sendall(self.data)

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


# Long enough for a machine that is busy with other things; a test that waits for one of these makes it shorter.
QUICK = ProxySettings(
    port=0, health_s=0.2, health_timeout_s=2.0, first_token_s=20.0, between_tokens_s=20.0, total_s=30.0, read_s=10.0,
    body_s=10.0, write_s=10.0, queue_s=10.0, connect_s=5.0, poll_s=0.0,
)  # fmt: skip


@contextlib.contextmanager
def proxied(
    urls: list[str], settings: ProxySettings = QUICK, policy: str = "min-load", defaults: Defaults | None = None,
    prefix_cache_tokens: int | None = None, operation: Operation | None = None, log: RequestLog | None = None,
    adapters: Adapters | None = None,
) -> Iterator[Served]:  # fmt: skip
    """A proxy before these, in a thread."""
    assumptions = dataclasses.replace(
        Assumptions.of(router(policy), "h100-llama3-8b"),
        defaults=defaults or DEFAULTS,
        prefix_cache_tokens=prefix_cache_tokens,
        adapters=adapters,
    )
    bound = listen(settings)
    server = make_server(assumptions, urls, settings, operation, log)
    served = Served(None, server, bound)
    served.proxy = server.config.app.state.proxy  # type: ignore[union-attr]
    try:
        yield served
    finally:
        served.stop()


def stream(url: str, **more: Any) -> tuple[int, list[Any], httpx.Headers]:
    """(status, events, headers) of a streamed completion. An event is JSON, or "[DONE]"."""
    body = {"model": "fake", "prompt": "a b c", "stream": True} | more
    events: list[Any] = []
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=LONGEST_S, trust_env=False) as response:
        text = "".join(response.iter_text())
    for line in text.split("\n"):
        if line.startswith("data: "):
            events.append(line[6:] if line[6:] == "[DONE]" else json.loads(line[6:]))
    return response.status_code, events, response.headers


def words(events: list[Any]) -> list[str]:
    return [one["choices"][0]["text"] for one in events if isinstance(one, dict) and "choices" in one]
