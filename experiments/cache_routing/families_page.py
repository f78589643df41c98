"""The page of the families of sessions, and its two pictures: cached and not, and what KV events add."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from experiments.cache_routing.claims import Claim, cells, difference, in_words, mean_of, routers_table, table_of
from experiments.cache_routing.setups import ENGINES, FIGURES, ROUTERS, SCHEDULER, Family, Setup
from servegym.evaluation.markdown import header, row

PICTURE = Path("images") / "cache-routing.png"
EVENTS_PICTURE = Path("images") / "cache-routing-events.png"
SHOWN = ("hit", "ttft_p50_s", "ttft_p99_s", "tdg", "attainment")
OF_EVENTS = ("hit", "ttft_p50_s", "tdg", "attainment", "busiest", "overwritten")


def page(rows: pd.DataFrame, families: Sequence[Family], claims: Sequence[Claim], words: str) -> str:
    """The page in Markdown. words: what stands before and after what is measured."""
    seeds = sorted(rows["seed"].unique())
    hypotheses, _, reading = words.partition("## Reading\n")
    lines = [
        hypotheses,
        "Measured by `python -m experiments.cache_routing docs/results/cache-routing.md`: "
        f"seeds {seeds[0]} to {seeds[-1]}, {ENGINES} engines, scheduler `{SCHEDULER}`, SLOs of ProServe. Means and "
        "95 % intervals over seeds; differences are paired by seed. A hit rate is the share of prompt tokens that were "
        "found at admission.\n",
        f"![Hit rate, TTFT and TDG ratio of each router, cached and not](../{PICTURE.as_posix()})\n",
    ]
    for family in families:
        setups = [Setup(family.name, name, cached) for cached in (False, True) for name in ROUTERS]
        lines += [
            f"## {family.name}\n",
            f"`{family.device}`, {family.rate_per_s:g} requests/s for {family.lasting_s:.0f} s.\n",
            *routers_table(rows, setups, SHOWN),
        ]
        lines.append("")
    lines += [
        "## KV events\n",
        "The same with caching, where routers go by their own index of what they sent, or by KV events; both may hear "
        "late. *Overwritten*: how often each KV block was overwritten. *Busiest*: the share of the requests that one "
        f"engine of {ENGINES} got.\n",
        f"![Hit rate by own index and by KV events, against the delay of signals](../{EVENTS_PICTURE.as_posix()})\n",
        *header(
            "family", "memory", "router", "goes by", "late, s", *(FIGURES[name] for name in OF_EVENTS),
            "hit rate less own index's",
        ),
    ]  # fmt: skip
    lines += [_events_row(rows, setup) for setup in told_setups(rows)]
    lines += ["", "## The hypotheses\n", *table_of(rows, claims)]
    return "\n".join([*lines, "", "## Reading", reading]).rstrip() + "\n"


def told_setups(rows: pd.DataFrame) -> list[Setup]:
    """Those that were run by events, each after the same by its own index."""
    told = rows[rows["events"]].drop_duplicates(list(Setup._fields))
    ordered = [Setup(*values) for values in told[list(Setup._fields)].itertuples(index=False)]
    ordered.sort(key=lambda one: (one.family, -one.memory, one.router, one.delay_s))
    return [each for one in ordered for each in (one._replace(events=False), one)]


def _events_row(rows: pd.DataFrame, setup: Setup) -> str:
    less = difference(rows, setup, setup._replace(events=False), "hit")
    return row(
        setup.family, f"{setup.memory:g}", f"`{setup.router}`", "events" if setup.events else "own index",
        f"{setup.delay_s:g}", *cells(rows, setup, OF_EVENTS), in_words(less, "+") if setup.events else "",
    )  # fmt: skip


def draw(rows: pd.DataFrame, families: Sequence[Family], path: Path) -> None:
    """A column a family, a row a figure: each router cached and not, with its interval."""
    shown = ("hit", "ttft_p50_s", "tdg")
    figure = Figure(figsize=(3.6 * len(families) + 0.6, 7.2), layout="constrained")
    grid = figure.subplots(len(shown), len(families), squeeze=False)
    for column, family in enumerate(families):
        for axes, name in zip(grid[:, column], shown, strict=True):
            for cached, marker, colour, shift in ((False, "o", "0.55", -0.12), (True, "s", "tab:blue", 0.12)):
                intervals = [mean_of(rows, Setup(family.name, routing, cached), name) for routing in ROUTERS]
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


def draw_events(rows: pd.DataFrame, path: Path) -> None:
    """Hit rate against the delay, a panel each family and memory: by own index dashed, by events whole."""
    told = told_setups(rows)
    panels = list(dict.fromkeys((one.family, one.memory) for one in told))
    figure = Figure(figsize=(3.2 * len(panels) + 0.6, 3.9), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (family, memory) in zip(grid, panels, strict=True):
        _events_panel(axes, rows, [one for one in told if (one.family, one.memory) == (family, memory)])
        axes.set_title(family + (f"\n{memory:g} of the KV memory" if memory < 1 else "\n"), fontsize=10)
        axes.set_xlabel("signals late by, s")
    grid[0].set_ylabel("hit rate, share of prompt tokens")
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False, handlelength=3.2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _events_panel(axes: Axes, rows: pd.DataFrame, told: Sequence[Setup]) -> None:
    delays_s = sorted({one.delay_s for one in told})
    markers = dict(zip(sorted({one.router for one in told}), ("s", "o"), strict=False))
    for router, marker in markers.items():
        for events in (False, True):
            line = sorted((one for one in told if (one.router, one.events) == (router, events)), key=_delay)
            intervals = [mean_of(rows, one, "hit") for one in line]
            style: dict[str, Any] = {"color": "tab:blue", "linestyle": "-"} if events else {"color": "0.45"}
            axes.errorbar(
                range(len(delays_s)), [one.mean for one in intervals], [one.half_width for one in intervals],
                marker=marker, capsize=3, markersize=6, markerfacecolor=style["color"] if events else "white",
                **({"linestyle": "--"} | style), label=f"{router}, {'KV events' if events else 'own index'}",
            )  # fmt: skip
    axes.set_xticks(range(len(delays_s)), [f"{delay_s:g}" for delay_s in delays_s])
    axes.set_xlim(-0.3, len(delays_s) - 0.7)
    axes.set_ylim(0, 1)
    axes.grid(axis="y", color="0.9")


def _delay(setup: Setup) -> float:
    return setup.delay_s
