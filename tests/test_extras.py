"""The command that installs an extra: of a clone with the versions that it pins, of a wheel by name."""

from pathlib import Path

import pytest

from servegym import extras


def test_a_clone_installs_with_its_constraints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = tmp_path / "my clone"
    root.mkdir()
    monkeypatch.setattr(extras, "clone_root", lambda: root)
    assert extras.install_command("train") == f"cd '{root}' && pip install -c constraints.txt -e '.[train]'"
    monkeypatch.chdir(root)
    assert extras.install_command("train") == "pip install -c constraints.txt -e '.[train]'"


def test_a_wheel_installs_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "clone_root", lambda: None)
    assert extras.install_command("kv-events") == "pip install 'servegym[kv-events]'"


def test_the_clone_is_found_from_the_package() -> None:
    root = extras.clone_root()
    assert root is None or (root / "constraints.txt").is_file()
