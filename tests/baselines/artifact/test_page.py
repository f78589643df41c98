"""The page on artifacts: its example is one, and its Python runs."""

import re
from pathlib import Path

from servegym.baselines.artifact import load_artifact
from servegym.baselines.registry import router, scheduler

PAGE = (Path(__file__).parents[3] / "docs/artifacts.md").read_text("utf-8")


def block(language: str) -> str:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)[0]


def test_the_example_is_an_artifact(tmp_path):
    path = tmp_path / "example.json"
    path.write_text(block("json"))
    artifact = load_artifact(path)
    assert artifact.policies == {"scheduler": scheduler("edf")} and artifact.workload["tpot_slo_s"] == 0.05


def test_the_python_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(block("python"), {})
    assert "slide-batching:gamma=2 + gorouting" in capsys.readouterr().out
    assert load_artifact(tmp_path / "mine.json").router == router("gorouting")
