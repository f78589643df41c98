"""The proxy's HTTP interface: OpenAI's completions, models, health and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope
from starlette.types import Send as AsgiSend

from servegym.adapters.routing.backends import as_text
from servegym.adapters.routing.clients import Client
from servegym.adapters.routing.jobs import ClientGone, Job
from servegym.adapters.routing.metrics import ProxyMetrics
from servegym.adapters.routing.operation import Operation
from servegym.adapters.routing.proxy import Proxy
from servegym.adapters.routing.refusals import Refusal, Refused, error_body
from servegym.adapters.routing.relay import NOT_TO_ENGINES, Relay, passed_on
from servegym.adapters.routing.request_log import Measured
from servegym.adapters.routing.request_terms import BadBody, chunks_of, parse, prompt_tokens, request_terms_of
from servegym.errors import ServegymError

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
COUNT_TIMEOUT_S = 1.0
LOOK_S = 0.25  # between checks of how late the event loop is
END_S = 1.0  # for an engine to end a stream after its last event
GONE = "client-gone"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Answer:
    """What a request is answered with: an engine's answer as it comes, or a refusal."""

    def __init__(self, proxy: Proxy, job: Job):
        self._proxy, self._job = proxy, job

    async def __call__(self, scope: Scope, receive: Receive, send: AsgiSend) -> None:
        """Serve the request; where its client goes away, so does the request at the engine."""
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
    """The application that a server runs."""

    async def complete(request: Request) -> Any:
        arrived_s, chat = proxy.now_s(), request.url.path == CHAT
        name, whole = "", False
        try:
            client = operation.clients.of_key(request.headers.get("authorization"))
            name = client.name
            body = await read_body(request, proxy)
            whole = True
            document = parse(body, chat)
            job = await job_of(request, proxy, operation, client, body, document, chat, arrived_s)
            client.admit(arrived_s, job.asked.prompt_tokens)
        except Refused as refused:
            proxy.metrics.requests.labels(refused.outcome).inc()
            if name:
                proxy.metrics.by_client.labels(name, refused.outcome).inc()
            return Refusal(refused, read=whole)
        except BadBody as error:
            return _error(proxy.metrics, 400, str(error), "invalid_request_error")
        return Answer(proxy, job)

    async def models(request: Request) -> Any:
        try:
            operation.clients.of_key(request.headers.get("authorization"))
        except Refused as refused:
            return Refusal(refused)
        for backend in [one for one in proxy.backends.all if one.takes]:
            try:
                async with asyncio.timeout(proxy.settings.health_timeout_s):
                    headers = as_text(operation.engine_headers)
                    async with proxy.backends.client.get(f"{backend.url}/v1/models", headers=headers) as answer:
                        body = await answer.read()
                if answer.status == 200:
                    return Response(body, media_type="application/json")
            except (aiohttp.ClientError, OSError):
                continue
        return _error(proxy.metrics, 503, "no engine answers", "unavailable")

    async def health(request: Request) -> Response:
        del request
        return JSONResponse({"status": "ok"})

    async def ready(request: Request) -> Response:
        del request
        engines = {one.name: "up" if one.takes else "down" for one in proxy.backends.all if not one.gone}
        well = "up" in engines.values() and not proxy.draining
        return JSONResponse({"engines": engines, "draining": proxy.draining}, 200 if well else 503)

    async def policy(request: Request) -> Any:
        whole = request.method != "PUT"
        try:
            operation.admin.check(request.headers.get("authorization"))
            if request.method == "PUT":
                body = await read_body(request, proxy)
                whole = True
                await proxy.reload(lambda: operation.policy_of(body))
        except Refused as refused:
            return Refusal(refused, read=whole)
        except (ServegymError, ValueError) as error:
            message = f"the policy stays {proxy.router.policy.label}: {error}"
            return Response(error_body(400, message, "invalid_request_error"), 400, media_type="application/json")
        return JSONResponse({"router": proxy.router.policy.label})

    async def metrics(request: Request) -> Response:
        del request
        return Response(proxy.metrics.text(), media_type=PROMETHEUS)

    @contextlib.asynccontextmanager
    async def running(app: Starlette) -> AsyncIterator[None]:
        del app
        proxy.backends.start()
        tasks = [asyncio.create_task(work) for work in (_watch_loop(proxy.metrics), *operation.works(proxy))]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await proxy.backends.stop()

    app = Starlette(
        routes=[
            Route(COMPLETIONS, complete, methods=["POST"]),
            Route(CHAT, complete, methods=["POST"]),
            Route("/v1/models", models, methods=["GET"]),
            Route("/health", health, methods=["GET"]),
            Route("/ready", ready, methods=["GET"]),
            Route("/metrics", metrics, methods=["GET"]),
            *([Route("/admin/policy", policy, methods=["GET", "PUT"])] if operation.admin.digest else []),
        ],
        lifespan=running,
        exception_handlers={HTTPException: _http_error},
    )
    app.state.proxy = proxy
    return app


