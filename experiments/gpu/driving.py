"""Serving a workload on vLLM's engine core in this process, by the wall's clock; stock, or with a policy of ours.

An engine that has nothing to do skips to the next arrival, to save time. Which scheduler decides is changed between
runs without starting the engine again: the next one is made with the arguments of the first, as vLLM makes it, with an
empty KV cache. HTTP, texts and other processes are not in the times; handing a request to the engine is.
"""

import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.engines.virtual_run import terms
from servegym.adapters.profiling.design import Batch
from servegym.adapters.profiling.vllm_engine import VllmMeter
from servegym.adapters.replay.bodies import FIRST_ID, Bodies
from servegym.adapters.replay.front import Front, Limits
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.types import BATCH, BATCH_SUMS

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
DRAINING_STEPS = 1000


class Clock:
    """Seconds since it was made, and what was skipped."""

    def __init__(self) -> None:
        self._origin_s = time.perf_counter()

    def now_s(self) -> float:
        return time.perf_counter() - self._origin_s

    def skip_to(self, time_s: float) -> None:
        self._origin_s -= max(0.0, time_s - self.now_s())


class Step(NamedTuple):
    """A decision of the scheduler, and what it took from the results before it to its own, in seconds: by the clock, of
    this thread's processor time, and of Python's garbage collection."""

    decision: Any
    took_s: float
    thread_s: float
    collecting_s: float


class Served(NamedTuple):
    """arrival_s: float64[requests], when each was due; nan: it was not sent. token_s: of each, when its tokens came
    out. decision_s: float64[steps] of the policy, and running: int64[steps], how many ran then. counts: of the plug-in.
    cut: the time was up. batches, steps: what was computed, and what each step took (`Log`)."""

    arrival_s: np.ndarray
    token_s: list[list[float]]
    decision_s: np.ndarray
    running: np.ndarray
    counts: dict[str, float]
    cut: bool
    batches: Sequence[Batch] = ()
    steps: Sequence[Step] = ()

    def figures(self, workload: Workload) -> dict[str, Any]:
        """Latencies of those that have all their tokens."""
        wanted = workload.table["output_tokens"].tolist()
        ended = [r for r, times in enumerate(self.token_s) if len(times) == wanted[r]]
        last_s = np.array([self.token_s[r][-1] for r in ended])
        first_s, arrival_s = np.array([self.token_s[r][0] for r in ended]), self.arrival_s[ended]
        later = np.array([wanted[r] - 1 for r in ended])
        figures: dict[str, Any] = {"requests": len(workload), "finished": len(ended), "cut": self.cut}
        if not ended:
            return figures
        figures["span_s"] = float(last_s.max() - arrival_s.min())
        several = later > 0
        tpot_s = (last_s - first_s)[several] / later[several]
        for name, values in (("ttft_s", first_s - arrival_s), ("tpot_s", tpot_s), ("e2e_s", last_s - arrival_s)):
            figures[name] = summary_of(values)
        if len(self.decision_s):
            many = self.running >= 0.8 * self.running.max()
            figures["decision_s"] = summary_of(self.decision_s[many]) | {"running": int(self.running.max())}
            figures["plugin"] = self.counts
        return figures

    def arrays(self, workload: Workload) -> dict[str, np.ndarray]:
        """What `records.coded` keeps: the requests, and their tokens in the order in which they came out."""
        columns = ("prompt_tokens", "output_tokens", "priority", "weight", "ttft_slo_s", "tpot_slo_s", "ttlt_slo_s")
        request = np.repeat(np.arange(len(self.token_s)), [len(times) for times in self.token_s])
        time_us = np.round(1e6 * np.concatenate([np.asarray(times, "f8") for times in self.token_s])).astype("i8")
        order = np.argsort(time_us, kind="stable")
        sums = np.concatenate([batch.sums() for batch in self.batches]) if self.batches else np.zeros(0, BATCH)
        return {
            "arrival_s": self.arrival_s,
            **{name: workload.table[name] for name in columns},
            "token_request": request[order].astype("i4"),
            "token_us": np.diff(time_us[order], prepend=0),
            "step_us": microseconds(step.took_s for step in self.steps),
            "step_thread_us": microseconds(step.thread_s for step in self.steps),
            "step_collecting_us": microseconds(step.collecting_s for step in self.steps),
            "step_sums": np.column_stack([sums[name] for name in BATCH_SUMS]).astype("i8"),
        }


def microseconds(seconds: Iterable[float]) -> np.ndarray:
    return np.round(1e6 * np.fromiter(seconds, "f8")).astype("i8")


def summary_of(values: np.ndarray) -> dict[str, float]:
    if not len(values):
        return {}
    return {"mean": float(values.mean()), **{name: float(np.quantile(values, q)) for name, q in QUANTILES.items()}}


