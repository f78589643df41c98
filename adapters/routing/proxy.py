"""Serves requests from engines by a live router: admits them, waits for their engine, retries, and counts them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from servegym.adapters.routing.assumptions import Assumptions
from servegym.adapters.routing.backends import Attempt, Backend, Backends
from servegym.adapters.routing.handover import hand_over
from servegym.adapters.routing.jobs import ClientGone, Failure, Job, Send
from servegym.adapters.routing.kv_events import Event
from servegym.adapters.routing.loras import Loras
from servegym.adapters.routing.metrics import ProxyMetrics
from servegym.adapters.routing.refusals import Refused, error_event
from servegym.adapters.routing.request_log import RequestLog
from servegym.adapters.routing.settings import ProxySettings
from servegym.adapters.vllm.terms import TermsReader
from servegym.errors import ServegymError
from servegym.simulator.records.types import HOLD, REFUSE

LOG = logging.getLogger("servegym.proxy")
RETRY_AFTER_S = 1
OF_ENGINES = ("prefix_cache_tokens", "kv_events", "adapters", "profiles")  # assumptions that no policy changes
ANSWERED = ("error", "busy")  # failures that are the engine's own answer, which its client gets
OPENING = 32  # requests that are being connected to engines at once


class Proxy:
    """A proxy's live router, engines and waiting requests. One event loop owns it; nothing here may block."""

    def __init__(
        self, assumptions: Assumptions, urls: Sequence[str], settings: ProxySettings, log: RequestLog | None = None
    ):
        self.settings, self.log, self.metrics = settings, log, ProxyMetrics()
        self.router = assumptions.live(urls)
        self._assume(assumptions)
        self.backends = Backends(list(urls), settings, self._changed, self._lost, self._memory, self._events)
        self.loras = Loras(self.backends, settings.poll_s, self._adapters)
        if assumptions.adapters is not None and settings.poll_s > 0:
            self.backends.readers.append(self.loras.follow)
        for backend in self.backends.all:
            self.metrics.has_engine(backend.name, backend.url, up=True)
        self.draining = False  # it is about to end, and /ready fails
        self._ending = False  # remaining requests are broken off
        self._deadlines: set[asyncio.Timeout] = set()
        self._reloading = asyncio.Lock()
        self._began_s = time.monotonic()
        self._room = asyncio.Semaphore(settings.max_in_flight)
        self.opening = asyncio.Semaphore(OPENING)
        self._waiting = 0
        self._held: dict[int, asyncio.Future[int]] = {}
        self._warned = False

    def now_s(self) -> float:
        """Return the seconds since the proxy was made."""
        return time.monotonic() - self._began_s

    def news(self) -> None:
        """Send held requests on that have got an engine since the last event."""
        for r, e in self.router.ask_again(self.now_s()):
            future = self._held.get(r)
            if future is not None and not future.done():
                future.set_result(e)

    # The policy and the engines

    def _assume(self, assumptions: Assumptions) -> None:
        self.assumptions, self.reader = assumptions, TermsReader(assumptions.defaults)
        self.metrics.policy.info({"router": assumptions.router.label})

    async def reload(self, load: Callable[[], Assumptions]) -> str:
        """Change the policy; returns its label. Raises ServegymError, and then keeps the old one.

        load: reads it. Reading and compiling are done in a thread, while the old policy routes. What the proxy assumes
        of prefix caches, KV events and LoRA adapters stays as it is.
        """
        async with self._reloading:
            try:
                kept = {name: getattr(self.assumptions, name) for name in OF_ENGINES}
                assumptions = dataclasses.replace(await asyncio.to_thread(load), **kept)
                await asyncio.to_thread(assumptions.live, ["0"])  # compiled now, not while requests wait
                router = assumptions.live([one.url for one in self.backends.all])
            except Exception as error:
                self.metrics.reloads.labels("failed").inc()
                LOG.error("the policy stays %s: %s", self.router.policy.label, error)
                if isinstance(error, ServegymError | ValueError):
                    raise
                raise ServegymError(f"the policy cannot be used: {error}") from error
            hand_over(self.router, router, self.now_s())
            self.router = router
            self._assume(assumptions)
            self.metrics.reloads.labels("done").inc()
            LOG.warning("the policy is %s", router.policy.label)
            self.news()
            return router.policy.label

    def set_engines(self, urls: Sequence[str]) -> None:
        """Set the engines. One that is no longer among them finishes its requests."""
        wanted = dict.fromkeys(urls)
        staying = {one.url for one in self.backends.all if one.url in wanted and not one.leaving}
        for backend in self.backends.all:
            if not backend.leaving and backend.url not in wanted:
                LOG.warning("engine %s (%s) is no longer listed", backend.name, backend.url)
                backend.leaving = True
                self._changed(backend.index)
        new = [url for url in wanted if url not in staying]
        if not new:
            return
        fresh = [self.backends.join(url) for url in new]
        router = self.assumptions.live([one.url for one in self.backends.all])
        hand_over(self.router, router, self.now_s(), {one.index for one in fresh})
        self.router = router
        for backend in fresh:
            LOG.warning("engine %s (%s) is added", backend.name, backend.url)
            self.metrics.has_engine(backend.name, backend.url, up=False)
        self.news()

    def end(self) -> None:
        """Break off the remaining requests."""
        self._ending = True
        for deadline in self._deadlines:
            deadline.reschedule(asyncio.get_running_loop().time())

    def _changed(self, index: int) -> None:
        backend = self.backends.all[index]
        self.router.set_open(index, backend.up, closed=backend.leaving)
        self.metrics.up.labels(str(index)).set(int(backend.takes))
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

    def _events(self, index: int, events: list[Event] | None) -> None:
        if events is None:
            self.router.ignore_events(index)
        else:
            self.router.note_events(index, events)
        self.news()

    def _adapters(self, index: int, running: list[int], waiting: list[int], max_loras: int) -> None:
        self.router.report_adapters(index, running, waiting, max_loras)
        self.news()

    @contextlib.asynccontextmanager
    async def admitted(self, job: Job) -> AsyncIterator[None]:
        """Count a request as in flight inside the with block. Raises Refused if too many are."""
        if self._room.locked() and self._waiting >= self.settings.max_queued:
            raise Refused(429, "too many requests are waiting; try again later", "overloaded", RETRY_AFTER_S)
        with self._queued(job):
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
    def _queued(self, job: Job) -> Any:
        self._waiting += 1
        self.metrics.queued.inc()
        began_s = self.now_s()
        try:
            yield
        finally:
            job.waited_s += self.now_s() - began_s
            self._waiting -= 1
            self.metrics.queued.dec()

    async def engine_for(self, job: Job, r: int, tried: set[int]) -> Backend:
        """Wait for the engine that the policy names for a request. Raises Refused if it refuses the request, or that
        takes too long."""
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
                with self._queued(job):
                    async with asyncio.timeout(self.settings.queue_s):
                        e = await future
            except TimeoutError:
                raise Refused(503, "no engine took the request in time", "unavailable", RETRY_AFTER_S) from None
            finally:
                del self._held[r]
            if e in job.excluded:  # `ask_again` knows nothing of excluded engines
                others = [one.index for one in self.backends.all if one.takes and one.index not in job.excluded]
                if not others:
                    raise Refused(503, "no engine that it may go to takes requests", "unavailable", RETRY_AFTER_S)
                e = min(others, key=lambda other: int(self.router.snapshots["requests"][other]))
                self.router.send(self.now_s(), r, e)
        if e == REFUSE:
            raise Refused(429, "the engines are overloaded; try again later", "overloaded", RETRY_AFTER_S, "refused")
        backend = self.backends.all[e]
        self.metrics.routed.labels(backend.name).inc()
        job.engine = backend.name
        return backend

    async def at(self, backend: Backend, work: Coroutine[Any, Any, bool]) -> bool:
        """Await work at an engine; raises Failure if the engine is lost."""
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
        """Serve a request from its arrival to the end of its answer. Returns how it ended. Raises Refused.

        work: has an engine serve it, and returns whether the answer is complete and no error. It raises Failure.
        """
        async with self.admitted(job):
            if self._ending:
                raise Refused(503, "the proxy is shutting down", "unavailable", RETRY_AFTER_S)
            r = self.router.arrive(job.measured.arrived_s, job.asked, job.chunks)
            finished = False
            deadline = asyncio.timeout(self.settings.total_s)
            self._deadlines.add(deadline)
            try:
                async with deadline:
                    finished = await self._serve(job, r, send, work)
                return "finished" if finished else "error"
            except TimeoutError:
                failure = Failure("timeout", "the answer took too long", 504)
                if self._ending:
                    failure = Failure("unavailable", "the proxy is shutting down", 503)
                await self._broken_off(job, send, failure)
                return "broken"
            except Failure as failure:
                await self._broken_off(job, send, failure)
                return "error" if failure.reason in ANSWERED else "broken"
            finally:
                self._deadlines.discard(deadline)
                self.router.leave(self.now_s(), r, finished)
                self.news()

    async def _serve(self, job: Job, r: int, send: Send, work: Any) -> bool:
        tried = set(job.excluded)
        reached = 0  # number of engines that got the request and failed
        while True:
            backend = await self.engine_for(job, r, tried)
            outcomes = self.metrics.by_engine
            try:
                finished = await self.at(backend, work(job, r, backend, send))
                self.backends.succeeded(backend)
                outcomes.labels(backend.name, "finished" if finished else "error").inc()
                return bool(finished)
            except Failure as failure:
                outcomes.labels(backend.name, failure.reason).inc()
                if failure.counts:
                    self.backends.failed(backend, failure.reason == "connect")
                tried.add(backend.index)
                reached += failure.reason != "connect"
                others = [one for one in self.backends.all if one.takes and one.index not in tried]
                if job.started or not failure.again or reached > self.settings.retries or not others:
                    raise
                self.metrics.retries.labels(failure.reason).inc()
                self.router.recall(self.now_s(), r)

    def came(self, job: Job, r: int, count: int) -> bool:
        """Count tokens of an answer. Returns whether they are its first."""
        now_s, measured = self.now_s(), job.measured
        first = measured.first_s is None
        self.router.token(now_s, r, count)
        measured.token(now_s, count)
        job.client.spend(count)
        if first:
            self.metrics.ttft_s.observe(now_s - measured.arrived_s)
        return first

    def ended(self, job: Job, outcome: str) -> None:
        """Count and log a request that has ended in any way."""
        now_s, measured, metrics, name = self.now_s(), job.measured, self.metrics, job.client.name
        metrics.requests.labels(outcome).inc()
        metrics.by_client.labels(name, outcome).inc()
        metrics.client_tokens.labels(name, "prompt").inc(measured.prompt_tokens or job.asked.prompt_tokens)
        metrics.client_tokens.labels(name, "output").inc(measured.tokens)
        metrics.queue_s.observe(job.waited_s)
        metrics.whole_s.labels(outcome).observe(now_s - measured.arrived_s)
        if self.log is not None:
            more = {
                "outcome": outcome,
                "engine": job.engine,
                "engines": len([one for one in self.backends.all if one.takes]),
                "router": self.router.policy.label,
                "client": name,
                "adapter": self.loras.name(job.asked.adapter),
            }
            self.log.write(self._began_s + measured.arrived_s, measured.line(now_s, **more))

    async def _broken_off(self, job: Job, send: Send, failure: Failure) -> None:
        """Send the client an error in place of the answer, or of its rest."""
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
    """Whether the current task is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
