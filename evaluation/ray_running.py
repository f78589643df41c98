"""Running many things on Ray: tasks on a local cluster, or on one that is there. Ray places and retries them.

Several items go into a task, so that it takes about `TASK_S` and the overhead of a task is small beside it.
The function travels once to each node, through Ray's object store, and is kept by the workers, each of which must run
the same code.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import math
import pickle
import platform
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import servegym
from servegym.errors import ClusterError
from servegym.evaluation.ray_cluster import LOCAL, connect, disconnect, task_problem
from servegym.evaluation.running import Item, Outcome

FOLDERS = ("simulator", "latency_models", "traces", "baselines", "scenarios")  # of what makes the numbers of a run
PACKAGES = ("numpy", "numba")


@dataclasses.dataclass(frozen=True)
class Code:
    """versions: of what computes a run. digest: of the Python files of `FOLDERS`."""

    versions: tuple[tuple[str, str], ...]
    digest: str

    def check(self) -> None:
        """Raises ClusterError, in one line, where the process that asks has other code."""
        here = code_here()
        if here == self:
            return
        other = [
            f"{name} {version} there, {wanted} here"
            for (name, wanted), (_, version) in zip(self.versions, here.versions, strict=True)
            if version != wanted
        ]
        what = ", ".join(other) or "other files of servegym there than here (were they edited meanwhile?)"
        raise ClusterError(f"node {socket.gethostname()} of the Ray cluster has other code: {what}; install the same")


@functools.cache
def code_here() -> Code:
    """The code of this process."""
    versions = {"servegym": servegym.__version__, "python": platform.python_version()}
    versions |= {name: importlib.metadata.version(name) for name in PACKAGES}
    digest = hashlib.sha256()
    for folder in FOLDERS:
        spec = importlib.util.find_spec(f"servegym.{folder}")
        assert spec is not None and spec.origin is not None
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{folder}/{path.relative_to(root)}\n".encode() + path.read_bytes())
    return Code(tuple(versions.items()), digest.hexdigest()[:16])


TASK_S = 0.25  # of work in a task: a hundred times what Ray takes for one
RETRIES = 8  # of a task whose worker or node died
WAITING_PER_CPU = 2  # tasks a CPU: while one runs, the next is on its way


class Packed(NamedTuple):
    """An object as bytes, its read-only arrays apart: workers of a node share those, in the store's memory."""

    data: bytes
    arrays: list[Any]

    @staticmethod
    def of(value: Any) -> Packed:
        import numpy as np
        from ray import cloudpickle

        arrays: list[Any] = []

        def stays(buffer: pickle.PickleBuffer) -> bool:
            if not buffer.raw().readonly:  # a worker needs its own copy of arrays that are written to
                return True
            arrays.append(np.frombuffer(buffer.raw(), np.uint8))
            return False

        return Packed(cloudpickle.dumps(value, protocol=5, buffer_callback=stays), arrays)

    def value(self) -> Any:
        return pickle.loads(self.data, buffers=self.arrays)


class Task(NamedTuple):
    """What a worker is sent. function: a list with the reference of a `Packed`, which is got when it is not kept yet.

    before: what to call, once in a worker, before anything of it is unpickled. code: that should be there.
    """

    function: list[Any]
    items: bytes
    before: bytes | None
    code: Code


