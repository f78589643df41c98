"""The file that could not be written is named, by whatever it was written."""

import resource
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

WRITE = """
import sys
from pathlib import Path
import pandas as pd
from servegym.cli import app

def write():
    path = Path(sys.argv[1])
    table = pd.DataFrame({"a": range(1000)})
    {"text": lambda: path.write_text("x" * 5000), "csv": lambda: table.to_csv(path),
     "parquet": lambda: table.to_parquet(path)}[path.suffix[1:]]()

app.with_only = lambda name: lambda **_: write()
app.run()
"""


@pytest.mark.parametrize("kind", ["text", "csv", "parquet"])
def test_a_full_disk_is_told_with_the_file(kind, tmp_path):
    path = tmp_path / f"results.{kind}"
    done = subprocess.run(
        [sys.executable, "-c", WRITE, str(path)], capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(f"servegym: {path}: ") and "File too large" in done.stderr
    assert len(done.stderr.splitlines()) == 1
