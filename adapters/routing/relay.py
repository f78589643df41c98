"""Sends a request to an engine, and passes its answer on as it comes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from typing import Any

import aiohttp
from aiohttp import ClientResponse
from yarl import URL

from servegym.adapters.routing.backends import Backend, as_text
from servegym.adapters.routing.jobs import ClientGone, Failure, Job, Send
from servegym.adapters.routing.proxy import Proxy
from servegym.adapters.routing.streams import EventCounter, prompt_tokens_in

# Headers of RFC 9110, section 7.6.1, and others about one connection or one encoding of the body.
HOP_BY_HOP = {
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"trailers", b"transfer-encoding", b"upgrade",
}  # fmt: skip
NOT_TO_ENGINES = HOP_BY_HOP | {b"host", b"content-length", b"accept-encoding", b"expect"}
NOT_TO_CLIENTS = HOP_BY_HOP | {b"content-length", b"date", b"server"}
EVENTS = "text/event-stream"


def passed_on(headers: Iterable[tuple[bytes, bytes]], dropped: set[bytes]) -> list[tuple[bytes, bytes]]:
    """Return the headers without those in `dropped` and those that the connection header names."""
    pairs = [(name.lower(), value) for name, value in headers]
    named = {token.strip().lower() for name, value in pairs if name == b"connection" for token in value.split(b",")}
    return [(name, value) for name, value in pairs if name not in dropped | named]


def usage_of(body: bytes) -> tuple[int, int | None]:
    """Read the tokens of an answer that was not streamed (1 without usage), and those of its prompt, from its usage."""
    try:
        usage = json.loads(body)["usage"]
        count = usage["completion_tokens"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return 1, None
    return count if type(count) is int and 0 < count < 2**24 else 1, prompt_tokens_in(usage)


class Opening:
    """Limits the number of requests that are being connected, as connecting a burst would exceed the timeout.

    `leave` admits the next one once this request is being written.
    """

    def __init__(self, room: asyncio.Semaphore):
        self._room, self._inside = room, False

    async def __aenter__(self) -> Opening:
        await self._room.acquire()
        self._inside = True
        return self

    async def __aexit__(self, *error: object) -> None:
        self.leave()

    def leave(self) -> None:
        if self._inside:
            self._inside = False
            self._room.release()


class Relay:
    """Does the work of `Proxy.serve` for one request."""

    def __init__(self, proxy: Proxy):
        self._proxy, self._settings, self._tried = proxy, proxy.settings, False

    async def __call__(self, job: Job, r: int, backend: Backend, send: Send) -> bool:
        """Have an engine serve row r. Returns whether the answer is complete and good. Raises Failure, ClientGone."""
        client, settings = self._proxy.backends.client, self._settings
        handled_s = self._proxy.now_s() - job.measured.arrived_s - job.waited_s
        if not self._tried:
            self._proxy.metrics.handling_s.observe(handled_s)
        self._tried = True
        try:
            async with Opening(self._proxy.opening) as opening, asyncio.timeout(settings.first_token_s) as deadline:
                response = await client.post(
                    URL(backend.url + job.path, encoded=True), data=job.body, headers=as_text(job.headers),
                    allow_redirects=False, trace_request_ctx=opening.leave,
                )  # fmt: skip
                try:
                    return await self._pass_on(response, deadline, job, r, backend, send)
                finally:
                    response.close()
        except aiohttp.ConnectionTimeoutError:  # the proxy itself may be overloaded: leave it to the checks
            raise Failure("connect", "no connection to the engine in time", counts=False) from None
        except TimeoutError:
            raise Failure("timeout", "the engine sent nothing in time", 504, again=False) from None
        except aiohttp.ClientConnectorError:
            raise Failure("connect", "no connection to the engine") from None
        except (aiohttp.ClientError, ConnectionError) as error:
            raise Failure("died", f"the engine broke off its answer ({type(error).__name__})") from None

    async def _pass_on(
        self, response: ClientResponse, deadline: asyncio.Timeout, job: Job, r: int, backend: Backend, send: Send
    ) -> bool:
        status = response.status
        headers = passed_on(response.raw_headers, NOT_TO_CLIENTS)
        headers.append((b"x-servegym-engine", backend.name.encode()))
        if status == 200 and response.headers.get("content-type", "").lower().startswith(EVENTS):
            return await self._stream(response, headers, deadline, job, r, backend, send)
        body = await self._whole(response, deadline)
        deadline.reschedule(None)  # the engine has done its part
        backend.heard_s = time.monotonic()
        headers.append((b"content-length", str(len(body)).encode()))
        if status >= 500 or status == 429:
            raise Failure("busy" if status == 429 else "error", f"the engine answered {status}", status,
                          (status, headers, body), counts=status >= 500)  # fmt: skip
        if not 200 <= status < 300 and status < 400:
            raise Failure("redirect", f"the engine answered {status}")
        proxy = self._proxy
        if status == 200:
            tokens, job.measured.prompt_tokens = usage_of(body)
            proxy.came(job, r, tokens)
        job.started = True
        await self._send(send, {"type": "http.response.start", "status": status, "headers": headers})
        await self._send(send, {"type": "http.response.body", "body": body})
        return status < 400

    async def _whole(self, response: ClientResponse, deadline: asyncio.Timeout) -> bytes:
        parts, length, loop = [], 0, asyncio.get_running_loop()
        async for part in response.content.iter_any():
            deadline.reschedule(loop.time() + self._settings.between_tokens_s)
            parts.append(part)
            length += len(part)
            if length > self._settings.max_answer_bytes:
                raise Failure("too-long", "the engine's answer is too long", again=False)
        return b"".join(parts)

    async def _stream(
        self, response: ClientResponse, headers: list[tuple[bytes, bytes]], deadline: asyncio.Timeout, job: Job, r: int,
        backend: Backend, send: Send,
    ) -> bool:  # fmt: skip
        proxy, events, between_s = self._proxy, EventCounter(), self._settings.between_tokens_s
        loop, tokens = asyncio.get_running_loop(), proxy.metrics.tokens.labels(backend.name)
        while data := await response.content.readany():
            backend.heard_s = time.monotonic()
            count = events.feed(data)
            job.complete, job.measured.prompt_tokens = events.done, events.prompt_tokens
            if count:
                tokens.inc(count)
                if proxy.came(job, r, count):
                    proxy.news()
            deadline.reschedule(None)  # no timeout for the engine while the client is being written to
            if not job.started:
                job.started = True
                await self._send(send, {"type": "http.response.start", "status": 200, "headers": headers})
            await self._send(send, {"type": "http.response.body", "body": data, "more_body": True})
            deadline.reschedule(loop.time() + between_s)
        if not events.done and not events.failed:
            raise Failure("died", "the engine ended its stream before the answer was complete")
        await self._send(send, {"type": "http.response.body", "body": b""})
        return not events.failed

    async def _send(self, send: Send, message: dict[str, Any]) -> None:
        """Send to the client. Raises ClientGone if the client does not read it in time."""
        try:
            async with asyncio.timeout(self._settings.write_s):
                await send(message)
        except (TimeoutError, OSError):
            raise ClientGone from None
