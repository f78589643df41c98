"""Budgets of what creeps: what is counted; never how fast."""

from pathlib import Path

import pytest

from experiments.benchmarks import budgets
from servegym.envs.registration import NAMES
from servegym.errors import ExperimentError


def test_starts_are_ratios_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, ...]] = []

    def process_s(arguments: tuple[str, ...], **environment: str) -> float:
        ran.append(arguments)
        return 0.5 if arguments == budgets.BESIDE else 2.0

    monkeypatch.setattr(budgets, "process_s", process_s)
    figures = budgets.starts(repetitions=2)
    assert {figure.name: figure.value for figure in figures} == dict.fromkeys(budgets.STARTS, 4.0)
    assert all(figure.at_most is not None for figure in figures)
    first = budgets.STARTS["import_ratio"][0]
    assert ran[:5] == [first, first, budgets.BESIDE, first, budgets.BESIDE]


def test_each_environment_begins_with_an_empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    caches = []

    def process_s(arguments: tuple[str, ...], SERVEGYM_CACHE: str) -> float:
        assert list(Path(SERVEGYM_CACHE).iterdir()) == []
        caches.append(SERVEGYM_CACHE)
        return 1.0

    monkeypatch.setattr(budgets, "process_s", process_s)
    names = [budgets.first_reset(name).name for name in NAMES]
    assert names[0] == "enginebatching_v0_first_reset_s" and len(set(names)) == len(set(caches)) == len(NAMES)


def test_processor_time_of_a_process() -> None:
    assert 0 < budgets.process_s(("-c", "pass")) < 5
    with pytest.raises(ExperimentError, match=r"failed \(3\)"):
        budgets.process_s(("-c", "raise SystemExit(3)"))


def test_wheels(tmp_path: Path) -> None:
    assert budgets.sizes_of_wheels(tmp_path) == []
    (tmp_path / "servegym-0.1.0-py3-none-any.whl").write_bytes(bytes(2_000_000))
    (tmp_path / "servegym-0.1.0-cp311-cp311-linux_x86_64.whl").write_bytes(bytes(3_000_000))
    (figure,) = budgets.sizes_of_wheels(tmp_path)
    assert figure.value == 3 and figure.met == "yes"


def test_lines_are_counted_once(tmp_path: Path) -> None:
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "a.py").write_text("one\ntwo\n")
    package = tmp_path / "src" / "servegym"
    package.mkdir(parents=True)
    (package / "linked").symlink_to(tmp_path / "linked")
    (package / "b.py").write_text("three")
    for name in budgets.STUDIES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "c.py").write_text("x\n")
    assert [figure.value for figure in budgets.lines(tmp_path)] == [3, 2]


def test_this_tree_has_lines() -> None:
    assert all(figure.value > 1e4 for figure in budgets.lines(budgets.ROOT))