class RayRunner:
    """A `Runner` whose runs are tasks of Ray, each of one CPU.

        with RayRunner("local") as runner:
            for index, result in runner.run(function, items): ...

    address: "local" starts a cluster on this machine and stops it in the end; "HOST:PORT" is the head of one that is
    there, "auto" the one of this machine. Where Ray is already initialised, its cluster is taken and left alone.
    jobs: tasks at a time; None: as many as there are CPUs. before: called in each worker before its first run (so as to
    register policies that could not be imported there).

    Raises ClusterError for a cluster that cannot be reached or used; and, while it runs, where workers have other code
    or lack some, or a run was lost with its node too often.
    """

    def __init__(self, address: str = LOCAL, jobs: int | None = None, before: Callable[[], object] | None = None):
        self.address, self.jobs, self._before = address, jobs, before
        self._is_ours, self._most = False, jobs

    def __enter__(self) -> RayRunner:
        self._is_ours = connect(self.address, self.jobs)
        # A local cluster has as many CPUs as jobs; more tasks may wait for them.
        self._most = None if self._is_ours and self.address == LOCAL else self.jobs
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_ours:
            disconnect()

    def run(self, function: Callable[[Item], Outcome], items: Sequence[Item]) -> Iterator[tuple[int, Outcome]]:
        """As `Runner.run`. function and items can be pickled (by cloudpickle)."""
        import ray
        from ray import cloudpickle

        if not ray.is_initialized():
            raise ClusterError("there is no connection to a Ray cluster (yet): use RayRunner in a with statement")

        send = ray.remote(work).options(num_cpus=1, max_retries=RETRIES)
        shared = [ray.put(Packed.of(function))]
        before = None if self._before is None else cloudpickle.dumps(self._before)
        sizes, code = TaskSizes(), code_here()
        sent: dict[Any, range] = {}
        first = 0
        # What is left of an iterator that is closed runs on, 2 tasks a CPU at most, until the connection ends.
        # (`ray.cancel` would end it, and with Ray 2.60 now and then this process: "task that was not pending".)
        while first < len(items) or sent:
            cpus = self._cpus() if first < len(items) else 0
            while first < len(items) and len(sent) < (self._most or WAITING_PER_CPU * cpus):
                indices = range(first, first + sizes.next(len(items) - first, self._most or cpus))
                chosen = cloudpickle.dumps([items[index] for index in indices])
                sent[send.remote(Task(shared, chosen, before, code))] = indices
                first = indices.stop
            done, _ = ray.wait(list(sent))
            for reference in done:
                results, taken_s = received(reference)
                sizes.learn(taken_s / len(results))
                yield from zip(sent.pop(reference), results, strict=True)

    def _cpus(self) -> int:
        """Number of the cluster's CPUs now."""
        import ray

        return max(1, int(ray.cluster_resources().get("CPU", 0)))


class TaskSizes:
    """Number of items in a task: about `TASK_S` of work, less towards the end, so that no CPU waits for long."""

    def __init__(self) -> None:
        self._item_s = math.inf

    def learn(self, item_s: float) -> None:
        """An item of a task took so long. The first of a worker take longer, so the last count most."""
        self._item_s = item_s if self._item_s == math.inf else (self._item_s + item_s) / 2

    def next(self, left: int, cpus: int) -> int:
        return max(1, min(int(TASK_S / max(self._item_s, 1e-6)), left // (2 * cpus), left))


def received(reference: Any) -> tuple[list[Any], float]:
    """The results of a task, and the seconds they took. Raises what a run raised, or ClusterError."""
    import ray

    try:
        results, taken_s = pickle.loads(ray.get(reference))
        return results, taken_s
    except ray.exceptions.RayError as error:
        raise task_problem(error) from None


def work(task: Task) -> bytes:
    """A task, in a worker: the results of its items, and the seconds they took."""
    from ray import cloudpickle

    task.code.check()
    if task.before is not None:
        once(task.before)
    function, items = kept(task.function[0]), pickle.loads(task.items)
    begin_s = time.perf_counter()
    results = [function(item) for item in items]
    return cloudpickle.dumps((results, time.perf_counter() - begin_s))


@functools.lru_cache(maxsize=1)  # one: the next function takes the place of the last, and of the memory it held
def kept(reference: Any) -> Any:
    """The function behind a reference. Raises ClusterError where something it is made of is missing here."""
    import ray

    packed = ray.get(reference)
    try:
        return packed.value()
    except (ImportError, AttributeError) as error:
        raise ClusterError(
            f"a worker of Ray cannot make the runs: {error}; policies of one's own should be in a file named with "
            "--load-policies, or in a module that is installed on each node"
        ) from None


@functools.cache
def once(call: bytes) -> None:
    pickle.loads(call)()
