"""Runs a proxy: its socket, and a server that closes slow connections."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import ssl
import threading
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from servegym.adapters.routing.app import make_app
from servegym.adapters.routing.assumptions import Assumptions
from servegym.adapters.routing.operation import Operation
from servegym.adapters.routing.proxy import Proxy
from servegym.adapters.routing.request_log import RequestLog
from servegym.adapters.routing.settings import ProxySettings
from servegym.errors import RoutingError

LONGEST_HEADERS = 64 * 2**10  # bytes
SPARE_CONNECTIONS = 256  # for checks, metrics, and idle ones
KEEP_ALIVE_S = 30  # longer than clients usually keep idle connections, as closing one under a request makes it fail
GRACE_S = 5  # for final messages of requests that were broken off
BACKLOG = 2048


def listen(settings: ProxySettings) -> socket.socket:
    """Make a socket that listens at the proxy's address. Raises RoutingError if it cannot."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((settings.host, settings.port))
        bound.listen(BACKLOG)  # an address in use is detected only here
    except OSError as error:
        bound.close()
        where = f"{settings.host}:{settings.port}"
        if error.errno == errno.EADDRINUSE:
            raise RoutingError(f"{where} is in use; name another port, or 0 for any free one") from None
        raise RoutingError(f"cannot listen on {where}: {error.strerror or error}") from None
    return bound


def without_chunks(cycle: RequestResponseCycle) -> Any:
    """Return `cycle.send` for a client of HTTP/1.0, which has no chunked encoding (RFC 9112, section 6.1).

    An answer of unknown length ends with its connection.
    """
    send, unknown = cycle.send, False

    async def send_as_is(message: Any) -> None:
        nonlocal unknown
        if message["type"] == "http.response.start":
            unknown = all(name.lower() != b"content-length" for name, _ in message["headers"])
            cycle.chunked_encoding = False if unknown else None
        elif unknown:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return send_as_is


def protocol(read_s: float) -> type[HttpToolsProtocol]:
    """Make HTTP/1.1 with limits on the headers of a request: read_s seconds, and LONGEST_HEADERS bytes."""

    class Protocol(HttpToolsProtocol):
        def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None):
            super().__init__(config, server_state, {**app_state, "abort": self._abort}, _loop)

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._waiting: asyncio.TimerHandle | None = self.loop.call_later(read_s, self._abort)
            self._waited = 0  # bytes of headers that are not complete

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._waiting is not None:
                self._waited += len(data)
                if self._waited > LONGEST_HEADERS and not self.transport.is_closing():
                    self.send_400_response("The headers are too long.")

        # Between requests the server's own timeout of idle connections applies, until headers begin.

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if self._waiting is None:
                self._waiting = self.loop.call_later(read_s, self._abort)

        def on_headers_complete(self) -> None:
            self._end_waiting()
            super().on_headers_complete()
            if self.parser.get_http_version() == "1.0":
                self.cycle.send = without_chunks(self.cycle)  # type: ignore[method-assign]

        def _end_waiting(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
            self._waiting, self._waited = None, 0

        def connection_lost(self, exc: Exception | None) -> None:
            self._end_waiting()
            super().connection_lost(exc)

        def _abort(self) -> None:
            self.transport.abort()

    return Protocol


class DrainingServer(uvicorn.Server):
    """A server that ends in three steps: /ready fails; new requests are refused; requests left after `drain_s` are
    cancelled.

    SIGTERM starts with the first step, SIGINT (Ctrl-C) with the second; a second SIGINT ends it at once. SIGHUP reads
    the operator's files again.
    """

    def __init__(self, config: uvicorn.Config, proxy: Proxy, operation: Operation):
        super().__init__(config)
        self._proxy, self._operation = proxy, operation
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGHUP"):
            self._loop.add_signal_handler(signal.SIGHUP, self.reread)
        await super().startup(sockets)

    def reread(self) -> None:
        """Read the policy and the clients again."""
        task = asyncio.get_running_loop().create_task(self._operation.reread(self._proxy))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        notice_s = self._proxy.settings.drain_notice_s
        begins = not self._proxy.draining
        self._proxy.draining = True
        self._proxy.metrics.draining.set(1)
        if sig == signal.SIGTERM and notice_s > 0 and begins and self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.call_later, notice_s, super().handle_exit, sig, frame)
        else:
            super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._proxy.draining = True
        last = asyncio.get_running_loop().call_later(self._proxy.settings.drain_s, self._proxy.end)
        try:
            await super().shutdown(sockets)
        finally:
            last.cancel()


def make_server(
    assumptions: Assumptions,
    urls: list[str],
    settings: ProxySettings,
    operation: Operation | None = None,
    log: RequestLog | None = None,
) -> DrainingServer:
    """Make a server for a socket of `listen`: `server.run([socket])`.

    Raises RoutingError for a certificate that cannot be used.
    """
    operation = operation or Operation()
    proxy = Proxy(assumptions, urls, settings, log)
    check_certificate(settings)
    return server_of(
        make_app(proxy, operation), proxy, operation,
        ssl_certfile=settings.certificate, ssl_keyfile=settings.certificate_key,
    )  # fmt: skip


def check_certificate(settings: ProxySettings) -> None:
    """Raise RoutingError if the certificate cannot be used."""
    if settings.certificate is None or settings.certificate_key is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.certificate, settings.certificate_key)
    except (OSError, ssl.SSLError) as error:
        raise RoutingError(
            f"TLS: {settings.certificate}, {settings.certificate_key}: {error.strerror or error}"
        ) from None


def server_of(app: Starlette, proxy: Proxy, operation: Operation, **more: Any) -> DrainingServer:
    """Make the server of a proxy's application. more: arguments of uvicorn's configuration."""
    settings = proxy.settings
    config = uvicorn.Config(
        app,
        http=protocol(settings.read_s),
        loop="auto",  # uvloop, where it is installed
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(settings.drain_s) + GRACE_S,
        limit_concurrency=settings.max_in_flight + settings.max_queued + SPARE_CONNECTIONS,
        **more,
    )
    config.load()
    return DrainingServer(config, proxy, operation)
