"""Which lines came with which commits, in a repository made for it."""

import subprocess
from pathlib import Path

import pytest

from experiments.pages.code_account import account, changes, net, page
from servegym.errors import ExperimentError


def run(root: Path, *arguments: str) -> str:
    author = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    return subprocess.run(("git", *author, *arguments), cwd=root, check=True, capture_output=True, text=True).stdout


def commit(root: Path, title: str, **files: int | None) -> str:
    """A commit that writes files of so many lines, as folder__name; None deletes."""
    for name, lines in files.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.unlink() if lines is None else path.write_text("".join(f"x = {name!r}, {n}\n" for n in range(lines)))
    run(root, "add", "-A")
    run(root, "commit", "-qm", title)
    return run(root, "rev-parse", "--short=8", "HEAD").strip()


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, str, str]:
    run(tmp_path, "init", "-q")
    base = commit(tmp_path, "What was there", traces__a=40, traces__b=10, experiments__c=5)
    feature = commit(tmp_path, "A feature", traces__new=30, traces__b=12, experiments__c=50)
    run(tmp_path, "mv", "traces/a.py", "traces/renamed.py")
    commit(tmp_path, "Names", traces__b=None)
    return tmp_path, base, feature


def test_lines_of_features_and_of_what_was_there_add_up(repository: tuple[Path, str, str]) -> None:
    root, base, feature = repository
    found = changes(root, base, ["traces"])
    of = account(found, {"it": feature})
    assert [(one.title, one.new) for one in of["it"]] == [("A feature", ("traces/new.py",))]
    assert net(of["it"]) == 32 and net(of[""]) == -12  # a file that was renamed is neither added nor deleted
    lines = page(root, base, {"it": feature}).splitlines()
    assert lines[2:] == [
        "| it | 1 | 1 | 32 |",
        "| **new features** |  |  | **32** |",
        f"| what was there at {base}, then |  |  | 50 |",
        "| what all other commits did to it | 1 |  | -12 |",
        "| **what was there, now** |  |  | **38** |",
        "| all of the product |  |  | 70 |",
    ]


def test_a_commit_that_is_not_there_is_named(repository: tuple[Path, str, str]) -> None:
    root, base, _ = repository
    with pytest.raises(ExperimentError, match="no commit 12345678 "):
        account(changes(root, base, ["traces"]), {"it": "12345678"})
    with pytest.raises(ExperimentError, match="git log failed"):
        changes(root / "traces", "no-such", ["traces"])
