"""Runs an endpoint picker: its gRPC server, and an HTTP server for its operator."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from servegym.adapters.gateway.exchange import Exchange
from servegym.adapters.gateway.wire import (
    CHECK,
    NOT_SERVING,
    PROCESS,
    SERVING,
    HealthCheckRequest,
    HealthCheckResponse,
    ProcessingRequest,
    ProcessingResponse,
)
from servegym.adapters.routing.assumptions import Assumptions
from servegym.adapters.routing.operating import http_error, operating_routes, running
from servegym.adapters.routing.operation import Operation
from servegym.adapters.routing.proxy import Proxy
from servegym.adapters.routing.request_log import RequestLog
from servegym.adapters.routing.server import DrainingServer, check_certificate, server_of
from servegym.adapters.routing.settings import ProxySettings
from servegym.errors import RoutingError

LIVENESS, READINESS = "liveness", "readiness"  # services of health checks; "" is the first
SPARE_BYTES = 2**20  # of a message, beside a body


def grpc_server(proxy: Proxy, operation: Operation) -> grpc.aio.Server:
    """Make the services that a gateway calls. Needs a running event loop."""

    async def process(messages: Any, context: Any) -> AsyncIterator[Any]:
        del context
        async with contextlib.aclosing(Exchange(proxy, operation).answers(messages)) as answers:
            async for answer in answers:
                yield answer

    async def check(message: Any, context: Any) -> Any:
        if message.service not in ("", LIVENESS, READINESS, PROCESS[0]):
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {message.service!r}")
        well = message.service in ("", LIVENESS) or not proxy.draining
        return HealthCheckResponse(status=SERVING if well else NOT_SERVING)

    server = grpc.aio.server(
        options=[
            ("grpc.so_reuseport", 0),  # an address in use is an error
            ("grpc.max_receive_message_length", proxy.settings.max_body_bytes + SPARE_BYTES),
            ("grpc.max_send_message_length", proxy.settings.max_body_bytes + SPARE_BYTES),
        ]
    )
    processing = grpc.stream_stream_rpc_method_handler(
        process, ProcessingRequest.FromString, ProcessingResponse.SerializeToString
    )
    checking = grpc.unary_unary_rpc_method_handler(
        check, HealthCheckRequest.FromString, HealthCheckResponse.SerializeToString
    )
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, {method: handler})
         for (service, method), handler in ((PROCESS, processing), (CHECK, checking))]
    )  # fmt: skip
    return server


def bind(server: grpc.aio.Server, settings: ProxySettings) -> int:
    """Make the server listen; returns its port. Raises RoutingError."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    where = f"{host}:{settings.port}"
    try:
        if settings.certificate is None or settings.certificate_key is None:
            return int(server.add_insecure_port(where))
        pair = (settings.certificate_key.read_bytes(), settings.certificate.read_bytes())
        return int(server.add_secure_port(where, grpc.ssl_server_credentials([pair])))
    except (RuntimeError, OSError) as error:
        raise RoutingError(f"cannot listen on {where}: {error}") from None


def make_picker(
    assumptions: Assumptions,
    urls: list[str],
    settings: ProxySettings,
    operation: Operation | None = None,
    log: RequestLog | None = None,
    started: Callable[[int], None] = lambda port: None,
) -> DrainingServer:
    """Make an HTTP server for a socket of `routing.server.listen`, with /health, /ready and /metrics.

    The gRPC server listens at the address of `settings`, and ends with it. started: called with its port.
    Raises RoutingError for a certificate that cannot be used.
    """
    operation = operation or Operation()
    check_certificate(settings)
    proxy = Proxy(assumptions, urls, settings, log)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        del app
        async with running(proxy, operation):
            server = grpc_server(proxy, operation)
            port = bind(server, settings)
            await server.start()
            started(port)
            try:
                yield
            finally:
                stopping = asyncio.create_task(server.stop(settings.drain_s))
                await asyncio.wait({stopping})

    app = Starlette(
        routes=operating_routes(proxy, operation), lifespan=lifespan, exception_handlers={HTTPException: http_error}
    )
    app.state.proxy = proxy
    return server_of(app, proxy, operation)
