"""Kernels are read at a glance: none takes more than eight arguments, and what all runs share names no feature."""

import ast
import re
from pathlib import Path

import pytest

import servegym

ROOT = Path(servegym.__file__).resolve().parents[2]
FOLDERS = (
    "simulator", "latency_models", "traces", "baselines", "scenarios", "envs", "evaluation", "tuners", "adapters",
)  # fmt: skip
MOST = 8
# What makes a function a kernel, by the name of its decorator: those of compilation, of signatures and of environments.
DECORATORS = {"kernel", "inlined_kernel", "hook", "allocating_kernel", "compiled", "scheduler", "victims", "router",
              "scaler", "score", "latency", "request_latency", "queue_latency", "gain", "observe", "act"}  # fmt: skip


def kernels(text: str) -> dict[str, int]:
    """How many arguments each kernel of a source text takes, by its name."""
    found = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            names = [one.func if isinstance(one, ast.Call) else one for one in node.decorator_list]
            if any(isinstance(name, ast.Name) and name.id in DECORATORS for name in names):
                found[node.name] = len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)
    return found


def test_arguments_of_kernels_are_counted() -> None:
    text = "@kernel\ndef a(x, y): ...\n@compiled(signature)\ndef b(x): ...\n@other\ndef c(x): ...\ndef d(x): ...\n"
    assert kernels(text) == {"a": 2, "b": 1}


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_kernel_takes_more_than_eight_arguments(folder: str) -> None:
    counted = {
        f"{path.relative_to(ROOT)}: {name}": count
        for path in (ROOT / folder).rglob("*.py")
        for name, count in kernels(path.read_text()).items()
    }
    assert {name: count for name, count in counted.items() if count > MOST} == {}


@pytest.mark.parametrize("path", ["runs/loop.py", "batching/starts.py", "batching/ends.py", "batching/packer.py"])
def test_what_all_runs_share_reaches_features_by_their_hooks_alone(path: str) -> None:
    tree = ast.parse((ROOT / "simulator" / path).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    of_features = {module for module in modules if module.startswith("servegym.simulator.features.")}
    assert of_features and all(module.endswith("_hooks") for module in of_features)


def test_only_hooks_and_features_ask_for_a_feature() -> None:
    folder = ROOT / "simulator"
    asking = {str(path.relative_to(folder)) for path in folder.rglob("*.py") if "HAS_" in path.read_text()}
    # runs/loops.py makes the loops without features.
    assert {path for path in asking if not path.startswith("features/")} == {"runs/loops.py"}


def test_the_life_of_a_request_names_every_hook() -> None:
    texts = [path.read_text() for path in (ROOT / "simulator/features").glob("*_hooks.py")]
    hooks = {name for text in texts for name in re.findall(r"^@hook\ndef (\w+)", text, flags=re.MULTILINE)}
    page = (ROOT / "docs/life_of_a_request.md").read_text()
    assert hooks == set(re.findall(r"\*\*(\w+)\*\*", page)) - {"bold"}
