"""The kernels that most tests need: the workers of `make test` compile them together before the first test.

A worker that comes to a kernel while another compiles it waits. Where nothing was compiled yet, that was for more than
a minute: nearly all tests begin with the event loop, which takes as long as all of the others together.
"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from servegym.adapters.vllm.kernels import plan_batch
from servegym.baselines import registry
from servegym.simulator.compilation.kernels import Compiled
from servegym.simulator.runs.loops import FLEET, PLAIN, WHOLE


def needed() -> Iterator[Compiled]:
    """Those that take longest first."""
    yield from (WHOLE, plan_batch, FLEET, PLAIN)
    for name in registry.scheduler_names():
        yield from (registry.scheduler(name).function, registry.scheduler(name).victims)
    for name in registry.router_names():
        yield registry.router(name).function


def claims_of(run: str) -> Path:
    """The folder in which workers of a run note what each has begun."""
    return Path(tempfile.gettempdir()) / f"servegym-compiling-{run}"


def compile_share(run: str) -> None:
    """Compile each kernel that no other worker of the run has begun."""
    folder = claims_of(run)
    folder.mkdir(exist_ok=True)
    for number, kernel in enumerate(needed()):
        try:
            (folder / str(number)).touch(exist_ok=False)
        except FileExistsError:
            continue
        kernel.entry  # noqa: B018


def forget(run: str) -> None:
    shutil.rmtree(claims_of(run), ignore_errors=True)
