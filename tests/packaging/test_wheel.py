"""The wheel holds every module and data file of the tree, and nothing else.

An editable install finds a sub-package that pyproject.toml forgets; a wheel does not. So the wheel is
built here, from the tree and by way of the source distribution, and compared with the tree.
"""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINKS = sorted(path.name for path in (ROOT / "src/servegym").iterdir() if path.is_symlink())
NOT_SHIPPED = shutil.ignore_patterns("__pycache__", "*.py[cod]", "*.nb[ic]", "*.egg-info", ".*")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a build reads, so that building leaves nothing in the checkout."""
    copy = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("src", *LINKS):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=NOT_SHIPPED)
    return copy


def build_wheel(tree: Path, out: Path, *kinds: str) -> Path:
    command = [sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", str(out), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=out)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = out.glob("*.whl")
    return wheel


def files_of_tree(tree: Path) -> set[str]:
    folders = {"servegym": tree / "src/servegym"} | {f"servegym/{name}": tree / name for name in LINKS}
    return {
        f"{prefix}/{(Path(here) / name).relative_to(folder).as_posix()}"
        for prefix, folder in folders.items()
        for here, _, names in os.walk(folder)  # does not follow the links
        for name in names
    }


@pytest.mark.parametrize("kinds", [("--wheel",), ()], ids=["from the tree", "by way of the sdist"])
def test_the_wheel_holds_what_the_tree_holds(tree: Path, tmp_path: Path, kinds: tuple[str, ...]) -> None:
    with zipfile.ZipFile(build_wheel(tree, tmp_path, *kinds)) as wheel:
        names = wheel.namelist()
    packed = {name for name in names if not name.split("/")[0].endswith(".dist-info")}
    expected = files_of_tree(tree)
    assert "servegym/simulator/__init__.py" in expected
    assert len(names) == len(set(names)), "a file is in the wheel twice"
    missing, extra = sorted(expected - packed), sorted(packed - expected)
    assert not missing, "not in the wheel: name them in pyproject.toml (packages, package-dir, package-data)"
    assert not extra, "in the wheel and not in the tree"


def test_links_and_package_dir_name_the_root_folders() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert set(LINKS) == folders
    for name in LINKS:
        assert os.readlink(ROOT / "src/servegym" / name) == f"../../{name}"
        assert setuptools["package-dir"][f"servegym.{name}"] == name
    for package, folder in setuptools["package-dir"].items():
        assert package in setuptools["packages"]
        assert package == "servegym" or package == "servegym." + folder.replace("/", ".")
