"""The tutorials run as they are written, each in a process and an empty folder of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "docs/tutorials"
TUTORIALS = sorted(FOLDER.glob("*.ipynb"))
HEAD = "import shlex, subprocess\nimport matplotlib\nmatplotlib.use('Agg')\n"


def script(path: Path) -> str:
    """The code of a notebook as Python: a line `!command` runs that command."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    lines = [
        f"subprocess.run(shlex.split({line[1:]!r}), check=True)" if line.startswith("!") else line
        for line in "\n".join(code).splitlines()
    ]
    return HEAD + "\n".join(lines)


@pytest.mark.parametrize("path", TUTORIALS, ids=[path.stem for path in TUTORIALS])
def test_a_tutorial_runs(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "tutorial.py"
    file.write_text(script(path), "utf-8")
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, file], cwd=tmp_path, env=os.environ | {"PATH": folders}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("path", TUTORIALS, ids=[path.stem for path in TUTORIALS])
def test_a_tutorial_is_kept_with_what_it_printed(path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert any(cell["outputs"] for cell in cells)
    text = path.read_text("utf-8")
    assert "\\u001b" not in text and '"output_type": "error"' not in text
    assert str(FOLDER.parents[1]) not in text, "a path of the machine it ran on"


def test_there_are_five() -> None:
    assert len(TUTORIALS) == 5
