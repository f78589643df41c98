"""Tables in terminals of any width: names whole, what matters there, and told what is not."""

import io

import pytest
from rich.console import Console

from servegym.cli.tables import folded, show_tables, stacked

NAMES = ("vllm-fcfs", "slide-batching *", "sarathi-priority")
MATTER = {"SLO attainment": "0.9982 ± 0.0012", "TDG ratio": "0.9896 ± 0.0679", "p99 TTFT, s": "4.90"}
OPTIONAL = {
    "difference": "-0.2333 ± 0.0012", "starved": "0.777", "fairness by length": "0.993", "evictions": "12,345",
}  # fmt: skip
ORDER = list(OPTIONAL)[::-1]


def shown(width: int, names=NAMES) -> str:
    console = Console(width=width, file=io.StringIO(), markup=False, highlight=False)
    rows = [{"scheduler": name, **MATTER, **OPTIONAL} for name in names]
    show_tables(console, {"Load 1": rows}, ORDER)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 70, 80, 100, 120, 200])
def test_names_and_what_matters_are_whole_at_any_width(width):
    text = shown(width)
    table, _, remark = text.partition("Not shown")
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    for words in (*NAMES, *(part for cell in MATTER.values() for part in cell.split(" ± "))):
        assert words in table
    gone = [name for name in ORDER if OPTIONAL[name].split(" ")[0] not in table]
    assert gone == ORDER[: len(gone)]
    for name in gone:
        assert name in " ".join(remark.split())


def test_all_columns_are_there_where_it_says_that_they_have_room():
    remark = " ".join(shown(80).split())
    room = int(remark.partition("COLUMNS=")[2].split()[0])
    assert "Not shown" not in shown(room) and "Not shown" in shown(room - 1)


def test_a_column_without_text_is_left_out():
    console = Console(width=80, file=io.StringIO())
    assert show_tables(console, {"": [{"policy": "edf", "minus": "", "TDG": "0.9"}]}, ["minus"]) == ["policy", "TDG"]
    assert "minus" not in console.file.getvalue()


def test_long_names_are_broken_between_their_parts():
    name = "slide-batching:gamma=2.1234,eta=0.33333 + gorouting:alpha=0.123456"
    lines = folded(name, 30).split("\n")
    assert lines == ["slide-batching:gamma=2.1234,", "eta=0.33333 + gorouting:", "alpha=0.123456"]
    narrow = shown(60, (name,))
    assert all(part in narrow for part in ("slide-batching:", "gamma=2.1234,", "gorouting:", "alpha=0.123456"))


def test_bounds_in_brackets_go_to_a_second_line_too():
    assert stacked({"policy": "a (b)", "mean": "0.5 (0.4 to 0.6)"}) == {"policy": "a (b)", "mean": "0.5\n(0.4 to 0.6)"}
