"""A proxy's state: the live router, the engines, the requests that wait; and the way of a request through them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, MutableMapping
from typing import Any

from servegym.adapters.routing.backends import Attempt, Backend, Backends
from servegym.adapters.routing.live import LiveRouter
from servegym.adapters.routing.metrics import ProxyMetrics
from servegym.adapters.routing.refusals import Refused, error_event
from servegym.adapters.routing.rows import RequestTerms
from servegym.adapters.routing.settings import ProxySettings
from servegym.adapters.vllm.terms import Defaults, TermsReader
from servegym.simulator.types import HOLD

LOG = logging.getLogger("servegym.proxy")
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
RETRY_AFTER_S = 1
OPENING = 32  # requests that are being connected to engines at once


@dataclasses.dataclass
class Job:
    """A request on its way. started: its client has been sent something. first_s: when its first token came."""

    path: str
    body: bytes
    headers: list[tuple[bytes, bytes]]
    streams: bool
    asked: RequestTerms
    chunks: list[int]
    arrived_s: float
    started: bool = False
    first_s: float | None = None


class Failure(Exception):
    """An engine did not serve a request. answer: what it said instead; refused: there was no connection.

    again: another engine may be tried, where nothing has been streamed.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        status: int = 502,
        answer: tuple[int, list[tuple[bytes, bytes]], bytes] | None = None,
        again: bool = True,
        counts: bool = True,
    ):
        super().__init__(message)
        self.reason, self.message, self.status, self.answer = reason, message, status, answer
        self.again, self.counts = again, counts


class ClientGone(Exception):
    """The client has closed its connection, or takes nothing of its answer."""


