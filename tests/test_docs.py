"""What the pages tell a reader to do works."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), flags=re.DOTALL)


def test_the_scheduler_of_the_extending_page_runs(tmp_path: Path) -> None:
    file = tmp_path / "least_laxity.py"
    file.write_text(python_blocks("docs/extending.md")[0], "utf-8")
    command = [sys.executable, "-m", "servegym", "simulate", "--load-policies", str(file), "--requests", "50"]
    done = subprocess.run(
        [*command, "--scheduler", "least-laxity:token_budget=256", "--json", "-"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["finished"] == 50


def test_the_first_lines_of_python_in_the_readme_run() -> None:
    names: dict = {}
    exec(python_blocks("README.md")[0], names)
    assert names["result"].summary["finished"] == len(names["result"].requests) == 1000


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text("utf-8")):
            if not target.startswith(("http:", "https:")):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
