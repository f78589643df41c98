"""The proxy's HTTP interface: OpenAI's completions, models, health and metrics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope
from starlette.types import Send as AsgiSend

from servegym.adapters.routing.asking import CHAT, COMPLETIONS, GONE, job_of, read_body
from servegym.adapters.routing.backends import as_text
from servegym.adapters.routing.jobs import ClientGone, Job
from servegym.adapters.routing.loras import MODELS
from servegym.adapters.routing.operating import http_error, operating_routes, running
from servegym.adapters.routing.operation import Operation
from servegym.adapters.routing.proxy import Proxy
from servegym.adapters.routing.refusals import Refusal, Refused
from servegym.adapters.routing.relay import Relay
from servegym.adapters.routing.request_terms import parse

END_S = 1.0  # time for an engine to end a stream after its last event


class Answer:
    """Responds to a request with an engine's answer, as it comes, or with a refusal."""

    def __init__(self, proxy: Proxy, job: Job):
        self._proxy, self._job = proxy, job

    async def __call__(self, scope: Scope, receive: Receive, send: AsgiSend) -> None:
        """Serve the request; cancel it at the engine if its client goes away."""
        serving = asyncio.create_task(self._proxy.serve(self._job, send, Relay(self._proxy)))
        leaving = asyncio.create_task(_until_gone(receive))
        outcome = "crash"  # an error of the proxy itself, which should not happen
        try:
            await asyncio.wait({serving, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if self._job.complete and not serving.done():  # its client has all of it, and need not wait for the end
                await asyncio.wait({serving}, timeout=END_S)
            outcome = serving.result() if serving.done() else GONE
        except Refused as refused:
            outcome = refused.outcome
            await Refusal(refused)(scope, receive, send)
        except ClientGone:
            outcome = GONE
            abort(scope)
        finally:
            for task in (serving, leaving):
                task.cancel()
            await asyncio.gather(serving, leaving, return_exceptions=True)
            self._job.client.leave()
            self._proxy.ended(self._job, outcome)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def abort(scope: Scope) -> None:
    """Drop a client's connection at once, with all that is still to be written."""
    drop = scope.get("state", {}).get("abort")
    if drop is not None:
        drop()


def make_app(proxy: Proxy, operation: Operation) -> Starlette:
    """Make the ASGI application of the proxy."""

    async def complete(request: Request) -> Any:
        arrived_s, chat = proxy.now_s(), request.url.path == CHAT
        name, whole = "", False
        try:
            client = operation.clients.of_key(request.headers.get("authorization"))
            name = client.name
            body = await read_body(request, proxy)
            whole = True
            document = parse(body, chat)
            job = await job_of(request.headers, proxy, operation, client, body, document, chat, arrived_s)
            client.admit(arrived_s, job.asked.prompt_tokens)
        except Refused as refused:
            proxy.metrics.requests.labels(refused.outcome).inc()
            if name:
                proxy.metrics.by_client.labels(name, refused.outcome).inc()
            return Refusal(refused, read=whole)
        return Answer(proxy, job)

    async def models(request: Request) -> Any:
        try:
            operation.clients.of_key(request.headers.get("authorization"))
        except Refused as refused:
            return Refusal(refused)
        if cards := proxy.loras.cards():
            return JSONResponse({"object": "list", "data": cards})
        for backend in [one for one in proxy.backends.all if one.takes]:
            body = await proxy.backends.get(backend, MODELS, as_text(operation.engine_headers))
            if body is not None:
                return Response(body, media_type="application/json")
        proxy.metrics.requests.labels("unavailable").inc()
        return Refusal(Refused(503, "no engine answers", "unavailable"))

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        del app
        async with running(proxy, operation):
            yield

    app = Starlette(
        routes=[
            Route(COMPLETIONS, complete, methods=["POST"]),
            Route(CHAT, complete, methods=["POST"]),
            Route(MODELS, models, methods=["GET"]),
            *operating_routes(proxy, operation),
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: http_error},
    )
    app.state.proxy = proxy
    return app
