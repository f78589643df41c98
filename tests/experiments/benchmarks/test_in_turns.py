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
    assert in_turns.main([str(TREE), str(TREE), "--pairs", "4", "--only", "sarathi-fcfs", "reset"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == ["all cases compiled", "sarathi-fcfs", "reset"]
    ratio, low, _, high, pairs = lines[2].split()[-5:]
    assert float(low) <= float(ratio) <= float(high.rstrip(",")) and pairs == "4"


class _Kept:
    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        return self.folder

    def __exit__(self, *_):
        pass


@pytest.mark.parametrize(("values", "between"), [(range(1, 61), (22, 39)), (range(1, 7), (1, 6)), ([3], (3, 3))])
def test_the_median_lies_between_values_in_order(values, between):
    """Of 60, ranks 22 and 39: P(21 or fewer of 60 coins are heads) = 0.0137, 22 or fewer 0.026 > 0.025."""
    assert in_turns.median_interval([float(value) for value in values]) == between


def test_what_is_no_tree_and_a_tree_that_fails_are_said_in_a_line(tmp_path, capsys):
    assert in_turns.main([str(tmp_path), str(TREE)]) == 2
    assert f"{tmp_path} is no tree of servegym" in capsys.readouterr().err
    (tmp_path / "src" / "servegym").mkdir(parents=True)
    (tmp_path / "src" / "servegym" / "__init__.py").write_text("raise RuntimeError('broken')")
    assert in_turns.main([str(tmp_path), str(TREE)]) == 2
    assert capsys.readouterr().err.strip() == f"{tmp_path} failed: RuntimeError: broken"
    assert in_turns.main([str(tmp_path), str(TREE), "--only", "reset"]) == 2
    assert f"{tmp_path} cannot run in_turns_cases.py: try PYTHONPATH=" in capsys.readouterr().err
