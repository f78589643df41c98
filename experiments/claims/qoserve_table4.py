"""QoServe, Table 4: a cluster that all classes share against silos, the same requests a second."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.claims.harness import BELOW_0, Check, Range, claim, drawing, values
from experiments.claims.harness.cells import Cell, deployment_of
from experiments.claims.harness.goodput import arrivals
from experiments.claims.harness.served import begin
from experiments.claims.harness.settings import Setting, Size, profile, saturation_per_s
from experiments.claims.harness.violations import CLASSES, QOSERVE, sarathi, slo_of, violations_of
from experiments.without_steps import scheduler_without_steps
from servegym.baselines.registry import router as find_router
from servegym.evaluation.intervals import student_interval
from servegym.evaluation.markdown import header, row
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.state import SimulationState

DEVICE = "a100-llama3-8b"
RATE_PER_S = 35.0
REQUESTS = 360  # a thousandth of the paper's: times the requests of the size
SILO, SHARED = "silo", "round-robin"
# By how many engines there are: those of the interactive class, of TTLT 600 s and of TTLT 1800 s.
SPLITS = {13: ((7, 3, 3),), 11: ((5, 3, 3),), 10: ((6, 2, 2), (4, 3, 3))}
ENOUGH, TOO_FEW, OTHER, SMALLER = (7, 3, 3), (6, 2, 2), (4, 3, 3), (5, 3, 3)
ENGINES, FEWER = 10, 9  # that all share
SMALL_CHUNK, LARGE_CHUNK = sarathi("fcfs", DEVICE), "sarathi-fcfs:max_num_batched_tokens=2048"
# Prefill alone, 1500 tokens cached: 6,300 tokens/s in chunks of 96, 10,800 of 256, 12,350 of 2048.
HALF_SPEED = "sarathi-fcfs:max_num_batched_tokens=96"
FEW, MANY, NONE, NEARLY_ALL = Range(high=0.01), Range(0.4, 0.8), Range(high=0.001), Range(low=0.5)
SOME = Range(low=0.01)
INTERACTIVE = next(iter(CLASSES))
INTERACTIVE_ALONE = f"violations {INTERACTIVE}"


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    def cell(scheduler: str, engines: int, router: str, seed: int) -> Cell:
        load = RATE_PER_S / (engines * saturation_per_s(setting))
        requests, slo = REQUESTS * size.requests, slo_of(setting.device)
        return Cell(
            *setting, scheduler, load, seed, requests, slo=slo, engines=f"engines={engines}", router=router
        )  # fmt: skip

    for seed in size.seeds:
        for engines in (ENGINES, FEWER):
            yield cell(QOSERVE, engines, SHARED, seed)
        for engines in SPLITS:
            yield cell(SMALL_CHUNK, engines, SILO, seed)
        for engines in (13, 10):
            yield cell(HALF_SPEED, engines, SILO, seed)


def measure(cell: Cell) -> dict[str, Any]:
    """Violations, and the 99th percentile of each class: of the TTFT, or of the TTLT. Of silos, by split; at half speed
    of the interactive silo alone, as the others are the same."""
    whole = scenario_of(cell)
    if cell.router == SHARED:
        return served(whole)
    measured: dict[str, Any] = {}
    if cell.scheduler == HALF_SPEED:
        table = whole.workload.table
        interactive = Workload(table[table["application"] == CLASSES[INTERACTIVE]], whole.workload.name)
        whole = dataclasses.replace(whole, workload=interactive)
    for split in SPLITS[int(cell.engines.removeprefix("engines="))]:
        pools = silo(cell, split)[:1] if cell.scheduler == HALF_SPEED else silo(cell, split)
        shares = served(dataclasses.replace(whole, deployment=Cluster(pools)))
        measured |= {f"{column} {name_of(split)}": share for column, share in shares.items()}
    return measured


def scenario_of(cell: Cell) -> Scenario:
    workload = arrivals(cell.setting, cell.seed, cell.slo, RATE_PER_S, cell.requests / RATE_PER_S)
    deployment, front_end = deployment_of(cell.device, cell.engines), profile(cell.device).front_end
    router = find_router(cell.router)
    return Scenario(workload, deployment, scheduler_without_steps(cell.scheduler), router=router, front_end=front_end)


def silo(cell: Cell, split: tuple[int, ...]) -> tuple[Deployment, ...]:
    """A pool for each class: the cell's scheduler for the interactive one, the large chunk for the others."""
    schedulers = (cell.scheduler, LARGE_CHUNK, LARGE_CHUNK)
    return tuple(
        dataclasses.replace(profile(cell.device).deployment(engines), scheduler=scheduler_without_steps(scheduler))
        for engines, scheduler in zip(split, schedulers, strict=True)
    )


def served(whole: Scenario) -> dict[str, Any]:
    run = begin(whole)
    shares = violations_of(run)
    return {**shares, **latencies(run.arrays, whole.workload)}


def latencies(arrays: SimulationState, workload: Workload) -> dict[str, float | None]:
    """99th percentile by class, s; None where so many had not been served at the end of the run, or there is nobody."""
    found: dict[str, float | None] = {}
    for name, application in CLASSES.items():
        mine = workload.table["application"] == application
        found[f"p99_s {name}"] = None
        if not mine.any():
            continue
        done_s = arrays.outcomes["first_token_s" if name == INTERACTIVE else "finish_s"][mine]
        latency_s = np.where(np.isnan(done_s), np.inf, done_s - workload.table["arrival_s"][mine])
        p99_s = float(np.quantile(latency_s, 0.99, method="higher"))
        if np.isfinite(p99_s):
            found[f"p99_s {name}"] = p99_s
    return found


