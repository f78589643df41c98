"""The HTML reports: nothing from outside, nothing unescaped, nothing left out."""

import re
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from servegym.api import simulate
from servegym.evaluation.compared import COMPARED
from servegym.evaluation.comparing import run_comparison
from servegym.evaluation.comparison import Comparison
from servegym.evaluation.figures import FIGURES
from servegym.evaluation.reports import page
from servegym.evaluation.reports.compare_report import compare_report
from servegym.evaluation.reports.figures_table import figures_rows, unit_of
from servegym.evaluation.reports.simulate_report import simulate_report
from servegym.evaluation.summary import summarise
from servegym.latency_models.profile import load_profile
from servegym.simulator.runs.simulation import Simulation
from tests.evaluation.reports.runs import NAME, cramped

VOID = {"meta", "img", "br"}


class Reader(HTMLParser):
    """Reads a page as a browser does: every tag is closed, in order, and what would be loaded is noted."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.seen: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_page(text: str) -> Reader:
    reader = Reader(text)
    assert all(target.startswith(("data:image/png;base64,", "#")) for target in reader.loads)
    assert "http" not in text.replace("http-equiv", "")
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))
    assert "@import" not in text and "script" not in reader.seen and "link" not in reader.seen
    references = set(re.findall(r'(?:href="|url\()#([\w-]+)', text))
    identifiers = re.findall(r' id="([^"]*)"', text)
    assert references == set(identifiers) and len(identifiers) == len(set(identifiers))
    return reader


def test_the_report_of_a_run(tmp_path: Path) -> None:
    result = cramped("slide-batching", 3)
    profile = load_profile("a100-llama3-8b")
    path = simulate_report(
        result, tmp_path / "run.html", profiles=[profile], arguments={"trace": f"{NAME}.csv", "seed": 7}
    )
    text = path.read_text(encoding="utf-8")
    reader = check_page(text)
    assert reader.seen.count("figure") == reader.seen.count("svg") == 6
    assert "<script" not in text and escape(NAME) in text
    assert result.scenario.workload.digest in text and "argument.seed" in text
    assert profile.error["statement"] in text
    for name, unit, value in figures_rows(result.summary):
        assert re.search(
            rf"<td>{re.escape(name)}</td>\s*<td>{unit}</td>\s*<td>{re.escape(page.text_of(value))}</td>", text
        )


def test_the_report_of_a_run_without_timeline(tmp_path: Path) -> None:
    result = Simulation(cramped().scenario).run()
    text = simulate_report(result, tmp_path / "run.html").read_text(encoding="utf-8")
    assert check_page(text).seen.count("svg") == 1
    assert "not recorded" in text and "whose error is unknown" in text


@pytest.mark.parametrize("until_s", [0.0, 0.001, 1.0])
def test_the_report_of_a_run_that_stopped(tmp_path: Path, until_s: float) -> None:
    result = cramped("slide-batching", until_s=until_s)
    check_page(simulate_report(result, tmp_path / "run.html").read_text(encoding="utf-8"))


def test_a_run_that_cannot_be_had_again_is_reported_all_the_same(tmp_path: Path) -> None:
    simulation = Simulation(cramped("slide-batching").scenario, record_timeline=True)
    simulation.arrays.parameters[0, 4] = 1
    text = simulate_report(simulation.run(), tmp_path / "run.html").read_text(encoding="utf-8")
    assert "decides otherwise" in text


@pytest.mark.slow
def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    first, second = cramped(), cramped()
    second.wall_s = first.wall_s
    one, two = (simulate_report(result, tmp_path / "run.html").read_bytes() for result in (first, second))
    assert one == two


def test_the_report_of_a_comparison(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    trace = tmp_path / "<b>x & y<b>.csv"
    rows = (f"{0.1 * i},{rng.integers(1, 500)},{rng.integers(1, 50)}" for i in range(60))
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    comparison = Comparison(
        COMPARED.replaced(trace=str(trace), scheduler=("edf", "sjf"), load=(0.7, 1.4), requests=40), 2
    )
    cells = run_comparison(comparison, tmp_path / "out")
    summary = summarise(cells)
    text = compare_report(comparison, summary, cells, tmp_path / "compare.html").read_text(encoding="utf-8")
    reader = check_page(text)
    assert "b" not in reader.seen and escape(trace.name) in text and str(tmp_path) not in text
    assert "<svg" in text and "<img" not in text  # so that it is dark where the page is
    for _, row in summary.iterrows():
        for name, digits in (("slo_attainment", 3), ("tdg_ratio", 4)):
            half_width = (row[f"{name}_ci_high"] - row[f"{name}_ci_low"]) / 2
            interval = f" ± {half_width:.{digits}f}" if half_width > 0 else ""
            assert f"<td>{row[name]:.{digits}f}{interval}</td>" in text
            assert row["scheduler"] == row["reference"] or f"<td>{row[f'{name}_difference']:+.{digits}f}" in text
        assert f"<td>{row['ttft_p99_s']:.2f}</td>" in text and f"<td>{1e3 * row['tpot_p99_s']:.1f}</td>" in text
        assert row["scheduler"] == row["reference"] or f"<td>{row['verdict']}</td>" in text
        assert f"The reference is {row['reference']}." in text
    assert "late-token" not in text and "minus reference" not in text
    assert all(f"<td>{name}</td>" in text for name in FIGURES)
    assert all(digest in text for digest in comparison.identity["workloads"].values())


@pytest.mark.slow
def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    comparison = Comparison(COMPARED.replaced(scheduler="edf", load=0.7, requests=20), 1)
    cells = run_comparison(comparison, tmp_path)
    summary = summarise(cells)
    text = compare_report(comparison, summary, cells, tmp_path / "compare.html").read_text(encoding="utf-8")
    assert f"<td>{summary['tdg_ratio'][0]:.4f}</td>" in text and "nan" not in text


def test_every_figure_has_a_unit() -> None:
    names = [name for name, _, _ in figures_rows(cramped().summary)] + list(FIGURES)
    assert [name for name in names if not unit_of(name)] == []
    assert (unit_of("ttft_s.p50"), unit_of("tbt_p99_s"), unit_of("kv_use_mean")) == ("s", "s", "share")


def test_numbers_are_written_for_a_reader() -> None:
    values = [None, True, 1234567, 0.123456, 12345.6, np.nan, np.float64(0.5), [1, 2], [], 0.0, np.inf, "<b>"]
    assert [page.text_of(value) for value in values] == [
        "-", "yes", "1,234,567", "0.1235", "12,346", "-", "0.5", "1, 2", "-", "0", "inf", "<b>",
    ]  # fmt: skip


def test_what_comes_from_outside_is_escaped() -> None:
    section = page.section("<b>", page.paragraph("<c>"), page.bullets(["<d>"]), page.tiles({"<e>": "<f>"}))
    text = page.page("<a>", [section, page.facts({"<g>": {"<h>": "<i>"}}), page.details("<j>")])
    assert re.findall(r"<[a-j]>", text) == []
    assert all(f"&lt;{letter}&gt;" in text for letter in "abcdefij") and "&lt;g&gt;.&lt;h&gt;" in text


@pytest.mark.slow
def test_violations_are_on_the_page_by_class_and_priority(tmp_path: Path) -> None:
    result = simulate("azure-conv", slo="qoserve:shares=1-1-0,low_share=0.5", requests=60, rate_per_s=20)
    text = simulate_report(result, tmp_path / "run.html").read_text(encoding="utf-8")
    shares = result.summary["violations_by_class"]
    assert "By class of SLOs" in text and len(shares) == 2
    for name, share in shares.items():
        assert f"<td>{name}</td>" in text and f"<td>{page.text_of(share)}</td>" in text
    assert "late-token share" in text and "violations_by_priority.0" in text
    one_class = simulate("azure-conv", requests=20, rate_per_s=20)
    assert "By class of SLOs" not in simulate_report(one_class, tmp_path / "run.html").read_text(encoding="utf-8")
