"""Two trees in turns."""

from pathlib import Path

import pytest

from experiments.benchmarks import in_turns
from servegym.simulator.compilation.cache import cache_root

pytestmark = pytest.mark.slow

TREE = Path(__file__).parents[3]


def test_a_tree_beside_itself(monkeypatch, capsys):
    folder = str(cache_root())
    monkeypatch.setattr(in_turns.tempfile, "TemporaryDirectory", lambda: _Kept(folder))  # compiled before
    few = ["--processes", "2", "--pairs", "2", "--only", "sarathi-fcfs", "reset"]
    assert in_turns.main([str(TREE), str(TREE), *few]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == ["all cases compiled", "sarathi-fcfs", "reset"]
    ratio, low, _, high, processes = lines[2].split()[-5:]
    assert float(low) <= float(ratio) <= float(high.rstrip(",")) and processes == "2"


class _Kept:
    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        return self.folder

    def __exit__(self, *_):
        pass


def test_the_interval_is_over_pairs_of_processes():
    """However many turns they take. Medians of turns 1, 1.1 and 1.2: t(2) * 0.1 / sqrt(3) = 4.303 * 0.0577 = 0.248."""
    found = [[(0.1, 0.1 * ratio), (0.2, 0.2 * ratio), (0.1, 0.9)] * 20 for ratio in (1.0, 1.1, 1.2)]
    assert in_turns.case_line("case", found).split()[-5:] == ["1.100", "0.852", "to", "1.348,", "3"]
    assert in_turns.case_line("case", found[:1]).split()[-3:] == ["1.000", "-,", "1"]


def test_what_is_no_tree_and_a_tree_that_fails_are_said_in_a_line(tmp_path, capsys):
    assert in_turns.main([str(tmp_path), str(TREE)]) == 2
    assert f"{tmp_path} is no tree of servegym" in capsys.readouterr().err
    (tmp_path / "src" / "servegym").mkdir(parents=True)
    (tmp_path / "src" / "servegym" / "__init__.py").write_text("raise RuntimeError('broken')")
    assert in_turns.main([str(tmp_path), str(TREE)]) == 2
    assert capsys.readouterr().err.strip() == f"{tmp_path} failed: RuntimeError: broken"
    assert in_turns.main([str(tmp_path), str(TREE), "--only", "reset"]) == 2
    assert f"{tmp_path} cannot run in_turns_cases.py: try PYTHONPATH=" in capsys.readouterr().err
