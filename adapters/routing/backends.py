"""Checks the engines behind a proxy, and reads what they report."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import aiohttp

from servegym.adapters.routing.kv_events import AllBlocksCleared, Event, address_of, follow
from servegym.adapters.routing.settings import ProxySettings
from servegym.errors import RoutingError

LOG = logging.getLogger("servegym.proxy")
LARGEST_ANSWER = 8 * 2**20  # bytes
FIRST_BACKOFF_S = 1.0
SOON_S = 0.05
IDLE_S = 3.0
WELL, UNWELL, SILENT = range(3)  # result of a check: healthy, unhealthy, no answer
USAGE = re.compile(
    rb"^(?:vllm:(?:kv|gpu)_cache_usage_perc|sglang:token_usage)(?:\{[^}]*\})? ([0-9.eE+-]+)", re.MULTILINE
)
BLOCKS = re.compile(rb'\bnum_gpu_blocks="(\d+)"')
BLOCK_TOKENS = re.compile(rb'\bblock_size="(\d+)"')


def as_text(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Return the headers in the HTTP client's form."""
    return [(name.decode("ascii", "replace"), value.decode("utf-8", "replace")) for name, value in headers]


async def _headers_sent(session: object, context: Any, sent: object) -> None:
    """Call a request's `trace_request_ctx` once its headers are sent."""
    del session, sent
    if context.trace_request_ctx is not None:
        context.trace_request_ctx()


class Attempt:
    """A request at an engine. lost: whether it was cancelled because its engine is gone."""

    def __init__(self, task: asyncio.Task[bool]):
        self.task = task
        self.lost = False


class Backend:
    """An engine's address and state. It is closed after too many failures in a row, and opened by a successful check.

    leaving: it is no longer listed: it finishes its requests and gets no more. models: cards of the models that it
    serves, by name; None: not known.
    """

    def __init__(self, index: int, url: str, up: bool = True):
        self.index, self.url, self.name = index, url, str(index)
        self.up, self.leaving = up, False
        self.failures = 0  # failed requests in a row
        self.backoff_s = FIRST_BACKOFF_S if up else SOON_S
        self.heard_s = -1.0  # when its last byte came
        self.models: dict[str, dict[str, Any]] | None = None
        self.attempts: set[Attempt] = set()
        self.closing = asyncio.Event()  # wakes the checks

    @property
    def takes(self) -> bool:
        """Whether it gets requests."""
        return self.up and not self.leaving

    @property
    def gone(self) -> bool:
        """Whether its index is free for another engine."""
        return self.leaving and not self.attempts


