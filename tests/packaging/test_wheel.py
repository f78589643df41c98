"""The wheel holds every module and data file of the tree, and nothing else; an editable install is found everywhere.

An editable install finds a data file that pyproject.toml forgets; a wheel does not. So the wheel is
built here, from the tree and by way of the source distribution, and compared with the tree.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
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
    assert not missing, "not in the wheel: pyproject.toml, package-data, says which data files are"
    assert not extra, "in the wheel and not in the tree"


def test_there_is_a_link_to_each_package_of_the_root() -> None:
    assert set(LINKS) == {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "experiments"}
    for name in LINKS:
        assert os.readlink(ROOT / "src/servegym" / name) == f"../../{name}"


@pytest.mark.slow
def test_an_editable_install_of_a_clone_is_found_in_the_folder_above(tree: Path, tmp_path: Path) -> None:
    """There a folder named servegym, as `git clone` makes it, looks like a namespace package."""
    clone = shutil.copytree(tree, tmp_path / "servegym", symlinks=True)
    python = tmp_path / "venv/bin/python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv/lib").glob("*/site-packages")
    (site / "packages.pth").write_text(sysconfig.get_path("purelib"))  # what servegym needs, but not its own install
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install", "--no-index"]
    done = subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-e", clone], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    for command in (
        [python, "-c", "import servegym; servegym.simulate; print('servegym', servegym.__version__)"],
        [python, "-m", "servegym", "--version"],
        [python.parent / "servegym", "--version"],
    ):
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stdout.split()[0]) == (0, "servegym"), done.stderr


def test_children_are_run_without_the_current_folder_on_their_path() -> None:
    """What lies there, a file named json.py among it, is none of servegym's."""
    sources = [path for name in LINKS for path in (ROOT / name).rglob("*.py")] + [*(ROOT / "src").rglob("*.py")]
    child = re.compile(r'sys\.executable, (?!"-P").*')
    found = [f"{path.relative_to(ROOT)}: {line}" for path in sources for line in child.findall(path.read_text())]
    assert not found, "run Python with -P"
