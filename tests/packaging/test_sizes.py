"""How long the files of the product are: one idea a file, from 30 to 350 lines."""

from collections.abc import Mapping

from experiments.pages.code_table import APART, LONG, ROOT, SHORT, sources

FACES = ("__init__", "__main__")
# Shorter, with the reason.
MAY_BE_SHORT = {
    "adapters/emulation/platform.py": "vLLM imports it while it looks for a platform, before its other modules can be",
    "simulator/records/types.py": "the face of all record types",
}


def wrong_sizes(lengths: Mapping[str, int]) -> list[str]:
    """Files that are too long, or too short and neither a package's face nor excused, with their numbers of lines."""
    short = {
        path: lines
        for path, lines in lengths.items()
        if lines < SHORT and not path.removesuffix(".py").endswith(FACES) and path not in MAY_BE_SHORT
    }
    long = {path: lines for path, lines in lengths.items() if lines > LONG}
    return [f"{path}: {lines} lines" for path, lines in (short | long).items()]


def lengths() -> dict[str, int]:
    return {path.as_posix(): len(text.splitlines()) for path, text in sources(ROOT) if path.parts[0] not in APART}


def test_no_file_of_the_product_is_too_short_or_too_long() -> None:
    found = lengths()
    assert len(found) > 300
    assert not wrong_sizes(found), "merge it into the file it belongs with, or part it"
    assert not [path for path in MAY_BE_SHORT if found.get(path, SHORT) >= SHORT], "no longer short: strike it out"


def test_short_and_long_files_are_found() -> None:
    assert wrong_sizes({"envs/a.py": 29, "envs/b.py": 351, "envs/c.py": 30, "envs/__init__.py": 3}) == [
        "envs/a.py: 29 lines",
        "envs/b.py: 351 lines",
    ]
