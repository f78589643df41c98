"""What a person waits for: the whole `servegym simulate` process, and the very first one, which compiles."""

import json
import os
import subprocess
import sys
import tempfile
import time
from statistics import median

from experiments.benchmarks.figures import Figure
from experiments.benchmarks.scenarios import RATE_PER_S, TRACE, Sizes
from servegym.errors import ExperimentError

COMPILING = "compiling kernels"  # what a first run says on standard error


def measure(sizes: Sizes) -> list[Figure]:
    simulate(sizes.process_requests)  # compiles, if nothing has before
    runs = [simulate(sizes.process_requests)[0] for _ in range(sizes.process_repetitions)]
    return [Figure("cli_s", median(runs), "the whole `servegym simulate` process, once compiled", at_most=3)]


def measure_first(sizes: Sizes) -> list[Figure]:
    """The same with an empty cache. Raises ExperimentError if nobody is told why it takes so long."""
    with tempfile.TemporaryDirectory() as empty:
        first_s, said = simulate(sizes.process_requests, cache=empty)
    if COMPILING not in said:
        raise ExperimentError(f"the first run does not say that it is {COMPILING}; it said: {said!r}")
    return [Figure("first_compile_s", first_s, "the same, the first time ever: it compiles and says so", at_most=45)]


def simulate(requests: int, cache: str | None = None) -> tuple[float, str]:
    """Run `servegym simulate` in a new process: its seconds, and what it said on standard error."""
    command = [sys.executable, "-P", "-m", "servegym", "simulate", "--trace", TRACE, "--rate", str(RATE_PER_S)]
    environment = os.environ | ({"SERVEGYM_CACHE": cache} if cache else {})
    begin = time.perf_counter()
    done = subprocess.run(
        [*command, "--requests", str(requests), "--json", "-"], env=environment, capture_output=True, text=True
    )
    wall_s = time.perf_counter() - begin
    if done.returncode or json.loads(done.stdout)["finished"] != requests:
        raise ExperimentError(f"servegym simulate failed ({done.returncode}): {done.stderr}")
    return wall_s, done.stderr
