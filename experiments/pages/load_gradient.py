"""Draw how PolyServe loads its engines while the rate of requests rises and falls again.

python -m experiments.pages.load_gradient docs/images/polyserve-gradient.png
"""

import dataclasses
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from servegym.baselines.registry import router, scaler, scheduler
from servegym.latency_models.profile import load_profile
from servegym.simulator.inputs.cluster import cluster_of
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.simulation import Simulation
from servegym.traces.workloads import build_workload

COMMAND = "python -m experiments.pages.load_gradient FILE.png"
DEVICE, TRACE, ENGINES = "h200-llama3-8b", "uniform-512-512", 20
WAVE_S, LOW_PER_S, HIGH_PER_S = 120.0, 60.0, 400.0  # the rate goes from low to high and back
SAMPLES = 240
SEED = 0
DOTS_PER_INCH = 130


def rate_per_s(time_s: np.ndarray) -> np.ndarray:
    return LOW_PER_S + (HIGH_PER_S - LOW_PER_S) * np.sin(np.pi * time_s / WAVE_S) ** 2


def wave() -> Workload:
    """Poisson arrivals at a varying rate: arrivals of rate 1, moved to the times when as many are expected."""
    time_s = np.linspace(0, WAVE_S, 10_000)
    expected = np.r_[0.0, np.cumsum(rate_per_s(time_s)[1:] * np.diff(time_s))]
    slo = f"polyserve:idle_tpot_s={load_profile(DEVICE).idle_tpot_s!r}"
    unit = build_workload(TRACE, requests=int(1.05 * expected[-1]), rate_per_s=1.0, slo=slo, seed=SEED)
    during = unit.table["arrival_s"] < expected[-1]
    cut = Workload(unit.table[during], unit.name, unit.provenance)
    return cut.replace(arrival_s=np.interp(cut.table["arrival_s"], expected, time_s))


def scenario(workload: Workload) -> Scenario:
    return Scenario(
        workload,
        cluster_of(load_profile(DEVICE).deployment(ENGINES)),
        scheduler("polyserve"),
        router=router("polyserve"),
        scaler=scaler("polyserve"),
    )


def sampled(whole: Scenario, times_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int64[samples, engines] each: the tier of every engine (-1: the pool), and the requests it has."""
    run, tiers, requests = Simulation(whole), [], []
    for time_s in times_s:
        run.scenario = dataclasses.replace(whole, until_s=float(time_s))
        engines = run.run().arrays.engines
        tiers.append(engines["tier"].copy())
        requests.append(engines["queue_length"].copy())
    return np.array(tiers), np.array(requests)


def sorted_loads(tiers: np.ndarray, requests: np.ndarray, tier: int) -> np.ndarray:
    """float64[most engines of the tier, samples]: requests of its engines, the fullest first; nan: no more engines."""
    loads = [np.sort(there[of == tier])[::-1] for of, there in zip(tiers, requests, strict=True)]
    table = np.full((max(1, *map(len, loads)), len(loads)), np.nan)
    for sample, column in enumerate(loads):
        table[: len(column), sample] = column
    return table


def draw(whole: Scenario, path: Path) -> None:
    tpot_s = np.unique(whole.workload.table["tpot_slo_s"])
    times_s = np.linspace(0, WAVE_S, SAMPLES + 1)[1:]
    tiers, requests = sampled(whole, times_s)
    tables = [sorted_loads(tiers, requests, tier) for tier in range(len(tpot_s))]
    figure = Figure(figsize=(7.2, 6.4), layout="constrained")
    rows = figure.subplots(
        len(tables) + 1, 1, sharex=True, gridspec_kw={"height_ratios": [3, *(max(2, len(table)) for table in tables)]}
    )
    rows[0].plot(times_s, rate_per_s(times_s), color="black")
    rows[0].set_ylabel("requests/s", fontsize=8)
    rows[0].set_ylim(bottom=0)
    for axes, table, slo_s in zip(rows[1:], tables, tpot_s, strict=True):
        most = max(1.0, np.nan_to_num(table).max())
        image = axes.imshow(  # an engine without requests is light grey, white is none
            table / most, aspect="auto", origin="lower", cmap="Greys", vmin=-0.15, vmax=1.0,
            extent=(0, WAVE_S, 0.5, len(table) + 0.5), interpolation="nearest",
        )  # fmt: skip
        axes.set_ylabel(f"TPOT {slo_s * 1e3:g} ms\nengine", fontsize=8)
        axes.set_yticks(range(1, len(table) + 1, 2))
    rows[-1].set_xlabel("time, s", fontsize=9)
    for axes in rows:
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    bar = figure.colorbar(image, ax=rows[1:], location="right", shrink=0.6)
    bar.set_label("requests, share of the most in the tier", fontsize=8)
    bar.ax.set_ylim(0, 1)
    bar.ax.tick_params(labelsize=8)
    figure.savefig(path, dpi=DOTS_PER_INCH)


def main(arguments: list[str]) -> None:
    if len(arguments) != 1 or not arguments[0].endswith(".png"):
        raise SystemExit(f"it takes one picture to write: {COMMAND}")
    draw(scenario(wave()), Path(arguments[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
