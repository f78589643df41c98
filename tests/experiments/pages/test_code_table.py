"""How large the code is: what counts as what, and what is left out."""

from pathlib import Path

from experiments.pages.code_table import by_folder, counted, page, rules, size_table

TEXT = '''"""What it is."""

import math
from os import (
    path,
)

# a comment


def root(x):
    """The root.

    x: 0 or more.
    """
    return math.sqrt(x)  # a remark
'''


def test_lines_are_told_apart() -> None:
    assert counted(TEXT) == {"files": 1, "lines": 16, "code": 2, "docstrings": 5, "imports": 4}


def checkout(root: Path) -> Path:
    for path, text in {
        "simulator/runs/loop.py": "if HAS_IT:\n    x = 1\n",
        "simulator/features/it.py": "HAS_IT = True\n",
        "simulator/fleet/arrivals.py": "# HAS_IT\n" * 400,
        "traces/__init__.py": "",
        "tests/test_it.py": TEXT,
        ".venv/lib/other.py": TEXT,
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / "src/servegym").mkdir(parents=True)
    (root / "src/servegym/cli.py").write_text("# who does it, and --who\n")
    (root / "src/servegym/traces").symlink_to(root / "traces")
    return root


def test_folders_are_counted_once_and_environments_not_at_all(tmp_path: Path) -> None:
    folders = by_folder(checkout(tmp_path))
    assert {name: of["files"] for name, of in folders.items()} == {"simulator": 3, "src": 1, "tests": 1, "traces": 1}
    *_, product, tests = size_table(folders).splitlines()
    assert product.startswith("| **product** | 5 | 404 | 3 |") and tests.startswith("| tests | 1 | 16 |")


def test_rules_are_counted(tmp_path: Path) -> None:
    assert [number for _, number in rules(checkout(tmp_path))] == [1, 1, 1, 1, 3]
    assert page(tmp_path).count("| --- |") == 2
