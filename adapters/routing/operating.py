"""Makes the HTTP routes of a proxy's operator: health, metrics, and changes of the policy."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from servegym.adapters.routing.asking import read_body
from servegym.adapters.routing.backends import as_text
from servegym.adapters.routing.metrics import ProxyMetrics
from servegym.adapters.routing.operation import Operation
from servegym.adapters.routing.proxy import Proxy
from servegym.adapters.routing.refusals import Refusal, Refused, error_body
from servegym.errors import ServegymError

LOOK_S = 0.25  # interval of measuring the event loop's delay
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def operating_routes(proxy: Proxy, operation: Operation) -> list[Route]:
    """Make the routes /health, /ready, /metrics, and /admin/policy if there is an admin key."""

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

    return [
        Route("/health", health, methods=["GET"]),
        Route("/ready", ready, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
        *([Route("/admin/policy", policy, methods=["GET", "PUT"])] if operation.admin.digest else []),
    ]


@contextlib.asynccontextmanager
async def running(proxy: Proxy, operation: Operation) -> AsyncIterator[None]:
    """Check engines, and look them up if sources are given, inside the with block."""
    proxy.loras.headers = as_text(operation.engine_headers)
    proxy.backends.start()
    tasks = [asyncio.create_task(work) for work in (_watch_loop(proxy.metrics), *operation.works(proxy))]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await proxy.backends.stop()


async def _watch_loop(metrics: ProxyMetrics) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + LOOK_S
        await asyncio.sleep(LOOK_S)
        metrics.loop_lag_s.observe(max(0.0, loop.time() - due_s))


async def http_error(request: Request, error: Exception) -> Response:
    """Convert an error of the framework to the form of OpenAI's interface."""
    del request
    assert isinstance(error, HTTPException)
    body = error_body(error.status_code, error.detail, "invalid_request_error")
    return Response(body, error.status_code, error.headers, media_type="application/json")