class Backends:
    """Runs the tasks that check all engines.

    changed(index): is called when an engine has been opened or closed. lost(index): when it is gone, with its requests.
    memory(index, total_blocks, block_tokens, free): with its KV memory; the first two may be None; free: a share.
    published(index, events): with its KV events; None: they cannot be followed. It may raise RoutingError.
    readers: make further tasks for each engine.
    """

    def __init__(
        self,
        urls: list[str],
        settings: ProxySettings,
        changed: Callable[[int], None],
        lost: Callable[[int], None],
        memory: Callable[[int, int | None, int | None, float], None],
        published: Callable[[int, list[Event] | None], None],
    ):
        self.all = [Backend(index, url) for index, url in enumerate(urls)]
        self._settings = settings
        self._changed, self._lost, self._memory, self._published = changed, lost, memory, published
        self.client: aiohttp.ClientSession
        self.readers: list[Callable[[Backend], Coroutine[Any, Any, None]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start the checks. Needs a running event loop."""
        tracing = aiohttp.TraceConfig()
        tracing.on_request_headers_sent.append(_headers_sent)
        # Idle connections are dropped before servers do (uvicorn: after 5 s): a request on one that is being closed
        # would look like an engine that has died.
        self.client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._settings.connect_s),
            cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False, trace_configs=[tracing],
            skip_auto_headers=("user-agent", "accept", "content-type"),
        )  # fmt: skip
        for backend in self.all:
            self._watch(backend)

    def join(self, url: str) -> Backend:
        """Add an engine at a free index, or a new one. It gets requests once a check succeeds."""
        index = next((one.index for one in self.all if one.gone), len(self.all))
        backend = Backend(index, url, up=False)
        self.all[index : index + 1] = [backend]
        self._watch(backend)
        return backend

    def _watch(self, backend: Backend) -> None:
        works = [self._keep_checking(backend), *(read(backend) for read in self.readers)]
        if self._settings.poll_s > 0:
            works.append(self._keep_reading(backend))
        if self._settings.kv_events_port > 0:
            works.append(self._keep_following(backend))
        for work in works:
            self._keep(work)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.client.close()

    def succeeded(self, backend: Backend) -> None:
        """Record that an engine has answered a request."""
        backend.failures = 0
        if backend.up:
            backend.backoff_s = FIRST_BACKOFF_S

    def failed(self, backend: Backend, refused: bool) -> None:
        """Record that a request has failed at an engine. refused: whether there was no connection."""
        backend.failures += 1
        if backend.up and (refused or backend.failures >= self._settings.health_failures):
            self._close(backend, "no connection" if refused else f"{backend.failures} requests failed in a row")

    def suspect(self, backend: Backend) -> None:
        """Close an engine now if it refuses connections, as a request is reported to have failed there."""
        self._keep(self._close_if_refusing(backend))

    async def _close_if_refusing(self, backend: Backend) -> None:
        try:
            async with asyncio.timeout(self._settings.health_timeout_s):
                async with self.client.get(f"{backend.url}/health", allow_redirects=False):
                    return
        except aiohttp.ClientConnectorError:
            self.failed(backend, refused=True)
        except (aiohttp.ClientError, OSError):
            return  # it may only be slow, which the regular checks will find

    def _close(self, backend: Backend, why: str) -> None:
        LOG.warning("engine %s (%s) gets no more requests: %s", backend.name, backend.url, why)
        backend.up = False
        backend.closing.set()
        self._changed(backend.index)

    async def _keep_checking(self, backend: Backend) -> None:
        failed_s: deque[float] = deque(maxlen=self._settings.health_failures)  # when the latest failed checks began
        while not backend.gone:
            if backend.up:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(backend.closing.wait(), self._settings.health_s)
            if not backend.up:
                backend.closing.clear()
                await asyncio.sleep(backend.backoff_s)
                backend.backoff_s = min(2 * backend.backoff_s, self._settings.longest_backoff_s)
            started_s = time.monotonic()
            health = await self._health_of(backend)
            if health == WELL:
                failed_s.clear()
                if not backend.up:
                    LOG.warning("engine %s (%s) is healthy", backend.name, backend.url)
                    backend.up, backend.failures = True, 0
                    self._changed(backend.index)
                continue
            failed_s.append(started_s)
            if len(failed_s) < self._settings.health_failures:
                continue
            # An engine that goes on sending tokens is slow to answer, not gone.
            silent = health == SILENT and backend.heard_s < failed_s[0]
            if backend.up and (health == UNWELL or silent):
                self._close(backend, f"{len(failed_s)} checks failed in a row")
            if silent:  # also without requests: it may come back with nothing in its caches
                self._lost(backend.index)

    async def _health_of(self, backend: Backend) -> int:
        try:
            async with asyncio.timeout(self._settings.health_timeout_s):
                async with self.client.get(f"{backend.url}/health", allow_redirects=False) as response:
                    return WELL if response.status < 500 else UNWELL
        except (aiohttp.ClientError, OSError):  # a TimeoutError is an OSError
            return SILENT

    async def _keep_following(self, backend: Backend) -> None:
        """Follow the KV events of an engine until it is gone, or publishes an event that cannot be read."""
        address = address_of(backend.url, self._settings.kv_events_port)

        def received(events: list[Event]) -> None:
            self._published(backend.index, events)

        def missed() -> None:
            LOG.warning("engine %s (%s): KV events were lost; earlier ones are forgotten", backend.name, address)
            self._published(backend.index, [AllBlocksCleared()])

        following = asyncio.create_task(follow(address, received, missed))
        try:
            while not (backend.gone or following.done()):
                await asyncio.wait([following], timeout=self._settings.health_s)
            if following.done():
                await following
        except RoutingError as error:
            LOG.warning("engine %s (%s): %s; the router goes by what it sends there", backend.name, address, error)
            self._published(backend.index, None)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _keep_reading(self, backend: Backend) -> None:
        """Read the KV memory that vLLM or SGLang reports in /metrics; an engine that reports none is asked seldom."""
        while not backend.gone:
            reported = backend.up and await self._read_memory(backend)
            await asyncio.sleep(self._settings.poll_s if reported or not backend.up else 60 * self._settings.poll_s)

    async def get(self, backend: Backend, path: str, headers: Sequence[tuple[str, str]] = ()) -> bytes | None:
        """Return what an engine has at a path; None: nothing, or not in time, or too much."""
        body = b""
        try:
            async with asyncio.timeout(self._settings.health_timeout_s):
                url = f"{backend.url}{path}"
                async with self.client.get(url, headers=list(headers), allow_redirects=False) as response:
                    async for part in response.content.iter_any():
                        body += part
                        if len(body) > LARGEST_ANSWER:
                            return None
                    return body if response.status == 200 else None
        except (aiohttp.ClientError, OSError):
            return None

    async def _read_memory(self, backend: Backend) -> bool:
        text = await self.get(backend, "/metrics") or b""
        usage, blocks, block_tokens = USAGE.search(text), BLOCKS.search(text), BLOCK_TOKENS.search(text)
        try:
            share = float(usage[1]) if usage else -1.0
        except ValueError:
            return False
        if not 0.0 <= share <= 1.0:
            return False
        sizes = [int(found[1]) if found and 0 < len(found[1]) < 10 else None for found in (blocks, block_tokens)]
        self._memory(backend.index, sizes[0] or None, sizes[1] or None, 1.0 - share)
        return True
