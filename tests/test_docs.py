"""What the pages tell a reader to do works."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), flags=re.DOTALL)


def test_the_schedulers_of_the_extending_page_run_and_are_one(tmp_path: Path) -> None:
    """A score in ten lines, and the same policy as ranks."""
    found = []
    for name, code in zip(("score", "ranks"), python_blocks("docs/extending.md")[:2], strict=True):
        file = tmp_path / f"{name}.py"
        file.write_text(code, "utf-8")
        command = [sys.executable, "-m", "servegym", "simulate", "--load-policies", str(file), "--requests", "50"]
        done = subprocess.run(
            [*command, "--scheduler", "least-laxity:token_budget=256", "--json", "-"],
            capture_output=True, text=True, check=False, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found.append(
            {key: value for key, value in json.loads(done.stdout).items() if key not in ("wall_s", "arguments")}
        )
    assert found[0] == found[1] and found[0]["finished"] == 50


def test_the_first_lines_of_python_in_the_readme_run() -> None:
    names: dict = {}
    exec(python_blocks("README.md")[0], names)
    assert names["result"].summary["finished"] == len(names["result"].requests) == 1000


def test_the_router_of_the_extending_page_runs(tmp_path: Path) -> None:
    file = tmp_path / "most_memory.py"
    file.write_text(python_blocks("docs/extending.md")[2], "utf-8")
    command = [sys.executable, "-m", "servegym", "simulate", "--load-policies", str(file), "--requests", "50"]
    for engines in (["--engines", "3"], ["--prefill", "1", "--decode", "2"]):
        done = subprocess.run(
            [*command, *engines, "--router", "most-memory", "--json", "-"],
            capture_output=True, text=True, check=False, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["finished"] == 50


def test_the_cluster_of_the_clusters_page_runs() -> None:
    names: dict = {}
    first, tiers, startup, incidents, prefixes = python_blocks("docs/clusters.md")
    exec(first, names)
    result = names["result"]
    assert result.summary["finished"] == 300
    assert list(result.engines["role"]) == ["prefill"] * 2 + ["decode"] * 3
    exec(tiers, names)
    summary = names["result"].summary
    assert summary["finished"] == 300 and summary["cost_engine_s"] < 6 * summary["span_s"]
    exec(startup, names)
    summary = names["result"].summary
    assert summary["finished"] == 3000 and 0 < summary["cost"] < 4 * 4.0 * summary["span_s"] / 3600
    assert 0 < summary["energy_kwh"] < summary["energy_kwh_at_most"]
    exec(incidents, names)
    result = names["result"]
    assert result.summary["finished"] == 300 and result.summary["reroutes"] > 0
    assert list(result.engines["failures"]) == [1, 0, 0, 1, 0]
    exec(prefixes, names)
    assert names["result"].summary["cached_tokens"] > 0


def test_the_commands_of_the_clusters_page_run(tmp_path: Path) -> None:
    text = (ROOT / "docs/clusters.md").read_text("utf-8")
    commands = re.findall(r"^    servegym (.*)$", text, flags=re.MULTILINE)
    assert len(commands) == 7
    for command in commands:
        less = ["--requests", "30", *(["--seeds", "1"] if command.startswith("compare") else [])]
        done = subprocess.run(
            [sys.executable, "-m", "servegym", *command.split(), *less],
            capture_output=True, text=True, check=False, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text("utf-8")):
            if not target.startswith(("http:", "https:")):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
