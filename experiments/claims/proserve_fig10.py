"""ProServe, Figure 10: SlideBatching and the engine baselines under load, on one engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments.claims.harness import ABOVE_0, BELOW_0, Cell, Check, Range, claim, drawing, values
from experiments.claims.harness.measures import serve
from experiments.claims.harness.selection import best, lead, relative_lead, split, with_selection
from experiments.claims.harness.settings import DEVICES, FAMILIES, Setting, Size, slo_recipe
from servegym.evaluation.intervals import student_interval
from servegym.evaluation.markdown import header, row

WHOLE = "slide-batching"
OF_THE_FIGURE = ("vllm-fcfs", "weighted-vtc", "sarathi-fcfs", "sarathi-priority", "fairbatching")
BASELINES = (*OF_THE_FIGURE, "edf", "sjf")
DEADLINE_FIRST = ("edf", "fairbatching", "sarathi-fcfs")  # the paper calls the last two so
BELOW = ("vllm-fcfs", "weighted-vtc")
CLIENTS = "clients=26"  # of them 13 of each priority; only weighted-vtc looks at them
TWO_CLIENTS = "clients=2"  # one a priority
LOADS = (0.3, 0.5, 0.7, 1.0, 1.4)
LOW, HIGH = (0.3, 0.5), (1.0, 1.4)
WITHIN_1_PERCENT = Range(low=-1.0)
LEAST = 0.05  # of the best baseline: a gain relative to less says nothing
HALF = 0.5  # the same where a baseline still does half of what it could
METRICS = {"TDG ratio": "tdg_ratio", "SLO attainment": "slo_attainment"}
PAPER_LARGEST = {"TDG ratio": 35, "SLO attainment": 52}
VARIANTS = {
    "hopeless requests set no budget (hopeless=exclude)": f"{WHOLE}:hopeless=exclude",
    "SlideBatching alone counts deadlines from an early first token": f"{WHOLE}:deadlines=early-first-token",
    "the public code (variant=xllm)": f"{WHOLE}:variant=xllm",
}


class Otherwise(NamedTuple):
    """Another way to judge or to run all of them, as in `Cell`."""

    buffered: bool
    exact_estimator: bool
    loads: tuple[float, ...]


OTHERWISE = {
    "deadlines counted from an early first token": Otherwise(False, False, HIGH),
    "the device takes what the estimator says": Otherwise(True, True, (LOW[-1], *HIGH)),
    "both: deadlines from an early first token, exact estimator": Otherwise(False, True, HIGH),
}


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    recipe, requests = slo_recipe(setting.device), size.requests_of(setting)
    many, two = f"{recipe},{CLIENTS}", f"{recipe},{TWO_CLIENTS}"
    for load in LOADS:
        for seed in with_selection(size):
            for scheduler in (WHOLE, *BASELINES):
                yield Cell(*setting, scheduler, load, seed, requests, slo=many)
    for load in HIGH:
        for seed in size.seeds:
            for scheduler in VARIANTS.values():
                yield Cell(*setting, scheduler, load, seed, requests, slo=many)
            yield Cell(*setting, "weighted-vtc", load, seed, requests, slo=two)
    for buffered, exact, loads in OTHERWISE.values():
        for load in loads:
            for seed in size.seeds:
                for scheduler in (WHOLE, *BASELINES):
                    yield Cell(
                        *setting, scheduler, load, seed, requests, buffered=buffered, exact_estimator=exact, slo=many
                    )


def plain(rows: pd.DataFrame) -> pd.DataFrame:
    """Without the cells that only examine."""
    return rows[rows["buffered"] & ~rows["exact_estimator"] & rows["slo"].str.endswith(CLIENTS)]


class Largest(NamedTuple):
    """A gain over the best baseline. chosen: on the seeds that chose it; measured: float64[seeds], on fresh ones; %."""

    load: float
    baseline: str
    chosen: float
    measured: np.ndarray


def largest_gain(rows: pd.DataFrame, column: str, least: float = LEAST) -> Largest:
    """At the load where it is largest on the seeds that choose, of those where the best baseline has `least`."""
    judging, choosing = split(plain(rows))
    found = [Largest(np.nan, "none", -np.inf, np.full(judging["seed"].nunique(), np.nan))]
    for load in LOADS:
        baseline = best(choosing, column, load, BASELINES)
        if values(choosing, column, load=load, scheduler=baseline).mean() >= least:
            chosen = float(relative_lead(choosing, column, load, WHOLE, baseline).mean())
            found.append(Largest(load, baseline, chosen, relative_lead(judging, column, load, WHOLE, baseline)))
    return max(found, key=lambda one: one.chosen)


def lead_checks(
    among: pd.DataFrame,
    choosing: pd.DataFrame,
    examines: str = "",
    *,
    one: str = WHOLE,
    baselines: tuple[str, ...] = BASELINES,
    metrics: dict[str, str] = METRICS,
    loads: tuple[float, ...] = (*LOW, *HIGH),
) -> list[Check]:
    """One against the best of some baselines, which `choosing` says: within 1 % at low load, ahead at high load."""
    checks = []
    for name, column in metrics.items():
        for load in loads:
            other = best(choosing, column, load, baselines)
            if load in LOW:
                ahead = relative_lead(among, column, load, one, other)
                what, expected = "% over the best baseline", WITHIN_1_PERCENT
            else:
                ahead = lead(among, column, load, one, other)
                what, expected = "lead over the best baseline", ABOVE_0
            checks.append(Check(f"{name}: {what}, load {load:g}", ahead, expected, examines))
    return checks


def deadline_first_checks(judging: pd.DataFrame, loads: tuple[float, ...], examines: str) -> list[Check]:
    """What the paper says of policies that go by deadlines first."""
    where = " and ".join(f"{load:g}" for load in loads)
    return [
        Check(
            f"TDG ratio: {policy} - {other}, load {where}",
            np.mean([lead(judging, "tdg_ratio", load, policy, other) for load in loads], axis=0),
            BELOW_0,
            examines,
        )
        for policy in DEADLINE_FIRST
        for other in BELOW
    ]


def examined_checks(rows: pd.DataFrame) -> list[Check]:
    """SlideBatching judged, run or compared otherwise. Where all of them are run otherwise, the best baseline is that
    of those very runs, which favours it."""
    judging, choosing = split(plain(rows))
    checks = lead_checks(
        judging, choosing, "the baselines of the figure alone, without edf and sjf", baselines=OF_THE_FIGURE
    )
    by_deadlines = {"attainment by deadlines": "deadline_attainment"}
    checks += lead_checks(
        judging, choosing, "the first and last token's deadlines, not mean TPOT", metrics=by_deadlines
    )
    checks += deadline_first_checks(judging, HIGH[:1], "load 1 alone")
    for examines, variant in VARIANTS.items():
        checks += lead_checks(judging, choosing, examines, one=variant, loads=HIGH)
    ours = rows[rows["slo"].str.endswith(CLIENTS)]
    for examines, otherwise in OTHERWISE.items():
        among = ours[(ours["buffered"] == otherwise.buffered) & (ours["exact_estimator"] == otherwise.exact_estimator)]
        checks += lead_checks(among, among, examines, loads=otherwise.loads)
    return checks


def capacity_checks(rows: pd.DataFrame) -> list[Check]:
    """How many requests whole prompts, and SlideBatching, serve of those that define the load."""
    judging, _ = split(plain(rows))
    served = {
        name: values(judging, "throughput_requests_per_s", load=HIGH[-1], scheduler=name)
        for name in ("sarathi-fcfs", "vllm-fcfs", WHOLE)
    }
    examines = "the load axis: requests served at load 1.4, over those of sarathi-fcfs"
    return [
        Check("vllm-fcfs", served["vllm-fcfs"] / served["sarathi-fcfs"], Range(low=1.1), examines),
        Check("SlideBatching", served[WHOLE] / served["sarathi-fcfs"], Range(low=1.0), examines),
    ]


def two_client_checks(rows: pd.DataFrame) -> list[Check]:
    """Weighted VTC between two clients, one a priority, in place of its runs with many."""
    judging, _ = split(plain(rows))
    two = rows[rows["slo"].str.endswith(TWO_CLIENTS)]
    among = judging[judging["scheduler"] != "weighted-vtc"].merge(two, how="outer")
    return [
        Check(
            f"TDG ratio: SlideBatching - weighted-vtc, load {load:g}",
            lead(among, "tdg_ratio", load, WHOLE, "weighted-vtc"),
            ABOVE_0,
            "weighted-vtc with two clients, one a priority",
        )
        for load in HIGH
    ]


def picture(rows: pd.DataFrame, path: Path) -> None:
    judging, _ = split(plain(rows))
    columns = {column: f"{name}, share" for name, column in METRICS.items()}
    drawing.by_family(columns, {name: name for name in (WHOLE, *BASELINES)}, LOADS, (2.9, 2.3))(judging, path)


def appendix(rows: pd.DataFrame, folder: Path) -> str:
    """The largest gain of all settings and loads, then the best baseline of each."""
    del folder
    settings = dict(list(rows.groupby(["family", "device"], sort=False)))
    judging, choosing = split(rows)
    lines = [
        "**Largest gain over the best baseline** of all settings and loads at which that baseline has as much as said: "
        f"chosen by seeds {seeds_of(choosing)}, measured again by {seeds_of(judging)}.\n",
        *header("", "the baseline has", "setting", "load", "best baseline", "where chosen", "measured again", "paper"),
        *(
            largest_row(name, least, {one: largest_gain(of_one, column, least) for one, of_one in settings.items()})
            for name, column in METRICS.items()
            for least in (LEAST, HALF)
        ),
        "\n**SlideBatching and the best baseline** of each setting and load. Bold: ahead, italic: behind, by more than "
        "the interval of the difference.\n",
    ]
    for name, column in METRICS.items():
        lines += header(name, *(f"load {load:g}" for load in LOADS))
        for setting, of_setting in settings.items():
            lines.append(row(" on ".join(setting), *(pair(of_setting, column, load) for load in LOADS)))
        lines.append("")
    return "\n".join(lines)


def largest_row(name: str, least: float, found: dict[tuple[str, str], Largest]) -> str:
    """The setting with the largest gain, by the seeds that choose."""
    setting, largest = max(found.items(), key=lambda item: item[1].chosen)
    again = student_interval(largest.measured)
    measured = f"{largest.chosen:+.0f} %", f"{again.text('+.0f')} %"
    where = " on ".join(setting), f"{largest.load:g}", largest.baseline
    return row(name, f"{least:g} or more", *where, *measured, f"+{PAPER_LARGEST[name]} %")


def pair(rows: pd.DataFrame, column: str, load: float) -> str:
    """SlideBatching's mean, and the best baseline with its own."""
    judging, choosing = split(plain(rows))
    baseline = best(choosing, column, load, BASELINES)
    whole, other = (values(judging, column, load=load, scheduler=one).mean() for one in (WHOLE, baseline))
    difference = student_interval(lead(judging, column, load, WHOLE, baseline))
    mark = "**" if difference.low > 0 else "*" if difference.high < 0 else ""
    return f"{mark}{whole:.3f}{mark}, {baseline} {other:.3f}"


def seeds_of(rows: pd.DataFrame) -> str:
    return f"{rows['seed'].min()} to {rows['seed'].max()}"


@claim(
    "proserve-fig10",
    cells=cells,
    measure=serve,
    picture=picture,
    families=FAMILIES,
    devices=(DEVICES[0], "a100-llama3-70b-tp4", DEVICES[1]),
    appendix=appendix,
)
def judge(rows: pd.DataFrame) -> list[Check]:
    judging, choosing = split(plain(rows))
    checks = lead_checks(judging, choosing)
    for name, column in METRICS.items():
        measured = largest_gain(rows, column).measured
        checks.append(Check(f"{name}: largest gain over the best baseline, %", measured, ABOVE_0))
    checks += deadline_first_checks(judging, HIGH, "")
    return checks + examined_checks(rows) + capacity_checks(rows) + two_client_checks(rows)
