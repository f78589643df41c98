"""Sends a workload to a live endpoint: each request at its arrival, or after the end of the one that it follows."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import numpy as np

from servegym.adapters.replay.bodies import Bodies
from servegym.adapters.replay.front import Front, Limits, Turn
from servegym.adapters.replay.records import (
    CUT_OFF,
    FAILED,
    FINISHED,
    INTERRUPTED,
    REFUSED,
    TIMED_OUT,
    Record,
    Replayed,
)
from servegym.adapters.replay.streams import StreamError, TokenStream, error_text
from servegym.errors import ReplayError
from servegym.simulator.features.session_dependencies import NO_TURN, SessionDependencies
from servegym.simulator.inputs.workload import Workload

Progress = Callable[[int, int], None]  # (requests that have ended, requests in all)
HEADERS = {"content-type": "application/json", "accept": "text/event-stream", "accept-encoding": "identity"}
MOST_READY = 256  # requests due at time 0 whose bodies and clients are made before the start
LEAD_S = 0.05  # between the start and time 0, so that a request due at once is not late


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """The server to which requests are sent.

    url: of the server, with or without /v1. timeout_s: time limit of a request, its stream included. connect_timeout_s:
    time limit of a connection. headers: sent with each request (an API key). Raises ReplayError.
    """

    url: str
    timeout_s: float = 600.0
    connect_timeout_s: float = 10.0
    headers: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ReplayError(f"endpoint {self.url!r}: a URL begins with http:// or https://")
        for name in ("timeout_s", "connect_timeout_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ReplayError(f"endpoint {self.url}: {name} is {getattr(self, name)}; it should be above 0")

    @property
    def base(self) -> str:
        """The URL up to and with /v1."""
        url = self.url.rstrip("/")
        return url if url.endswith("/v1") else f"{url}/v1"

    def model(self) -> str:
        """Return the name of the first served model. Raises ReplayError if the server names none."""
        where = f"{self.base}/models"
        try:
            answer = httpx.get(where, timeout=self.connect_timeout_s, headers=list(self.headers), trust_env=False)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ReplayError(f"endpoint {self.url} cannot be reached: {reason_of(error)}") from None
        try:
            return str(answer.raise_for_status().json()["data"][0]["id"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError):
            raise ReplayError(f"{where} answered {answer.status_code}{self._why_none(answer)}") from None

    def _why_none(self, answer: httpx.Response) -> str:
        """Say why an answer has no name of a model, and what would be right."""
        if answer.status_code in (401, 403):
            sent = any(name == "authorization" for name, _ in self.headers)
            return ": it refuses the key in OPENAI_API_KEY" if sent else ": it wants a key; set OPENAI_API_KEY"
        if answer.status_code == 503:
            return f": {error_of_body(answer.content)}; it should have an engine that is up"
        return " without the name of a model; it should be an OpenAI-compatible server"


def replay(
    workload: Workload,
    endpoint: Endpoint,
    bodies: Bodies,
    progress: Progress | None = None,
    limits: Limits | None = None,
) -> Replayed:
    """Send each request when it is due, and read all streams to their ends.

    A request is due at its `arrival_s`, or, if it follows another, `think_s` after the end of that one, successful or
    not; but not before the limits have room for it (None: no limits). Each request ends with a status of
    `servegym.adapters.replay.records`, at the latest after the endpoint's timeout. Ctrl-C ends all unfinished requests,
    and what was received until then is returned (`interrupted`).
    """
    sending = Sending(workload, endpoint, bodies, progress or (lambda *_: None), limits or Limits())
    interrupted = asyncio.run(sending.run())
    return Replayed(sending.records, sending.now_s(), interrupted, sending.limits)


class Sending:
    """A replay under way."""

    def __init__(
        self, workload: Workload, endpoint: Endpoint, bodies: Bodies, progress: Progress, limits: Limits
    ) -> None:
        self.workload, self.endpoint, self.bodies, self.limits = workload, endpoint, bodies, limits
        self.records = [Record() for _ in range(len(workload))]
        self._progress, self._front = progress, Front(workload, limits)
        at_once = int(np.count_nonzero(workload.table["arrival_s"][: workload.known] == 0.0))
        most = (each for each in (limits.clients, limits.max_concurrency) if each is not None)
        self._at_once = min(at_once, MOST_READY, *most)
        self._bodies = {request: bodies.body(workload, request) for request in range(self._at_once)}  # made beforehand
        self._start_s = math.inf
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = 0
        self._request_ended = asyncio.Event()

    def now_s(self) -> float:
        """Return the seconds since the replay began."""
        return time.monotonic() - self._start_s

    async def run(self) -> bool:
        """Send the workload; returns whether it was interrupted."""
        clients = Clients(self.endpoint, self._at_once)
        self._start_s = time.monotonic() + LEAD_S
        try:
            while len(self._tasks) < len(self.records):
                turn, body = await self._next()
                self._front.send(turn)
                record = self.records[turn.request]
                record.came_s, record.due_s = turn.came_s, turn.due_s
                record.end(INTERRUPTED)  # replaced when it ends
                self._tasks.append(asyncio.create_task(self._serve(clients, turn.request, body)))
            await asyncio.gather(*self._tasks)
            return False
        except asyncio.CancelledError:  # asyncio's exception for Ctrl-C
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            return True
        finally:
            await clients.close()

    async def _next(self) -> tuple[Turn, bytes]:
        """Wait until the next request is due; returns it with its body, which is made before."""
        made, body = NO_TURN, b""
        while True:
            self._request_ended.clear()
            turn = self._front.next()
            if turn is None:
                await self._request_ended.wait()
                continue
            if turn.request != made:
                made = turn.request
                body = self._bodies.pop(made, b"") or self.bodies.body(self.workload, made)
            wait_s = turn.due_s - self.now_s()
            if wait_s <= 0:
                return turn, body
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._request_ended.wait()  # a request that followed it may be due earlier

    async def _serve(self, clients: Clients, request: int, body: bytes) -> None:
        """Send a request, read its answer to the end, and tell the front."""
        record, wanted = self.records[request], int(self.workload.table["output_tokens"][request])
        try:
            await _send(clients, self.endpoint, body, record, wanted, self._start_s)
        finally:
            record.ended_s = self.now_s()
            self._front.end(request, record.ended_s)
            self._ended += 1
            self._progress(self._ended, len(self.records))
            self._request_ended.set()


class Clients:
    """A pool of httpx clients, each used by one request at a time.

    A single client looks through all of its connections at every request: with 300 open ones that blocks the event loop
    for seconds, and tokens would be received late. ready: number of clients made at once, as making one takes time too.
    """

    def __init__(self, endpoint: Endpoint, ready: int = 0):
        self.endpoint = endpoint
        self._verify = ssl.create_default_context()
        self._free: list[httpx.AsyncClient] = []
        self._all: list[httpx.AsyncClient] = []
        self._free.extend(self._new() for _ in range(ready))

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[httpx.AsyncClient]:
        """Lend a client for exclusive use."""
        client = self._free.pop() if self._free else self._new()
        try:
            yield client
        finally:
            self._free.append(client)

    def _new(self) -> httpx.AsyncClient:
        # `_send` limits the time of the whole request. HTTP proxies that the environment names are not used.
        timeout = httpx.Timeout(None, connect=self.endpoint.connect_timeout_s)
        headers = list(self.endpoint.headers)
        client = httpx.AsyncClient(verify=self._verify, timeout=timeout, headers=headers, trust_env=False)
        self._all.append(client)
        return client

    async def close(self) -> None:
        for client in self._all:
            await client.aclose()


async def _send(clients: Clients, endpoint: Endpoint, body: bytes, record: Record, wanted: int, start_s: float) -> None:
    """Send one request, read its answer to the end, and write the result to the record."""
    stream = TokenStream(record, wanted)
    try:
        async with asyncio.timeout(endpoint.timeout_s), clients.one() as client:
            record.sent_s = time.monotonic() - start_s
            async with client.stream("POST", f"{endpoint.base}/completions", content=body, headers=HEADERS) as answer:
                record.http_status = answer.status_code
                if answer.status_code != httpx.codes.OK:
                    record.end(REFUSED, f"HTTP {answer.status_code}: {error_of_body(await answer.aread())}")
                    return
                async for data in answer.aiter_raw():
                    stream.feed(data, time.monotonic() - start_s)
        _end(record, stream, wanted)
    except TimeoutError:
        record.end(TIMED_OUT, f"no end after {endpoint.timeout_s:g} s")
    except (httpx.HTTPError, StreamError) as error:
        if len(record.token_s) == wanted:
            record.end(FINISHED)
        else:
            record.end(FAILED, reason_of(error))


def _end(record: Record, stream: TokenStream, wanted: int) -> None:
    """Write to the record how a stream ended."""
    if len(record.token_s) == wanted:
        record.end(FINISHED)
    elif stream.done:
        record.end(CUT_OFF, "the server ended the stream before all requested tokens")
    else:
        record.end(FAILED, "the stream broke off")


def error_of_body(text: bytes) -> str:
    """Return the message in the body of an HTTP error."""
    try:
        document: Any = json.loads(text)
    except ValueError:
        return " ".join(text[:200].decode(errors="replace").split())
    return error_text(document)


def reason_of(error: Exception) -> str:
    """Describe an error in one line, without Python's errno; httpx's often have no message."""
    return " ".join(re.sub(r"^\[Errno -?\d+\] ", "", str(error)).split()) or type(error).__name__


def timed(workload: Workload, speed: float = 1.0) -> Workload:
    """Shift the first arrival to 0 and divide arrivals and think times by `speed`; SLOs stay.

    Raises ReplayError for a speed that is not above 0.
    """
    if not 0 < speed < math.inf:
        raise ReplayError(f"speed is {speed}; it should be above 0 (1: the times of the workload)")
    arrival_s = workload.table["arrival_s"]
    faster = workload.replace(arrival_s=(arrival_s - arrival_s[0]) / speed)
    if faster.turns is None:
        return faster
    return dataclasses.replace(faster, turns=SessionDependencies(faster.turns.after, faster.turns.think_s / speed))
