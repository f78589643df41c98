"""Which package imports which, read from the sources: the graph in docs/architecture.md.

python -m tests.packaging.import_graph docs/architecture.md     writes it there anew
python -m tests.packaging.import_graph                          prints the lines of Python of each package
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src/servegym"
FOLDERS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))  # links to the root, cli and export
BEGIN, END = "<!-- packages -->\n\n", "\n<!-- end of packages -->"


class Import(NamedTuple):
    target: str  # a module of servegym
    line: int
    for_types: bool  # only read by type checkers


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for here, _, names in os.walk(PACKAGE, followlinks=True):
        for path in (Path(here) / name for name in names if name.endswith(".py")):
            parts = path.relative_to(PACKAGE).with_suffix("").parts
            found[".".join(("servegym", *(part for part in parts if part != "__init__")))] = path
    return found


def statements(node: ast.AST, for_types: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below, and whether only type checkers read it."""
    checks = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    for child in ast.iter_child_nodes(node):
        never_runs = for_types or (checks and child in node.body)
        yield child, never_runs
        yield from statements(child, never_runs)


def imports(source: str, module: str, is_package: bool, known: Mapping[str, object]) -> list[Import]:
    """What a module imports of servegym, each resolved to the innermost module it names."""
    found = []
    for node, for_types in statements(ast.parse(source)):
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
                found.append(Import(name, node.lineno, for_types))
    return found


def imports_of_tree() -> dict[str, list[Import]]:
    known = modules()
    return {
        module: imports(path.read_text(encoding="utf-8"), module, path.name == "__init__.py", known)
        for module, path in known.items()
    }


def package_graph() -> dict[str, set[str]]:
    """Of each package those that it imports, `errors` aside."""
    graph: dict[str, set[str]] = {folder: set() for folder in FOLDERS}
    for module, its_imports in imports_of_tree().items():
        package = ".".join(module.split(".")[1:2])
        if package in graph:
            targets = {".".join(found.target.split(".")[1:2]) for found in its_imports if not found.for_types}
            graph[package] |= targets & set(FOLDERS) - {package}
    return graph


def block() -> str:
    """The graph as a table in Markdown: each package below those that it imports."""
    graph = package_graph()
    depth: dict[str, int] = {}
    for package in TopologicalSorter(graph).static_order():
        depth[package] = 1 + max((depth[other] for other in graph[package]), default=-1)
    order = sorted(graph, key=lambda package: (depth[package], package))
    rows = [f"| `{one}` | {', '.join(f'`{o}`' for o in order if o in graph[one]) or 'none'} |" for one in order]
    return "\n".join(["| package | imports |", "|---|---|", *rows]) + "\n"


def lines_of_python() -> dict[str, int]:
    """Lines of Python of each package, "" being what lies beside them."""
    counted: dict[str, int] = {}
    for module, path in modules().items():
        package = module.split(".")[1] if module.split(".")[1:2] and module.split(".")[1] in FOLDERS else ""
        counted[package] = counted.get(package, 0) + len(path.read_text(encoding="utf-8").splitlines())
    return counted


if __name__ == "__main__":
    if len(sys.argv) > 1:
        page = Path(sys.argv[1])
        before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        page.write_text(before + BEGIN + block() + END + rest.partition(END)[2], encoding="utf-8")
    else:
        lines = lines_of_python()
        print("\n".join(f"{count:6d} {package or 'beside them'}" for package, count in sorted(lines.items())))
        print(f"{sum(lines.values()):6d} in all")