class Log:
    """What a scheduler decides, and when the results of it are there.

    A step takes from the results before it, or from its own decision if that came later, to its own results: with
    asynchronous scheduling the next batch is decided while one is computed.

    collecting_s: the seconds of garbage collection so far.
    """

    def __init__(self, scheduler: Any, clock: Clock, collecting_s: Callable[[], float]):
        self.steps: list[Step] = []
        schedule, update = scheduler.schedule, scheduler.update_from_output
        decided_s: dict[int, float] = {}
        before_s, thread_s, collected_s = -np.inf, time.thread_time(), collecting_s()

        def watched_schedule(*given: Any, **named: Any) -> Any:
            decision = schedule(*given, **named)
            decided_s[id(decision)] = clock.now_s()
            return decision

        def watched_update(decision: Any, *given: Any, **named: Any) -> Any:
            nonlocal before_s, thread_s, collected_s
            now_s, now_thread_s, now_collected_s = clock.now_s(), time.thread_time(), collecting_s()
            if decision.total_num_scheduled_tokens:
                took_s = now_s - max(before_s, decided_s.pop(id(decision), before_s))
                self.steps.append(Step(decision, took_s, now_thread_s - thread_s, now_collected_s - collected_s))
                before_s, thread_s, collected_s = now_s, now_thread_s, now_collected_s
            return update(decision, *given, **named)

        scheduler.schedule, scheduler.update_from_output = watched_schedule, watched_update


@contextmanager
def collections() -> Iterator[Callable[[], float]]:
    """Yields a function that returns the seconds which Python's garbage collection has taken since."""
    total_s = began_s = 0.0

    def watch(phase: str, info: dict[str, int]) -> None:
        nonlocal total_s, began_s
        if phase == "start":
            began_s = time.perf_counter()
        else:
            total_s += time.perf_counter() - began_s

    gc.callbacks.append(watch)
    try:
        yield lambda: total_s
    finally:
        gc.callbacks.remove(watch)


@contextmanager
def deciding(meter: VllmMeter, policy: Path | None) -> Iterator[Any]:
    """A fresh scheduler in the engine, which must be idle: with the policy of an artifact, or vLLM's own (None)."""
    core, before = meter.core, meter.core.scheduler
    config = core.vllm_config
    if policy is None:
        made = config.scheduler_config.get_scheduler_cls()
    else:
        import servegym.adapters.vllm as plugin

        os.environ["SERVEGYM_POLICY"] = str(policy)
        made = plugin.AsyncScheduler if config.scheduler_config.async_scheduling else plugin.Scheduler
    core.scheduler = made(
        vllm_config=config,
        kv_cache_config=before.kv_cache_config,
        structured_output_manager=core.structured_output_manager,
        include_finished_set=before.finished_req_ids_dict is not None,
        log_stats=before.log_stats,
        block_size=before.block_size,
        hash_block_size=before.hash_block_size,
    )
    try:
        yield core.scheduler
    finally:
        core.abort_requests(list(core.scheduler.requests))
        drain(core)
        core.scheduler = before


def drain(core: Any) -> None:
    """Step until nothing is under way, and the worker has been told which requests have finished."""
    for _ in range(DRAINING_STEPS):
        if not core.scheduler.has_requests() and not core.batch_queue:
            return
        core.post_step(core.step_fn()[1])


def serve(meter: VllmMeter, workload: Workload, policy: Path | None, limit_s: float, seed: int = 0) -> Served:
    """Serve the workload until its end, or until `limit_s` real seconds have passed. Answers have its lengths."""
    bodies = Bodies("", vocabulary=max(FIRST_ID + 1, meter.vocabulary), seed=seed)
    prompts = [bodies.prompt_of(workload, index) for index in range(len(workload))]
    with deciding(meter, policy) as scheduler, collections() as collecting_s:
        clock = Clock()
        plugin = getattr(scheduler, "servegym", None)
        if plugin is not None:
            scheduler.use_clock(clock.now_s)
        log = Log(scheduler, clock, collecting_s)
        served = _served(meter, workload, prompts, plugin, clock, time.monotonic() + limit_s)
        return served._replace(batches=[meter.computed(step.decision) for step in log.steps], steps=log.steps)


def _served(
    meter: VllmMeter, workload: Workload, prompts: list[Any], plugin: Any, clock: Clock, until_s: float
) -> Served:
    core, table, front = meter.core, workload.table, Front(workload, Limits())
    arrival_s = np.full(len(table), np.nan)
    token_s: list[list[float]] = [[] for _ in range(len(table))]
    under_way: dict[str, int] = {}
    decision_s, running = [], []
    while time.monotonic() < until_s:
        turn = front.next()
        if not under_way:
            if turn is None:
                break
            clock.skip_to(turn.due_s)
        while turn is not None and turn.due_s <= clock.now_s():
            row = table[turn.request]
            name = meter.add(
                prompts[turn.request], int(row["output_tokens"]), arrival_s=turn.due_s, priority=int(row["priority"]),
                extra_args=terms(row),
            )  # fmt: skip
            under_way[name], arrival_s[turn.request] = turn.request, turn.due_s
            front.send(turn)
            turn = front.next()
        outputs, executed = core.step_fn()
        core.post_step(executed)
        now_s = clock.now_s()
        if plugin is not None:
            decision_s.append(plugin.last_decision_s)
            running.append(len(core.scheduler.running))
        for client in (outputs or {}).values():
            for each in client.outputs:
                request = under_way.get(each.request_id)
                if request is None:
                    continue
                token_s[request].extend([now_s] * len(each.new_token_ids))
                if each.finish_reason is not None:
                    del under_way[each.request_id]
                    front.end(request, now_s)
    counts = {} if plugin is None else {name: float(n) for name, n in plugin.metrics.counts.items()}
    left = bool(under_way) or front.next() is not None
    return Served(arrival_s, token_s, np.array(decision_s), np.array(running, "i8"), counts, left)
