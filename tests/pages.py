"""The commands that pages tell a reader to give."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Whose every command is run where there is an engine.
ENGINE_PAGES = [
    ROOT / "docs" / f"{name}.md"
    for name in ("study_to_engine", "vllm", "results/vllm-parity", "emulation", "proxy", "results/proxy-load")
]
LINE = re.compile(r"^(?:    |\$ )(.+)$", flags=re.MULTILINE)  # of a code block, indented or as on a console
SET = r"(?:[A-Z_]+=\S+ )*"  # variables before a command
SERVEGYM = re.compile(rf"{SET}servegym (.+)")
SHELL = re.compile(
    rf"{SET}(?:export|kill|curl|(?:\.engines/\S+/)?(?:servegym|vllm|python[0-9.]*)|experiments/\S+\.sh)\b.*"
)


def lines_of(page: Path) -> list[str]:
    """The lines of its code blocks; one that ends in a backslash goes on in the next."""
    return LINE.findall(re.sub(r"\\\n\s*", " ", page.read_text("utf-8")))


def commands_of(page: Path) -> list[str]:
    """Those of servegym, without that word and the variables before it."""
    return [found[1] for line in lines_of(page) if (found := SERVEGYM.fullmatch(line))]


def shell_commands_of(page: Path) -> list[str]:
    """All, as they are written."""
    return [line for line in lines_of(page) if SHELL.fullmatch(line)]
