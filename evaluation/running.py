"""Run many independent items: in threads of this process, or elsewhere.

What is run is a function of one item: a run of a comparison, a candidate on a scenario. A `Runner` says where; the
results are the same wherever. `RayRunner` (ray_running.py) is the one that goes beyond this process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Protocol, TypeVar

from servegym.simulator.compilation.interruption import stoppable

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
Progress = Callable[[int, int], None]  # (runs done, runs in all)


class Runner(Protocol):
    """Where runs are done."""

    def run(self, function: Callable[[Item], Outcome], items: Sequence[Item]) -> Iterator[tuple[int, Outcome]]:
        """`function` of each item: (index of the item, what came of it), as they are done, so in any order.

        function: may be called several times for an item of which the result was lost, and in another process; it can
        be pickled then. The first error that it raises ends it. Closing the iterator, or an interrupt, drops what has
        not begun, and simulations that are under way.
        """
        ...


class ThreadRunner:
    """Threads of this process: kernels run without Python's lock. jobs: at a time; None: one a core."""

    def __init__(self, jobs: int | None = None):
        self.jobs = cores() if jobs is None else jobs

    def run(self, function: Callable[[Item], Outcome], items: Sequence[Item]) -> Iterator[tuple[int, Outcome]]:
        executor, stop = ThreadPoolExecutor(self.jobs), threading.Event()
        work = stoppable(stop, function)
        try:
            index_of = {executor.submit(work, item): index for index, item in enumerate(items)}
            for future in as_completed(index_of):
                yield index_of[future], future.result()
        finally:
            stop.set()
            executor.shutdown(cancel_futures=True)


def results_of(runner: Runner, function: Callable[[Item], Outcome], items: Sequence[Item]) -> list[Outcome]:
    """`function` of each item, in the order of the items."""
    found = dict(runner.run(function, items))
    return [found[index] for index in range(len(items))]


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
