"""Run tutorials anew and keep what they print: python -m website.notebooks docs/tutorials/*.ipynb

Each in an empty folder of its own. What the site shows is what is in the files; `make site` runs nothing.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

SECONDS = 600  # for a cell
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
BAR = re.compile(r"(runs|searches) |━|servegym: compil")  # of progress


def run_anew(path: Path) -> None:
    """Execute a notebook in place; what differs from run to run without saying anything is left out."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook, timeout=SECONDS, coalesce_streams=True, resources={"metadata": {"path": folder}}
        ).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [cleaned(output) for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, path)


def cleaned(output: Any) -> Any:
    """What a command printed, without a terminal's colours and without the bars of its progress."""
    if output.output_type == "stream":
        lines = [line.rstrip() for line in re.split(r"[\r\n]+", CONTROL.sub("", output.text))]
        output.text = "\n".join(line for line in lines if line and not BAR.match(line)) + "\n"
    return output


if __name__ == "__main__":
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # for `!servegym`
    os.environ |= {"COLUMNS": "140", "TERM": "dumb", "NO_COLOR": "1"}
    for argument in sys.argv[1:]:
        run_anew(Path(argument))
