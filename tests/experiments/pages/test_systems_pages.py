"""The generated parts of docs/systems: they are fresh, complete, and say what the policies say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.pages import systems_pages
from experiments.pages.systems_pages import COMMAND, check_pages, parameter_table, policy_names
from servegym.cli.policies import number_text, range_text
from servegym.errors import ExperimentError
from servegym.simulator.policies.policy import ByWord, Fact, Parameter, Policy, last_ranked_first

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs" / "systems"


def test_the_pages_are_fresh() -> None:
    for path, text in systems_pages.written(PAGES).items():
        assert path.read_text("utf-8") == text, f"{path.name}: run make docs, or {COMMAND}"


def test_every_policy_is_on_one_page_with_a_rule() -> None:
    """On one page once, and there under a heading that names it."""
    pages = {path.name: path.read_text("utf-8") for path in PAGES.glob("*.md")}
    headings = {name: re.findall(r"^## (.*)$", text, flags=re.MULTILINE) for name, text in pages.items()}
    for name in policy_names():
        (page,) = [page for page, text in pages.items() if name in systems_pages.documented(text)]
        assert any(name in heading.split(", ") for heading in headings[page]), f"{page}: no heading says {name}"


def test_the_list_links_every_page() -> None:
    index = (PAGES / "README.md").read_text("utf-8")
    for path in PAGES.glob("*.md"):
        assert path.name == "README.md" or f"]({path.name})" in index


def test_links_lead_somewhere() -> None:
    for page in PAGES.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def policy(*parameters: Parameter) -> Policy:
    return Policy("a-policy", "scheduler", "", "", last_ranked_first, parameters=parameters)


def test_a_table_of_parameters() -> None:
    made = parameter_table(
        policy(
            Parameter("gamma", 1.0, "how much", 0.1, 10, log=True, source="a paper, Eq. 9"),
            Parameter("eta", Fact("min_tpot_slo_s", 0.65), "least | most", 0.005, 0.5, "s"),
            Parameter("order", "edf", "which", choices=("edf", "sjf")),
            Parameter("late", ByWord("order", {"edf": "yes", "sjf": Fact("a", 2)}), "whether", choices=("yes", "no")),
        )
    )
    assert made.splitlines() == [
        "| parameter | default | range | unit | meaning | source |",
        "| --- | --- | --- | --- | --- | --- |",
        "| `gamma` | `1` | 0.1 to 10, log |  | how much | a paper, Eq. 9 |",
        r"| `eta` | `0.65 * min_tpot_slo_s` | 0.005 to 0.5 | s | least \| most | ours |",
        "| `order` | `edf` | `edf`, `sjf` |  | which | ours |",
        "| `late` | order=edf: `yes`, order=sjf: `2 * a` | `yes`, `no` |  | whether | ours |",
    ]
    assert parameter_table(policy()) == "No parameters.\n"


@pytest.mark.parametrize(
    ("value", "text"), [(2**20, "1048576"), (3.0, "3"), (0.0001, "0.0001"), (1e9, "1e+09"), ("sjf", "sjf")]
)
def test_numbers_are_as_one_types_them(value: float | str, text: str) -> None:
    assert number_text(value) == text


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ({}, "any"),
        ({"low": 0}, "from 0"),
        ({"high": 2}, "up to 2"),
        ({"low": 1, "high": 2, "log": True}, "1 to 2, log"),
    ],
)
def test_ranges(ends: dict, text: str) -> None:
    assert range_text(Parameter("x", 1, "", **ends)) == text


def test_what_is_written_by_hand_stays(tmp_path: Path) -> None:
    page, names = tmp_path / "all.md", [name for name in policy_names() if not name.startswith("sarathi")]
    markers = "".join(f"## {name}\n<!-- parameters: {name} -->\nRule of {name}.\n\n" for name in names)
    shared = "<!-- parameters: sarathi-fcfs, sarathi-priority -->\n"
    others = "".join(f"<!-- parameters: sarathi-{key} -->\n" for key in ("edf", "sjf", "srpf"))
    page.write_text(f"# All\n{markers}{shared}{others}The end.\n", "utf-8")
    (tmp_path / "README.md").write_text("# Systems\n<!-- policies -->\nThe end.\n", "utf-8")
    for _ in range(2):  # the second time over its own tables
        systems_pages.main([str(tmp_path)])
        text = page.read_text("utf-8")
        assert text.count("<!-- end of table -->") == len(names) + 4
        assert all(f"Rule of {name}.\n" in text for name in names) and text.endswith("The end.\n")
        assert text.count("| `reserve` |") >= 1
        index = (tmp_path / "README.md").read_text("utf-8")
        assert index.count("| [All](all.md) |") == len(policy_names()) and index.endswith("The end.\n")
    page.write_text(text.replace("| `reserve` | `0.1`", "| `reserve` | `0.2`"), "utf-8")
    assert systems_pages.written(tmp_path)[page] == text  # a stale table is seen


def test_what_is_missing_or_twice_is_an_error() -> None:
    names = policy_names()
    check_pages({"a.md": names})
    with pytest.raises(ExperimentError, match="the parameters of edf are on no page"):
        check_pages({"a.md": [name for name in names if name != "edf"]})
    with pytest.raises(ExperimentError, match=r"the parameters of edf are on a\.md, b\.md"):
        check_pages({"a.md": names, "b.md": ["edf"]})
    with pytest.raises(ExperimentError, match=r"b\.md: there is no scheduler, router or scaler edff"):
        check_pages({"a.md": names, "b.md": ["edff"]})


def test_those_that_share_a_table_have_the_same_parameters() -> None:
    with pytest.raises(ExperimentError, match="edf and vllm-v1 share a table but differ"):
        systems_pages.shared_table("edf, vllm-v1")


def test_the_command_says_what_it_takes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", systems_pages.__name__], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 1 and "it takes one folder" in done.stderr and "Traceback" not in done.stderr