class Proxy:
    """Requests in, engines out. One event loop owns it; nothing here may block."""

    def __init__(self, router: LiveRouter, urls: list[str], settings: ProxySettings, defaults: Defaults):
        self.router, self.settings, self.reader = router, settings, TermsReader(defaults)
        self.metrics = ProxyMetrics([str(index) for index in range(len(urls))])
        self.backends = Backends(urls, settings, self._changed, self._lost, self._memory)
        self._began_s = time.monotonic()
        self._room = asyncio.Semaphore(settings.max_in_flight)
        self.opening = asyncio.Semaphore(OPENING)
        self._waiting = 0
        self._held: dict[int, asyncio.Future[int]] = {}
        self._warned = False

    def now_s(self) -> float:
        """Seconds since the proxy was made."""
        return time.monotonic() - self._began_s

    def news(self) -> None:
        """Something has happened: see whether requests that wait can go."""
        for r, e in self.router.ask_again(self.now_s()):
            future = self._held.get(r)
            if future is not None and not future.done():
                future.set_result(e)

    def _changed(self, index: int) -> None:
        up = self.backends.all[index].up
        self.router.set_open(index, up)
        self.metrics.up.labels(str(index)).set(int(up))
        self.news()

    def _lost(self, index: int) -> None:
        self.router.lose(self.now_s(), index)
        for attempt in list(self.backends.all[index].attempts):
            attempt.lost = True
            attempt.task.cancel()
        self.news()

    def _memory(self, index: int, total_blocks: int | None, block_tokens: int | None, free: float) -> None:
        snapshot = self.router.snapshots[index]
        if total_blocks is not None:
            self.router.set_memory(index, total_blocks, block_tokens or int(snapshot.block_tokens))
        self.router.report(index, free_blocks=int(free * snapshot.total_blocks))
        self.news()

    @contextlib.asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """While it lasts, the request is one of those in flight. Raises Refused where too many are."""
        if self._room.locked() and self._waiting >= self.settings.max_queued:
            raise Refused(429, "too many requests are waiting; try again later", "overloaded", RETRY_AFTER_S)
        with self._queued():
            try:
                async with asyncio.timeout(self.settings.queue_s):
                    await self._room.acquire()
            except TimeoutError:
                raise Refused(503, "no room within the time to wait", "overloaded", RETRY_AFTER_S) from None
        try:
            yield
        finally:
            self._room.release()

    @contextlib.contextmanager
    def _queued(self) -> Any:
        self._waiting += 1
        self.metrics.queued.inc()
        try:
            yield
        finally:
            self._waiting -= 1
            self.metrics.queued.dec()

    async def engine_for(self, r: int, tried: set[int]) -> Backend:
        """The engine that the policy names for a request, once it does. Raises Refused where that takes too long."""
        fallbacks, begin = self.router.fallbacks, time.perf_counter()
        e = self.router.route(self.now_s(), r, tried)
        self.metrics.decision_s.observe(time.perf_counter() - begin)
        if self.router.fallbacks > fallbacks:
            self.metrics.fallbacks.inc(self.router.fallbacks - fallbacks)
            if not self._warned:
                LOG.warning("router %s named no engine that takes the request; it went where fewest requests are "
                            "(not logged again)", self.router.policy.label)  # fmt: skip
                self._warned = True
        if e == HOLD:
            future = self._held[r] = asyncio.get_running_loop().create_future()
            try:
                with self._queued():
                    async with asyncio.timeout(self.settings.queue_s):
                        e = await future
            except TimeoutError:
                raise Refused(503, "no engine took the request in time", "unavailable", RETRY_AFTER_S) from None
            finally:
                del self._held[r]
        backend = self.backends.all[e]
        self.metrics.routed.labels(backend.name).inc()
        return backend

    async def at(self, backend: Backend, work: Coroutine[Any, Any, bool]) -> bool:
        """Work at an engine, broken off with Failure if the engine is lost."""
        attempt = Attempt(asyncio.create_task(work))
        backend.attempts.add(attempt)
        in_flight = self.metrics.in_flight.labels(backend.name)
        in_flight.inc()
        try:
            return await attempt.task
        except asyncio.CancelledError:
            if attempt.lost and not _is_cancelled():
                raise Failure("lost", "the engine is gone", counts=False) from None
            raise
        finally:
            if not attempt.task.done():
                attempt.task.cancel()
                await asyncio.gather(attempt.task, return_exceptions=True)
            backend.attempts.discard(attempt)
            in_flight.dec()

    async def serve(
        self, job: Job, send: Send, work: Callable[[Job, int, Backend, Send], Coroutine[Any, Any, bool]]
    ) -> str:
        """A request from its arrival to the end of its answer; returns how it ended. Raises Refused.

        work: has an engine serve it; True: the answer is complete and good. It raises Failure.
        """
        async with self.admitted():
            r = self.router.arrive(job.arrived_s, job.asked, job.chunks)
            finished = False
            try:
                async with asyncio.timeout(self.settings.total_s):
                    finished = await self._serve(job, r, send, work)
                return "finished" if finished else "error"
            except TimeoutError:
                await self._broken_off(job, send, Failure("timeout", "the answer took too long", 504))
                return "broken"
            except Failure as failure:
                await self._broken_off(job, send, failure)
                return "broken"
            finally:
                self.router.leave(self.now_s(), r, finished)
                self.news()

    async def _serve(self, job: Job, r: int, send: Send, work: Any) -> bool:
        tried: set[int] = set()
        while True:
            backend = await self.engine_for(r, tried)
            try:
                finished = await self.at(backend, work(job, r, backend, send))
                self.backends.succeeded(backend)
                return bool(finished)
            except Failure as failure:
                if failure.counts:
                    self.backends.failed(backend, failure.reason == "connect")
                tried.add(backend.index)
                others = [one for one in self.backends.all if one.up and one.index not in tried]
                if job.started or not failure.again or len(tried) > self.settings.retries or not others:
                    raise
                self.metrics.retries.labels(failure.reason).inc()
                self.router.recall(self.now_s(), r)

    async def _broken_off(self, job: Job, send: Send, failure: Failure) -> None:
        """Tell the client that there is no (more of an) answer."""
        if not job.started:
            if failure.answer is None:
                raise Refused(failure.status, failure.message, failure.reason)
            status, headers, body = failure.answer
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return
        try:
            async with asyncio.timeout(self.settings.write_s):
                event = error_event(failure.status, failure.message, failure.reason)
                await send({"type": "http.response.body", "body": event})
        except TimeoutError:
            raise ClientGone from None


def _is_cancelled() -> bool:
    """Whether the task that runs now is itself being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