def name_of(split: tuple[int, ...]) -> str:
    return f"Silo-({','.join(map(str, split))})"


def of_silo(rows: pd.DataFrame, column: str, split: tuple[int, ...], scheduler: str = SMALL_CHUNK) -> np.ndarray:
    """float64[seeds]."""
    return values(rows, f"{column} {name_of(split)}", scheduler=scheduler, engines=f"engines={sum(split)}", router=SILO)


def of_shared(rows: pd.DataFrame, column: str, engines: int = ENGINES) -> np.ndarray:
    return values(rows, column, engines=f"engines={engines}", router=SHARED)


def picture(rows: pd.DataFrame, path: Path) -> None:
    groups = {"": "all", **{f" {name}": name for name in CLASSES}}
    shown = {
        **{
            name_of(split): [of_silo(rows, f"violations{group}", split) for group in groups]
            for split in (ENOUGH, OTHER, TOO_FEW)
        },
        f"QoServe-({ENGINES})": [of_shared(rows, f"violations{group}") for group in groups],
    }
    figure, row_of_axes = drawing.panels([f"{RATE_PER_S:g} requests/s"], "", "violations, share", size=(8.8, 2.6))
    axes = row_of_axes[0]
    for style, (name, shares) in enumerate(shown.items()):
        found = [student_interval(of_group) for of_group in shares]
        at = np.arange(len(groups)) + (style - 1.5) * 0.2
        means = [interval.mean for interval in found]
        half = [0.0 if np.isnan(interval.low) else interval.half_width for interval in found]
        axes.bar(at, means, 0.18, yerr=half, capsize=2, label=name, color=drawing.STYLES[(0, 1, 4, 6)[style]]["color"])
        for x, mean, width in zip(at, means, half, strict=True):
            axes.annotate(f"{100 * mean:.2g}%", (x, mean + width), (0, 2), textcoords="offset points", ha="center",
                          fontsize=6)  # fmt: skip
    axes.set_xticks(range(len(groups)), list(groups.values()))
    drawing.save(figure, row_of_axes, path)


def appendix(rows: pd.DataFrame, folder: Path) -> str:
    """The table as the paper prints it."""
    del folder

    def printed(values_s: np.ndarray) -> str:
        return "not served" if np.isnan(values_s).any() else f"{values_s.mean():.3g}"

    lines = [
        "Mean over the seeds of the 99th percentile in seconds: of the TTFT for the interactive class, of the TTLT for "
        "the others. *Not served*: over 1 % of a class had not been 1800 s after the last arrival.\n",
        *header("scheme", "engines", *(f"p99, {name}" for name in CLASSES), "violations"),
    ]
    for split in (ENOUGH, SMALLER, OTHER, TOO_FEW):
        p99 = [printed(of_silo(rows, f"p99_s {kind}", split)) for kind in CLASSES]
        lines.append(row(name_of(split), str(sum(split)), *p99, f"{of_silo(rows, 'violations', split).mean():.2%}"))
    for engines in (ENGINES, FEWER):
        p99 = [printed(of_shared(rows, f"p99_s {kind}", engines)) for kind in CLASSES]
        lines.append(row("QoServe", str(engines), *p99, f"{of_shared(rows, 'violations', engines).mean():.2%}"))
    return "\n".join([*lines, ""])


@claim(
    "qoserve-table4",
    cells=cells,
    measure=measure,
    families=("qoserve-code",),
    devices=(DEVICE,),
    picture=picture,
    appendix=appendix,
)
def judge(rows: pd.DataFrame) -> list[Check]:
    half_speed = "interactive silo in chunks of half the speed of 2048, as 256 are in the paper"
    return [
        *checks_of_the_table(rows),
        *(
            Check(
                f"{name_of(split)}, interactive",
                of_silo(rows, INTERACTIVE_ALONE, split, HALF_SPEED),
                expected,
                half_speed,
            )
            for split, expected in {ENOUGH: FEW, TOO_FEW: SOME, OTHER: NEARLY_ALL}.items()
        ),
        *how_few_engines(rows),
    ]


def checks_of_the_table(rows: pd.DataFrame) -> list[Check]:
    """What the table says of schemes and engines."""
    qoserve, enough = of_shared(rows, "violations"), of_silo(rows, "violations", ENOUGH)
    return [
        Check(f"QoServe-({ENGINES}), all", qoserve, NONE),
        Check(f"{name_of(ENOUGH)}, all", enough, FEW),
        Check(f"{name_of(TOO_FEW)}, all", of_silo(rows, "violations", TOO_FEW), MANY),
        Check(f"{name_of(OTHER)}, interactive", of_silo(rows, INTERACTIVE_ALONE, OTHER), NEARLY_ALL),
        Check(f"QoServe-({ENGINES}) - {name_of(ENOUGH)}, all", qoserve - enough, BELOW_0),
    ]


def how_few_engines(rows: pd.DataFrame) -> list[Check]:
    """Whether fewer engines than the table's serve, examined."""
    examines = "how few engines serve"
    return [
        *(
            Check(f"{name_of(split)}, all", of_silo(rows, "violations", split), FEW, examines)
            for split in (OTHER, SMALLER)
        ),
        Check(f"QoServe-({FEWER}), all", of_shared(rows, "violations", FEWER), FEW, examines),
    ]