async def _watch_loop(metrics: ProxyMetrics) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + LOOK_S
        await asyncio.sleep(LOOK_S)
        metrics.loop_lag_s.observe(max(0.0, loop.time() - due_s))


async def _http_error(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, HTTPException)
    body = error_body(error.status_code, error.detail, "invalid_request_error")
    return Response(body, error.status_code, error.headers, media_type="application/json")


def _error(metrics: ProxyMetrics, status: int, message: str, kind: str) -> Response:
    metrics.requests.labels(kind).inc()
    return Response(error_body(status, message, kind), status, media_type="application/json")


async def read_body(request: Request, proxy: Proxy) -> bytes:
    """A request's body. Raises Refused where it is too long, or comes too slowly."""
    settings = proxy.settings
    too_long = Refused(413, f"the body is longer than {settings.max_body_bytes} bytes", "too_large")
    if int(request.headers.get("content-length", "0")) > settings.max_body_bytes:
        raise too_long
    parts, length, loop = [], 0, asyncio.get_running_loop()
    end_s = loop.time() + settings.body_s
    try:
        async with asyncio.timeout(settings.read_s) as deadline:
            async for part in request.stream():
                parts.append(part)
                length += len(part)
                if length > settings.max_body_bytes:
                    raise too_long
                deadline.reschedule(min(end_s, loop.time() + settings.read_s))
    except TimeoutError:
        raise Refused(408, "the body came too slowly", "timeout") from None
    except ClientDisconnect:
        raise Refused(400, "the connection was closed", GONE) from None
    return b"".join(parts)


async def job_of(
    request: Request,
    proxy: Proxy,
    operation: Operation,
    client: Client,
    body: bytes,
    document: dict[str, Any],
    chat: bool,
    arrived_s: float,
) -> Job:
    """What is to be done for a request."""
    settings, router = proxy.settings, proxy.router
    tokens = await _counted(proxy, operation, document, chat) if settings.count_by_engine else None
    if tokens is None:
        tokens = prompt_tokens(document, chat, settings.characters_per_token)
    asked, more, wrong = request_terms_of(document, request.headers, tokens, proxy.reader)
    proxy.metrics.malformed.inc(wrong)
    if more:  # engines read bodies only
        body = json.dumps(document | more).encode()
    chunks: list[int] = []
    if router.known.prefixes.sent.shape[1] > 0:
        chunks = chunks_of(document, chat, router.known.prefixes.chunk_tokens, settings.characters_per_token)
    dropped = NOT_TO_ENGINES | ({b"authorization"} if operation.clients.all or operation.engine_headers else set())
    headers = [*passed_on(request.headers.raw, dropped), (b"accept-encoding", b"identity"), *operation.engine_headers]
    path = CHAT if chat else COMPLETIONS
    return Job(path, body, headers, asked, chunks, client, Measured(arrived_s, asked))


async def _counted(proxy: Proxy, operation: Operation, document: dict[str, Any], chat: bool) -> int | None:
    """Tokens of a prompt as counted by an engine; None: no engine answers in time, or no count is needed."""
    prompt = document.get("prompt")
    if not chat and not isinstance(prompt, str):
        return None
    asked = {"model": document.get("model")} | ({"messages": document["messages"]} if chat else {"prompt": prompt})
    up = [one for one in proxy.backends.all if one.takes]
    if not up:
        return None
    try:
        async with asyncio.timeout(COUNT_TIMEOUT_S):
            headers = as_text(operation.engine_headers)
            async with proxy.backends.client.post(f"{up[0].url}/tokenize", json=asked, headers=headers) as answer:
                count = json.loads(await answer.read())["count"]
        return count if type(count) is int and 0 < count < 2**24 else None
    except (aiohttp.ClientError, OSError, ValueError, LookupError, TypeError):
        return None
