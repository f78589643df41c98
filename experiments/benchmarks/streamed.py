"""Days of a million requests, streamed: the memory of the process, and what another day adds to it.

A process of its own, `python -m experiments.benchmarks.streamed TRACE OUT`, serves a file on two engines and
writes what became of each request; it prints JSON.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from experiments.benchmarks.figures import Figure
from experiments.benchmarks.peak_memory import peak_bytes
from experiments.benchmarks.scenarios import DEVICE, SCHEDULER, Sizes, workload
from servegym.errors import ExperimentError
from servegym.evaluation.streaming import stream
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.records.types import OUTCOME, REQUEST, WORKLOAD

DAY_S, ENGINES, ROUTER = 86_400.0, 2, "min-load"
COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens", "priority", "weight", "ttft_slo_s", "tpot_slo_s")


def measure(sizes: Sizes) -> list[Figure]:
    requests, days = sizes.memory_requests, sizes.streamed_days
    with tempfile.TemporaryDirectory() as folder:
        trace, out = Path(folder) / "days.parquet", Path(folder) / "out"
        first, more = (served_days(trace, out, requests, count) for count in (1, days))
    grown = (more["peak_mb"] - first["peak_mb"]) / (days - 1)
    tables_mb = days * requests * sum(kind.itemsize for kind in (WORKLOAD, REQUEST, OUTCOME)) / 1e6
    what = f"a day of {requests:,} requests on {ENGINES} engines, trace and tables as Parquet"
    return [
        Figure("streamed_day_s", first["wall_s"], f"{what}: the whole call"),
        Figure("streamed_day_rss_mb", first["peak_mb"], "peak of the process", at_most=800),
        Figure(
            "streamed_rss_mb_per_day",
            grown,
            f"growth by a day more, from 1 and {days} (whose tables have {tables_mb:,.0f} MB)",
            at_most=50,
        ),
    ]


def served_days(trace: Path, out: Path, requests: int, days: int) -> dict[str, Any]:
    """What the process says of so many days. Raises ExperimentError if it fails, or a request is left."""
    write_days(trace, requests, days)
    command = [sys.executable, "-P", "-m", __name__, str(trace), str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ExperimentError(f"{' '.join(command)} failed ({done.returncode}): {done.stderr}")
    said: dict[str, Any] = json.loads(done.stdout)
    if said["finished"] != requests * days:
        raise ExperimentError(f"{said['finished']} of {requests * days} requests finished")
    return said


def write_days(path: Path, requests: int, days: int) -> None:
    """The same day over and over, each later by a day."""
    table = workload(requests, requests / DAY_S).table
    columns = {name: np.ascontiguousarray(table[name]) for name in COLUMNS}
    # Arrivals are drawn: the last is not exactly at the end of the day.
    day_s = max(DAY_S, float(columns["arrival_s"][-1]))
    with pq.ParquetWriter(path, pa.table(columns).schema) as file:
        for day in range(days):
            file.write_table(pa.table(columns | {"arrival_s": columns["arrival_s"] + day * day_s}))


def serve(trace: str, out: str) -> dict[str, Any]:
    begin = time.perf_counter()
    words = {"device": DEVICE, "scheduler": SCHEDULER, "engines": ENGINES, "router": ROUTER}
    summary = stream(ServingSpec().with_overrides({"trace": trace, "slo": "given", **words}), out).summary
    return {
        "finished": summary["finished"],
        "peak_mb": peak_bytes() / 1e6,
        "wall_s": time.perf_counter() - begin,
        "loop_s": summary["wall_s"],
    }


if __name__ == "__main__":
    print(json.dumps(serve(sys.argv[1], sys.argv[2])))
