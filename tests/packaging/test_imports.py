"""What importing means here: only as servegym.*, quickly, and in one direction."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.packaging.import_graph import (
    BEGIN,
    END,
    FOLDERS,
    PACKAGE,
    ROOT,
    Import,
    block,
    imports,
    imports_of_tree,
    modules,
)

HEAVY = {"matplotlib", "numba", "optuna", "pandas", "ray", "stable_baselines3", "torch", "vllm"}

# Each folder, and the others it may import (and EVERYWHERE); servegym/__init__, api and __main__ may import any.
EVERYWHERE = (["errors"], ["extras"], ["parsing"], ["replacing"], ["yaml_parsing"])
MODELS = {"simulator", "latency_models", "traces", "baselines"}
MAY_IMPORT = {
    "simulator": set[str](),
    "latency_models": {"simulator"},
    "traces": {"simulator"},
    "baselines": {"simulator", "policy"},
    "policy": {"simulator"},
    "scenarios": MODELS,
    "envs": MODELS | {"scenarios"},
    "evaluation": MODELS | {"scenarios", "envs"},
    "tuners": MODELS | {"scenarios", "envs", "evaluation"},
    "adapters": {"simulator", "latency_models", "baselines"},
    "export": {"latency_models", "baselines", "simulator", "evaluation", "adapters"},
    "cli": MODELS | {"api", "scenarios", "envs", "evaluation", "tuners", "adapters", "export"},
}


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)


@pytest.mark.parametrize("folder", [name for name in FOLDERS if (PACKAGE / name).is_symlink()])
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


def wrong_ways(tree: Mapping[str, list[Import]]) -> list[str]:
    return [
        f"{module}, line {found.line}: imports {found.target}"
        for module, its_imports in tree.items()
        for found in its_imports
        if (folder := module.split(".")[1:2]) and folder not in (["__main__"], ["api"])
        if (target := found.target.split(".")[1:2]) and target not in (folder, *EVERYWHERE)
        if target[0] not in MAY_IMPORT.get(folder[0], ())
    ]


def cycle(tree: Mapping[str, list[Import]]) -> list[str]:
    """Modules each of which imports the next and the last the first, be it only when a function is called."""
    graph = {
        module: {found.target for found in its_imports if not found.for_types and found.target != module}
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


def test_the_package_never_imports_the_studies() -> None:
    assert modules()
    for module, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.partition(".")[0] == "experiments"], f"{module}: {names}"


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert not cycle(imports_of_tree())


def test_every_way_to_write_an_import_is_seen() -> None:
    known = dict.fromkeys(["servegym", "servegym.envs", "servegym.envs.base", "servegym.simulator.records.types"])
    source = """
import servegym.envs.base as base, numpy
from servegym.simulator.records.types import REQUEST
from ...envs import base
from . import types
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from servegym.envs import Env
def late():
    import importlib
    importlib.import_module("servegym.envs")
"""
    assert imports(source, "servegym.simulator.records.engine", False, known) == [
        ("servegym.envs.base", 2, False), ("servegym.simulator.records.types", 3, False),
        ("servegym.envs.base", 4, False), ("servegym.simulator.records.types", 5, False), ("servegym.envs", 8, True),
        ("servegym.envs", 11, False),
    ]  # fmt: skip


def test_a_wrong_way_and_a_cycle_are_found() -> None:
    tree = {
        "servegym.simulator.engine": [Import("servegym.baselines.fcfs", 3, False)],
        "servegym.baselines.fcfs": [Import("servegym.simulator.engine", 1, False)],
    }
    assert wrong_ways(tree) == ["servegym.simulator.engine, line 3: imports servegym.baselines.fcfs"]
    assert set(cycle(tree)) == set(tree)
    tree["servegym.baselines.fcfs"] = [Import("servegym.simulator.engine", 1, True)]
    assert not cycle(tree)


def test_the_graph_in_the_documentation_is_that_of_the_tree() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    assert BEGIN + block() + END in text, "make docs writes it anew"
