"""Which router finds what engines have cached, and what is it worth? Sessions on eight engines, cached and not.

    python -m servegym.experiments.cache_routing docs/results/cache-routing.md

Hypotheses, and what came before them: cache_routing.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.progress import track

from servegym.evaluation.intervals import Interval, student_interval
from servegym.evaluation.markdown import header, row
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.simulation import Simulation

if TYPE_CHECKING:
    import pandas as pd

WORDS = Path(__file__).with_name("cache_routing.md")
PICTURE = Path("images") / "cache-routing.png"
ENGINES = 8
SCHEDULER = "vllm-v1"
FIRST_SEED = 31_000


class Family(NamedTuple):
    """Sessions, and the engines that serve them. rate_per_s: at which ENGINES of the device are saturated uncached."""

    name: str
    device: str
    rate_per_s: float
    requests: int


# Chat and retrieval on the larger model: as many seconds of it are fewer requests.
FAMILIES = (
    Family("chat-sessions", "a100-llama3-70b-tp4", 34.5, 8000),
    Family("agent-sessions", "h100-llama3-8b", 0.9, 1500),
    Family("retrieval-sessions", "a100-llama3-70b-tp4", 11.6, 4000),
)
ROUTERS = ("round-robin", "min-load", "prefix-affinity", "session-hash", "kv-aware")
BASE = "min-load"
FIGURES = {
    "hit": "hit rate",
    "ttft_p50_s": "TTFT p50, s",
    "ttft_p99_s": "TTFT p99, s",
    "tdg": "TDG ratio",
    "attainment": "SLO attainment",
}
WITHIN = 0.02  # what counts as no difference of TDG ratios
FAR = 0.3


def measured(family: Family, routing: str, cached: bool, seed: int) -> dict[str, Any]:
    """The figures of a run."""
    spec = ServingSpec().replaced(
        trace=family.name, requests=family.requests, rate_per_s=family.rate_per_s, device=family.device,
        engines=ENGINES, prefix_caching="on" if cached else "off", scheduler=SCHEDULER, router=routing,
    )  # fmt: skip
    scenario = dataclasses.replace(spec.build(seed), until_s=family.requests / family.rate_per_s)
    summary = Simulation(scenario).run().summary
    return {
        "family": family.name,
        "router": routing,
        "cached": cached,
        "seed": seed,
        "hit": summary.get("cached_share", 0.0) if cached else math.nan,
        "ttft_p50_s": summary["ttft_s"]["p50"],
        "ttft_p99_s": summary["ttft_s"]["p99"],
        "tdg": summary["tdg_ratio"],
        "attainment": summary["slo_attainment"],
    }


def of(rows: pd.DataFrame, family: str, routing: str, cached: bool, figure: str) -> Any:
    """float64[seeds]"""
    chosen = rows[(rows["family"] == family) & (rows["router"] == routing) & (rows["cached"] == cached)]
    return chosen.sort_values("seed")[figure].to_numpy()


def difference(rows: pd.DataFrame, family: str, one: str, other: str, figure: str, cached: bool = True) -> Interval:
    """Of two routers, paired by seed."""
    return student_interval(of(rows, family, one, cached, figure) - of(rows, family, other, cached, figure))


class Claim(NamedTuple):
    """A difference that should be above (or below) a number, or within WITHIN of 0."""

    number: int
    family: str
    one: str
    other: str
    figure: str
    expected: str  # "above", "below", "within"
    bound: float = 0.0
    cached: bool = True

    def verdict(self, interval: Interval) -> str:
        low, high = interval.low, interval.high
        if self.expected == "within":
            return "holds" if low > -WITHIN and high < WITHIN else "refuted" if low > WITHIN or high < -WITHIN else "?"
        if self.expected == "below":
            low, high, bound = -high, -low, -self.bound
        else:
            bound = self.bound
        return "holds" if low > bound else "refuted" if high < bound else "?"

    def says(self) -> str:
        return f"within {WITHIN:g} of 0" if self.expected == "within" else f"{self.expected} {self.bound:g}"


CLAIMS = (
    *(
        Claim(1, family.name, name, BASE, "hit", "above")
        for family in FAMILIES
        for name in ("kv-aware", "prefix-affinity", "session-hash")
    ),
    Claim(2, "agent-sessions", "kv-aware", BASE, "tdg", "above"),
    Claim(2, "chat-sessions", "kv-aware", BASE, "tdg", "within"),
    Claim(2, "retrieval-sessions", "kv-aware", BASE, "tdg", "within"),
    *(
        Claim(3, "agent-sessions", "session-hash", name, "hit", "above")
        for name in ("kv-aware", "prefix-affinity", BASE, "round-robin")
    ),
    Claim(3, "agent-sessions", "session-hash", "prefix-affinity", "tdg", "below"),
    Claim(4, "chat-sessions", "prefix-affinity", BASE, "tdg", "below", -FAR),
    *(Claim(5, family.name, "kv-aware", BASE, "tdg", "within", cached=False) for family in FAMILIES),
)


def in_words(interval: Interval, sign: str = "") -> str:
    return f"{interval.mean:{sign}.3f} ± {interval.half_width:.3f}"


def page(rows: pd.DataFrame, families: Sequence[Family], picture: str) -> str:
    """The page in Markdown. picture: its path from the page."""
    seeds = sorted(rows["seed"].unique())
    hypotheses, _, reading = WORDS.read_text(encoding="utf-8").partition("## Reading\n")
    lines = [
        hypotheses,
        "Measured by `python -m servegym.experiments.cache_routing docs/results/cache-routing.md`: "
        f"seeds {seeds[0]} to {seeds[-1]}, {ENGINES} engines, scheduler `{SCHEDULER}`, SLOs of ProServe. Means and "
        "95 % intervals over seeds; differences are paired by seed. A hit rate is the share of prompt tokens that were "
        "found at admission.\n",
        f"![Hit rate, TTFT and TDG ratio of each router, cached and not]({picture})\n",
    ]
    for family in families:
        lines += [
            f"## {family.name}\n",
            f"`{family.device}`, {family.rate_per_s:g} requests/s for {family.requests / family.rate_per_s:.0f} s.\n",
            *header("router", "cached", *FIGURES.values(), f"TDG ratio less {BASE}'s"),
        ]
        for cached in (False, True):
            for name in ROUTERS:
                cells = [student_interval(of(rows, family.name, name, cached, figure)) for figure in FIGURES]
                words = ["" if math.isnan(cell.mean) else in_words(cell) for cell in cells]
                less = "" if name == BASE else in_words(difference(rows, family.name, name, BASE, "tdg", cached), "+")
                lines.append(row(f"`{name}`", "yes" if cached else "no", *words, less))
        lines.append("")
    lines += ["## The hypotheses\n", *header("", "family", "difference", "expected", "measured", "")]
    names = {family.name for family in families}
    for claim in CLAIMS:
        if claim.family in names:
            interval = difference(rows, claim.family, claim.one, claim.other, claim.figure, claim.cached)
            what = f"{FIGURES[claim.figure]}, `{claim.one}` - `{claim.other}`{'' if claim.cached else ', not cached'}"
            measurement = [claim.family, what, claim.says(), in_words(interval, "+"), claim.verdict(interval)]
            lines.append(row(str(claim.number), *measurement))
    return "\n".join([*lines, "", "## Reading", reading]).rstrip() + "\n"


def draw(rows: pd.DataFrame, families: Sequence[Family], path: Path) -> None:
    """A column a family, a row a figure: each router cached and not, with its interval."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    shown = ("hit", "ttft_p50_s", "tdg")
    figure = Figure(figsize=(3.6 * len(families) + 0.6, 7.2), layout="constrained")
    grid = figure.subplots(len(shown), len(families), squeeze=False)
    for column, family in enumerate(families):
        for axes, name in zip(grid[:, column], shown, strict=True):
            for cached, marker, colour, shift in ((False, "o", "0.55", -0.12), (True, "s", "tab:blue", 0.12)):
                intervals = [student_interval(of(rows, family.name, routing, cached, name)) for routing in ROUTERS]
                if not math.isnan(intervals[0].mean):
                    axes.errorbar(
                        [place + shift for place in range(len(ROUTERS))], [one.mean for one in intervals],
                        [one.half_width for one in intervals], marker=marker, color=colour, linestyle="none",
                        markersize=6, capsize=3, label="cached" if cached else "not cached",
                    )  # fmt: skip
            if name == "ttft_p50_s":
                axes.set_yscale("log")
                axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
                axes.yaxis.set_major_formatter("{x:g}")
                axes.yaxis.set_minor_locator(NullLocator())
            else:
                axes.set_ylim(-0.03, 1.05)
            axes.set_xticks(range(len(ROUTERS)), ROUTERS if name == shown[-1] else [], rotation=40, ha="right")
            axes.set_xlim(-0.5, len(ROUTERS) - 0.5)
            axes.grid(axis="y", color="0.9")
            if column == 0:
                axes.set_ylabel(FIGURES[name])
        grid[0, column].set_title(family.name)
    handles, labels = grid[-1, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("page", type=Path, help="where the page is written; its picture: ../images")
    parser.add_argument("--families", nargs="+", choices=[family.name for family in FAMILIES])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--share", type=float, default=1.0, help="of the requests of each run")
    asked = parser.parse_args(arguments)
    import pandas as pd

    families = [
        family._replace(requests=int(family.requests * asked.share))
        for family in FAMILIES
        if asked.families is None or family.name in asked.families
    ]
    runs = [
        (family, routing, cached, seed)
        for family in families
        for seed in range(asked.first_seed, asked.first_seed + asked.seeds)
        for cached in (False, True)
        for routing in ROUTERS
    ]
    rows = pd.DataFrame([measured(*run) for run in track(runs, "runs", console=Console(stderr=True))])
    draw(rows, families, asked.page.parent.parent / PICTURE)
    asked.page.parent.mkdir(parents=True, exist_ok=True)
    asked.page.write_text(page(rows, families, f"../{PICTURE.as_posix()}"), encoding="utf-8")


if __name__ == "__main__":
    main()
