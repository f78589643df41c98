"""Rules for the text of a policy's file, which the first stage of a score checks before any of it is run.

A policy needs its arguments, arithmetic, and the parts of policies. Names that lead elsewhere (files, processes,
internals of other modules) are refused with their line. The rules keep honest searches honest; they do not contain
malicious code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from servegym.errors import PolicyError

MODULES = ("__future__", "dataclasses", "enum", "functools", "itertools", "math", "numpy", "typing")
PACKAGES = ("servegym.policy", "servegym.simulator", "servegym.baselines")
OF_SERVEGYM = ("Policy", "baselines", "policy", "register", "simulator")
# Modules that can be reached through others, calls that read, write or run, and ways to code that is not compiled.
LEADS_OUT = frozenset({
    "builtins", "carray", "compile", "ctypes", "ctypeslib", "delattr", "eval", "exec", "farray", "fromfile",
    "gc", "getattr", "globals", "importlib", "input", "inspect", "io", "load_library", "loadtxt", "locals",
    "memmap", "modules", "numba", "objmode", "open", "open_memmap", "os", "pathlib", "pickle", "savetxt",
    "setattr", "shutil", "signal", "socket", "subprocess", "sys", "tempfile", "threading", "tofile", "vars",
})  # fmt: skip
NEEDS = "a policy reads what it is given (context, request, p), and needs none of it"
DUNDERS = ("__name__", "__doc__", "__all__", "__future__")


def check_source(path: Path) -> None:
    """Raise PolicyError, with the line and what would be right, for a file that contains what no policy needs."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise PolicyError(f"{path.name} is no text in UTF-8; it should be Python") from None
    try:
        tree = ast.parse(text, path.name)
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise PolicyError(f"{path.name}{line}: SyntaxError: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise PolicyError(f"{path.name} cannot be read as Python: {error}") from None
    for at, problem in sorted(_problems(tree)):
        raise PolicyError(f"{path.name}, line {at}: {problem}")


def _problems(tree: ast.Module) -> Iterator[tuple[int, str]]:
    own = imported(tree)
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Import):
            yield from ((line, _may_not_import(alias.name)) for alias in node.names if not _may_import(alias.name))
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            names = [alias.name for alias in node.names]
            if not _may_import(module) or (module == "servegym" and not set(names) <= set(OF_SERVEGYM)):
                yield line, _may_not_import(module)
            yield from ((line, f"imports {name}; a policy needs none of it") for name in names if _leads_out(name))
        elif isinstance(node, ast.Name) and _leads_out(node.id):
            yield line, f"uses {node.id}; {NEEDS}"
        elif isinstance(node, ast.Attribute) and _leads_out(node.attr):
            yield line, f"uses .{node.attr}; {NEEDS}"
        elif isinstance(node, ast.Attribute) and _root(node) == "servegym" and not _of_servegym(node):
            yield line, f"uses servegym.{node.attr}; a policy may use {_and(OF_SERVEGYM)} of it"
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del) and _root(node) in own:
            yield line, f"writes into {_root(node)}, which it imported; a policy writes ranks, limits, route and state"


def imported(tree: ast.Module) -> set[str]:
    """Return the names that a file imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return found


def _may_import(module: str) -> bool:
    return module in (*MODULES, "servegym") or any(f"{module}.".startswith(f"{name}.") for name in PACKAGES)


def _may_not_import(module: str) -> str:
    return f"imports {module}; a policy may import {_and((*MODULES[1:], *PACKAGES))}"


def _leads_out(name: str) -> bool:
    return name in LEADS_OUT or (name.startswith("__") and name.endswith("__") and name not in DUNDERS)


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _of_servegym(node: ast.Attribute) -> bool:
    """Return whether a policy may use this attribute of servegym; deeper attributes are judged by the first."""
    return not isinstance(node.value, ast.Name) or node.attr in OF_SERVEGYM


def _and(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
