"""Files of many rows and of long ones are read a stretch at a time, in bounded memory.

SERVEGYM_HUGE_ROWS=10000000 asks for the size a service's log of weeks has (minutes, and 700 MB of disk).
"""

import gzip
import json
import os
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from servegym.errors import WorkloadError
from servegym.traces import read_trace

pytestmark = pytest.mark.slow

ROWS = int(os.environ.get("SERVEGYM_HUGE_ROWS", 300_000))
MOST_BYTES = 2 * 1024**3
IN_A_CHILD = """
import json, sys, time
from experiments.benchmarks.peak_memory import peak_bytes
from servegym.traces import build_workload
start_s = time.perf_counter()
workload = build_workload(sys.argv[1], rate_per_s=100.0)
print(json.dumps({"rows": len(workload), "peak_bytes": peak_bytes(), "wall_s": time.perf_counter() - start_s}))
"""
REFUSED_IN_A_CHILD = """
import sys
from experiments.benchmarks.peak_memory import peak_bytes
from servegym.errors import WorkloadError
from servegym.traces import read_trace
before = peak_bytes()
try:
    read_trace(sys.argv[1])
except WorkloadError as error:
    print(peak_bytes() - before, error)
"""


def write_rows(path, rows: int) -> None:
    """Rows of an own trace, written a stretch at a time."""
    rng = np.random.default_rng(0)
    with path.open("w") as stream:
        for start in range(0, rows, 500_000):
            count = min(500_000, rows - start)
            frame = pd.DataFrame(
                {
                    "arrival_s": (start + np.arange(count)) / 64,
                    "prompt_tokens": rng.integers(1, 8000, count),
                    "output_tokens": rng.integers(1, 800, count),
                    "client": np.char.add("client-", rng.integers(0, 1000, count).astype(str)),
                }
            )
            if path.suffix == ".csv":
                frame.to_csv(stream, index=False, header=start == 0)
            else:
                frame.to_json(stream, orient="records", lines=True)


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_many_rows_in_bounded_memory(tmp_path, ending):
    path = tmp_path / f"huge{ending}"
    write_rows(path, ROWS)
    done = subprocess.run([sys.executable, "-c", IN_A_CHILD, str(path)], capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout)
    print(ending, figures)
    assert figures["rows"] == ROWS
    assert figures["peak_bytes"] < MOST_BYTES


def test_the_memory_of_a_row_that_never_ends_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("servegym.traces.texts.LONGEST_LINE", 1 << 16)
    monkeypatch.setattr("servegym.traces.jsonrows.LONGEST_LINE", 1 << 16)
    monkeypatch.setattr("servegym.traces.jsonrows.READ_CHARACTERS", 1 << 12)
    endless = "x" * 2_000_000
    for name, text in (
        ("t.json", '[{"conversations": "' + endless),
        ("t.jsonl", endless),
        ("t.csv", endless),
        ("t.csv", "prompt_tokens,output_tokens\n1,1\n1," + endless),
    ):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(WorkloadError, match=r"is not JSON|is longer than"):
            read_trace(path)


@pytest.mark.parametrize("ending", [".csv.gz", ".jsonl.gz"])
def test_a_small_archive_of_an_endless_line_is_refused(tmp_path, ending):
    path = tmp_path / f"bomb{ending}"
    with gzip.open(path, "wb") as stream:
        stream.write(b"prompt_tokens,output_tokens\n" * (ending == ".csv.gz"))
        for _ in range(200):
            stream.write(b"0" * (1 << 20))
    command = [sys.executable, "-c", REFUSED_IN_A_CHILD, str(path)]
    growth, error = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split(" ", 1)
    assert re.search(r"line \d is longer than", error)
    assert int(growth) < 1024**3


def test_many_columns(tmp_path):
    path = tmp_path / "wide.csv"
    names = ["prompt_tokens", "output_tokens", *(f"c{i}" for i in range(20_000))]
    path.write_text(",".join(names) + "\n" + ",".join(["1"] * len(names)) + "\n")
    trace = read_trace(path)
    assert len(trace) == 1
    assert len(trace.provenance["ignored_columns"]) == 20_000
