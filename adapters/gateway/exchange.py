"""One HTTP request on its way through a gateway: the gateway's messages about it, and the answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, MutableMapping
from typing import Any

from starlette.datastructures import Headers

from servegym.adapters.gateway.answers import (
    NAMESPACE,
    SERVED,
    headers_of,
    metadata_of,
    pieces,
    plain,
    refusal,
    subset_of,
    to_endpoint,
    with_slos,
)
from servegym.adapters.gateway.wire import BODY_MODES
from servegym.adapters.routing.asking import CHAT, COMPLETIONS, GONE, job_of
from servegym.adapters.routing.backends import Backend
from servegym.adapters.routing.clients import Client
from servegym.adapters.routing.discovery import endpoint_of
from servegym.adapters.routing.jobs import ClientGone, Failure, Job, Send
from servegym.adapters.routing.operation import Operation
from servegym.adapters.routing.proxy import RETRY_AFTER_S, Proxy
from servegym.adapters.routing.refusals import Refused
from servegym.adapters.routing.relay import EVENTS, usage_of
from servegym.adapters.routing.request_terms import parse
from servegym.adapters.routing.streams import EventCounter

DUPLEX, BUFFERED, NONE = (BODY_MODES.index(mode) for mode in ("FULL_DUPLEX_STREAMED", "BUFFERED", "NONE"))


async def _nothing(message: MutableMapping[str, Any]) -> None:
    """Send nothing, as only the gateway sends anything to its client."""


class Exchange:
    """A request, from its headers to the end of its answer.

    `Proxy.serve` handles the request like those of the proxy; only the work at an engine is the gateway's, and the
    gateway's messages about it update the router.
    """

    def __init__(self, proxy: Proxy, operation: Operation):
        self._proxy, self._operation = proxy, operation
        self._request_mode = self._response_mode = DUPLEX  # the protocol's default
        self._headers = Headers()
        self._path = ""  # of a request that the router routes; "" for any other
        self._subset: set[str] | None = None
        self._body: list[bytes] = []
        self._length = 0
        self._arrived_s = 0.0
        self._sent = False  # True: the gateway has the endpoint
        self._backend: Backend | None = None
        self._job: Job | None = None
        self._row: int | None = None  # while it is at an engine
        self._serving: asyncio.Task[None] | None = None
        self._chosen: asyncio.Future[Backend] | None = None
        self._over: asyncio.Future[bool] | None = None
        self._status = 0
        self._events: EventCounter | None = None
        self._answer: list[bytes] = []
        self._answer_length = 0

    async def answers(self, messages: AsyncIterable[Any]) -> AsyncGenerator[Any, None]:
        """Answer the gateway's messages (ProcessingRequest) with ProcessingResponse messages."""
        try:
            async for message in messages:
                kind = message.WhichOneof("request")
                if kind is None:
                    continue
                try:
                    for answer in await getattr(self, f"_{kind}")(message, getattr(message, kind)):
                        yield answer
                except Refused as refused:
                    if self._job is None:
                        self._proxy.metrics.requests.labels(refused.outcome).inc()
                    yield refusal(refused)
                    return
        finally:
            await self._leave()

    # The request

    async def _request_headers(self, message: Any, part: Any) -> list[Any]:
        self._arrived_s = self._proxy.now_s()
        if message.HasField("protocol_config"):
            self._request_mode = message.protocol_config.request_body_mode
            self._response_mode = message.protocol_config.response_body_mode
        self._headers, self._subset = with_slos(headers_of(part)), subset_of(message)
        path = self._headers.get(":path", "").partition("?")[0]
        if self._headers.get(":method") == "POST" and not part.end_of_stream:
            self._path = next((one for one in (CHAT, COMPLETIONS) if path.endswith(one)), "")
        if not self._path:
            return await self._go("request_headers")
        if self._request_mode not in (DUPLEX, BUFFERED):
            mode = dict(enumerate(BODY_MODES)).get(self._request_mode, self._request_mode)
            raise Refused(
                500, f"the gateway's request_body_mode is {mode}; it should be FULL_DUPLEX_STREAMED or BUFFERED", "mode"
            )
        if self._response_mode == NONE:
            raise Refused(
                500, "the gateway's response_body_mode is NONE; it should be FULL_DUPLEX_STREAMED or STREAMED", "mode"
            )
        return [] if self._request_mode == DUPLEX else [plain("request_headers")]

    async def _request_body(self, message: Any, part: Any) -> list[Any]:
        if self._sent:
            return self._echo("request_body", part, self._request_mode)
        self._body.append(part.body)
        self._length += len(part.body)
        most = self._proxy.settings.max_body_bytes
        if self._length > most:
            raise Refused(413, f"the body is longer than {most} bytes", "too_large")
        if self._request_mode == BUFFERED:
            return await self._go("request_body")
        return await self._go("request_headers", end=True) if part.end_of_stream else []

    async def _request_trailers(self, message: Any, part: Any) -> list[Any]:
        first = [] if self._sent else await self._go("request_headers")
        return [*first, plain("request_trailers")]

    async def _go(self, kind: str, end: bool = False) -> list[Any]:
        """Answer this message with the endpoint. end: the body is complete, and no trailers follow."""
        body = b"".join(self._body)
        backend = await self._ask(body) if self._path else self._emptiest()
        self._backend, self._sent = backend, True
        changed = self._job.body if self._job is not None and self._job.body != body else None
        streamed = bool(self._path) and self._request_mode == DUPLEX
        first = to_endpoint(kind, endpoint_of(backend.url), changed, streamed)
        rest = pieces("request_body", body if changed is None else changed, end) if streamed else []
        self._body.clear()
        return [first, *rest]

    def _allowed(self) -> list[Backend]:
        """Return the engines that may be chosen. Raises Refused if there is none."""
        subset = self._subset
        found = [
            one for one in self._proxy.backends.all if one.takes and (subset is None or endpoint_of(one.url) in subset)
        ]
        if not found:
            which = "" if subset is None else " of those that the gateway names"
            raise Refused(503, f"no engine{which} takes requests", "unavailable", RETRY_AFTER_S)
        return found

    def _emptiest(self) -> Backend:
        """Return the engine with the fewest requests, for a request that is not routed (such as a list of models)."""
        requests = self._proxy.router.snapshots["requests"]
        return min(self._allowed(), key=lambda one: int(requests[one.index]))

    async def _ask(self, body: bytes) -> Backend:
        """Return the engine to which the router sends the request. Raises Refused."""
        proxy, chat = self._proxy, self._path == CHAT
        document = parse(body, chat)
        client = Client("anybody")  # the gateway decides which clients may use the engines
        job = await job_of(self._headers, proxy, self._operation, client, body, document, chat, self._arrived_s)
        allowed = {one.index for one in self._allowed()}
        job.excluded |= {one.index for one in proxy.backends.all if one.index not in allowed}
        client.admit(self._arrived_s, job.asked.prompt_tokens)
        loop = asyncio.get_running_loop()
        self._job, self._chosen, self._over = job, loop.create_future(), loop.create_future()
        self._serving = asyncio.create_task(self._serve(job))
        either: set[asyncio.Future[Any]] = {self._serving, self._chosen}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._chosen.done():
            return self._chosen.result()
        await self._serving  # raises Refused
        raise Refused(503, "the request was broken off", "unavailable", RETRY_AFTER_S)

    async def _serve(self, job: Job) -> None:
        outcome = "crash"  # an error of the picker itself, which should not happen
        try:
            outcome = await self._proxy.serve(job, _nothing, self._at_engine)
        except Refused as refused:
            outcome = refused.outcome
            raise
        except (ClientGone, asyncio.CancelledError):
            outcome = GONE
        finally:
            job.client.leave()
            self._proxy.ended(job, outcome)

    async def _at_engine(self, job: Job, r: int, backend: Backend, send: Send) -> bool:
        """Do the work at an engine for `Proxy.serve`: wait for the end of the gateway's answer."""
        del send
        assert self._chosen is not None and self._over is not None
        proxy = self._proxy
        proxy.metrics.handling_s.observe(proxy.now_s() - job.measured.arrived_s - job.waited_s)
        self._row, job.started = r, True  # no other engine can be tried, as the gateway asks only once
        self._chosen.set_result(backend)
        try:
            return await self._over
        finally:
            self._row = None

    # Its answer

    async def _response_headers(self, message: Any, part: Any) -> list[Any]:
        headers = headers_of(part)
        status = headers.get(":status", "")
        self._status = int(status) if status.isdigit() else 0
        self._note_served(metadata_of(message, NAMESPACE, SERVED))
        if self._status == 200 and headers.get("content-type", "").lower().startswith(EVENTS):
            self._events = EventCounter()
        if part.end_of_stream:
            self._ended()
        return [plain("response_headers")]

    async def _response_body(self, message: Any, part: Any) -> list[Any]:
        if self._row is not None:
            self._take(part.body)
            if part.end_of_stream:
                self._ended()
        return self._echo("response_body", part, self._response_mode)

    async def _response_trailers(self, message: Any, part: Any) -> list[Any]:
        self._ended()
        return [plain("response_trailers")]

    def _note_served(self, endpoint: Any) -> None:
        """Update the router if the gateway reports that another endpoint has served the request."""
        if self._row is None or self._backend is None or not isinstance(endpoint, str):
            return
        for one in self._proxy.backends.all:
            if not one.gone and endpoint_of(one.url) == endpoint and one is not self._backend:
                self._proxy.router.send(self._proxy.now_s(), self._row, one.index)
                self._backend = one

    def _take(self, data: bytes) -> None:
        """Take a part of the answer."""
        assert self._job is not None and self._row is not None and self._backend is not None
        self._backend.heard_s = time.monotonic()
        if self._events is None:
            self._answer_length += len(data)
            if self._answer_length <= self._proxy.settings.max_answer_bytes:  # of a longer one tokens are not counted
                self._answer.append(data)
            return
        count = self._events.feed(data)
        self._job.complete, self._job.measured.prompt_tokens = self._events.done, self._events.prompt_tokens
        if count:
            self._proxy.metrics.tokens.labels(self._backend.name).inc(count)
            if self._proxy.came(self._job, self._row, count):
                self._proxy.news()

    def _ended(self) -> None:
        """Handle the end of the answer."""
        if self._row is None or self._over is None or self._over.done():
            return
        assert self._job is not None and self._backend is not None
        events, status = self._events, self._status
        if status >= 500:
            self._proxy.backends.suspect(self._backend)
            self._over.set_exception(Failure("error", f"the engine answered {status}", status))
        elif events is not None and not events.done and not events.failed:
            self._over.set_exception(Failure("died", "the engine ended its stream before the answer was complete"))
        else:
            if status == 200 and events is None:
                tokens, self._job.measured.prompt_tokens = usage_of(b"".join(self._answer))
                self._proxy.came(self._job, self._row, tokens)
            self._over.set_result(status < 400 and (events is None or not events.failed))

    async def _leave(self) -> None:
        """Handle the end of the gateway's messages: the answer is over, or the client is gone."""
        if self._serving is None:
            return
        if self._over is not None and not self._over.done():
            if self._row is None:
                self._serving.cancel()
            elif self._events is not None and self._events.done:
                self._over.set_result(True)
            else:
                self._over.set_exception(ClientGone())
        await asyncio.gather(self._serving, return_exceptions=True)

    def _echo(self, kind: str, part: Any, mode: int) -> list[Any]:
        """Pass on a part of a body."""
        return pieces(kind, part.body, part.end_of_stream) if mode == DUPLEX else [plain(kind)]
