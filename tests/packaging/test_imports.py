"""What importing means here: only as servegym.*, quickly, and in one direction."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src/servegym"
FOLDERS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))  # links to the root, and cli
HEAVY = {"matplotlib", "numba", "optuna", "pandas", "ray", "stable_baselines3", "torch", "vllm"}

# Each folder, and the others it may import; servegym/__init__, api and __main__ may import any.
MODELS = {"simulator", "latency_models", "traces", "baselines"}
MAY_IMPORT = {
    "simulator": set[str](),
    "latency_models": {"simulator"},
    "traces": {"simulator"},
    "baselines": {"simulator"},
    "envs": MODELS,
    "tuners": MODELS | {"envs"},
    "adapters": {"simulator", "latency_models", "baselines"},
    "experiments": MODELS | {"envs", "tuners", "adapters"},
    "cli": MODELS | {"api", "envs", "tuners", "adapters", "experiments"},
}


class Import(NamedTuple):
    target: str  # a module of servegym
    line: int
    at_import_time: bool


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)


@pytest.mark.parametrize("folder", [name for name in FOLDERS if name != "cli"])
def test_a_root_folder_refuses_its_bare_name(folder: str) -> None:
    done = run_python(f"import {folder}")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == f"ImportError: this folder is the package servegym.{folder}: import it under that name"


def test_import_servegym_is_light() -> None:
    done = run_python("import json, sys, servegym; print(json.dumps(list(sys.modules)))")
    assert done.returncode == 0, done.stderr
    loaded = {name.split(".")[0] for name in json.loads(done.stdout)}
    assert "servegym" in loaded
    assert not loaded & HEAVY


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for here, _, names in os.walk(PACKAGE, followlinks=True):
        for path in (Path(here) / name for name in names if name.endswith(".py")):
            parts = path.relative_to(PACKAGE).with_suffix("").parts
            found[".".join(("servegym", *(part for part in parts if part != "__init__")))] = path
    return found


def statements(node: ast.AST, at_import_time: bool = True) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below, and whether it runs when its module is imported."""
    called_later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    for child in ast.iter_child_nodes(node):
        runs = at_import_time and not called_later and not (for_types and child in node.body)
        yield child, runs
        yield from statements(child, runs)


def imports(source: str, module: str, is_package: bool, known: Mapping[str, object]) -> list[Import]:
    """What a module imports of servegym, each resolved to the innermost module it names."""
    found = []
    for node, runs in statements(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                kept = len(parents) - node.level + is_package
                base = ".".join(parents[:kept] + [node.module] * bool(node.module))
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
        for name in names:
            if name.split(".")[0] == "servegym":
                while name not in known and "." in name:
                    name = name.rpartition(".")[0]
                found.append(Import(name, node.lineno, runs))
    return found


def imports_of_tree() -> dict[str, list[Import]]:
    known = modules()
    return {
        module: imports(path.read_text(encoding="utf-8"), module, path.name == "__init__.py", known)
        for module, path in known.items()
    }


def wrong_ways(tree: Mapping[str, list[Import]]) -> list[str]:
    return [
        f"{module}, line {found.line}: imports {found.target}"
        for module, its_imports in tree.items()
        for found in its_imports
        if (folder := module.split(".")[1:2]) and folder not in (["__main__"], ["api"])
        if (target := found.target.split(".")[1:2]) and target != folder
        if target[0] not in MAY_IMPORT.get(folder[0], ())
    ]


def cycle(tree: Mapping[str, list[Import]]) -> list[str]:
    graph = {
        module: {found.target for found in its_imports if found.at_import_time and found.target != module}
        for module, its_imports in tree.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_imports_point_one_way() -> None:
    assert set(FOLDERS) <= set(MAY_IMPORT), "say above what the new folder may import"
    assert not wrong_ways(imports_of_tree())


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert not cycle(imports_of_tree())


def test_every_way_to_write_an_import_is_seen() -> None:
    known = dict.fromkeys(["servegym", "servegym.envs", "servegym.envs.base", "servegym.simulator.types"])
    source = """
import servegym.envs.base as base, numpy
from servegym.simulator.types import REQUEST
from ..envs import base
from . import types
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from servegym.envs import Env
def late():
    import importlib
    importlib.import_module("servegym.envs")
"""
    assert imports(source, "servegym.simulator.engine", False, known) == [
        ("servegym.envs.base", 2, True),
        ("servegym.simulator.types", 3, True),
        ("servegym.envs.base", 4, True),
        ("servegym.simulator.types", 5, True),
        ("servegym.envs", 8, False),
        ("servegym.envs", 11, False),
    ]


def test_a_wrong_way_and_a_cycle_are_found() -> None:
    tree = {
        "servegym.simulator.engine": [Import("servegym.baselines.fcfs", 3, True)],
        "servegym.baselines.fcfs": [Import("servegym.simulator.engine", 1, True)],
    }
    assert wrong_ways(tree) == ["servegym.simulator.engine, line 3: imports servegym.baselines.fcfs"]
    assert set(cycle(tree)) == set(tree)
    tree["servegym.baselines.fcfs"] = [Import("servegym.simulator.engine", 1, False)]
    assert not cycle(tree)
