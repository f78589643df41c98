"""How large the code is, as a table: files and lines by folder, and what the rules of the project count in it.

python -m experiments.pages.code_table [CHECKOUT]

Code is lines without docstrings, comments, blank lines and imports.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from servegym.evaluation.markdown import table

APART = ("experiments", "tests")  # no part of the installed package
ROOT = Path(__file__).resolve().parents[2]
NOT_SOURCES = (".venv", "build", "node_modules")
FACES = ("__init__", "__main__")
SHORT, LONG = 30, 350
FLAG, WHO = re.compile(r"\bHAS_[A-Z]"), re.compile(r"(?<!--)\bwho\b")
SHARED = ("loop.py", "iterations.py", "starts.py", "ends.py", "packer.py")  # what all runs go through
COLUMNS = ("folder", "files", "lines", "code", "docstrings", "imports")


def sources(root: Path) -> Iterator[tuple[Path, str]]:
    """(path from the root, text) of each Python file in a folder of a checkout. Links are not followed."""
    for path in sorted(root.rglob("*.py")):
        of_root = path.relative_to(root)
        is_link = any((root / part).is_symlink() for part in of_root.parents)
        if (
            len(of_root.parts) > 1
            and not is_link
            and of_root.parts[0] not in NOT_SOURCES
            and of_root.parts[0][0] != "."
        ):
            yield of_root, path.read_text(encoding="utf-8")


def counted(text: str) -> Counter[str]:
    """Lines of a file by what they are."""
    lines, tree = text.splitlines(), ast.parse(text)
    docstrings, imports = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and type(first.value.value) is str:
                docstrings |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    bare = {n for n, line in enumerate(lines, 1) if not line.strip() or line.strip().startswith("#")} - docstrings
    code = len(lines) - len(bare | docstrings | imports)
    return Counter(files=1, lines=len(lines), code=code, docstrings=len(docstrings), imports=len(imports))


def by_folder(root: Path) -> dict[str, Counter[str]]:
    """Of each folder of a checkout, all that is counted."""
    found: dict[str, Counter[str]] = {}
    for path, text in sources(root):
        found.setdefault(path.parts[0], Counter()).update(counted(text))
    return found


def size_table(folders: dict[str, Counter[str]]) -> str:
    """Product folders, their sum, and what is apart."""
    product = {name: of for name, of in folders.items() if name not in APART}
    total: Counter[str] = sum(product.values(), Counter())
    rows = [*product.items(), ("**product**", total), *((name, folders[name]) for name in APART if name in folders)]
    return table(COLUMNS, ([name, *(f"{of[column]:,}" for column in COLUMNS[1:])] for name, of in rows))


def rules(root: Path) -> list[tuple[str, int]]:
    """What the rules of the project ask to be few, and how many there are."""
    product = {path: text for path, text in sources(root) if path.parts[0] not in APART}
    flags = {path: len(FLAG.findall(text)) for path, text in product.items() if path.parts[0] == "simulator"}
    shared = {path: count for path, count in flags.items() if path.name in SHARED}
    elsewhere = [path for path in flags if flags[path] and path not in shared and path.parent.name != "features"]
    lines = {path: len(text.splitlines()) for path, text in product.items()}
    short = [path for path in lines if lines[path] < SHORT and path.stem not in FACES]
    return [
        ("flags of features in the loop, iterations and the packer", sum(shared.values())),
        ("other files of the simulator with such flags, but for `features/`", len(elsewhere)),
        ("`who` in product code", sum(len(WHO.findall(text)) for text in product.values())),
        (f"product files above {LONG} lines", sum(count > LONG for count in lines.values())),
        (f"product files under {SHORT} lines, but for `__init__`", len(short)),
    ]


def page(root: Path) -> str:
    """Both tables."""
    counts = table(("", "number"), ([what, str(number)] for what, number in rules(root)))
    return f"{size_table(by_folder(root))}\n{counts}"


if __name__ == "__main__":
    print(page(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT), end="")
