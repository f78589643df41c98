"""Two trees in turns."""

from pathlib import Path

from servegym.experiments.benchmarks import in_turns

TREE = Path(__file__).parents[3]


def test_a_tree_is_itself(monkeypatch, capsys):
    times = iter([1.0, 2.0, 4.0, 2.0, 4.0, 2.0])
    monkeypatch.setattr(in_turns, "turn", lambda *_: dict.fromkeys(("compile", *in_turns.CASES), next(times)))
    assert in_turns.main([str(TREE), str(TREE), "--turns", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["first", "compile,", "s", "1.0", "2.0", "2.00"]
    assert "4000.00   2000.00   0.500" in lines[2]
    assert len(lines) == 2 + len(in_turns.CASES) and "0.500 to 0.500" in lines[-1]


def test_what_is_no_tree_and_a_tree_that_fails_are_said_in_a_line(tmp_path, capsys):
    assert in_turns.main([str(tmp_path), str(TREE)]) == 2
    assert f"{tmp_path} is no tree of servegym" in capsys.readouterr().err
    (tmp_path / "src" / "servegym").mkdir(parents=True)
    (tmp_path / "src" / "servegym" / "__init__.py").write_text("raise RuntimeError('broken')")
    assert in_turns.main([str(tmp_path), str(TREE)]) == 2
    assert capsys.readouterr().err.strip() == f"{tmp_path} failed: RuntimeError: broken"
