"""ProServe, Figures 16 and 17: gain per second under sustained overload, and urgent requests that follow the load."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.claims.harness import ABOVE_0, Cell, Check, Range, claim, drawing, series
from experiments.claims.harness.settings import Setting, Size, saturation_per_s
from experiments.claims.harness.timelines import serve_sampled

SLIDE, FCFS = "slide-batching", "sarathi-fcfs"
OVERLOAD = 1.4
LOADS = (0.4, 0.7, 1.0, 1.4)
WAVE_LOW, WAVE_HIGH = 0.4, 1.2  # loads of the phases
WAVE_LOAD = (WAVE_LOW + WAVE_HIGH) / 2
WAVES = 4  # a low and a high phase each, over the arrivals of a run
TOWARD_0 = Range(high=0.2)  # gain of the last quarter over that of the best
STAYS = Range(low=0.8)
QUARTERS = 4
FOLLOWS = Range(low=1.5)  # urgent requests in high phases over those in low ones


def cells(setting: Setting, size: Size) -> Iterator[Cell]:
    saturation = saturation_per_s(setting)
    phase_s = size.requests_of(setting) / (WAVE_LOAD * saturation) / (2 * WAVES)
    wave = f"square-wave:low_per_s={WAVE_LOW * saturation!r},high_per_s={WAVE_HIGH * saturation!r},phase_s={phase_s!r}"
    for seed in size.seeds:
        for load in LOADS:
            yield Cell(*setting, SLIDE, load, seed, size.requests_of(setting))
        yield Cell(*setting, FCFS, OVERLOAD, seed, size.requests_of(setting))
        yield Cell(*setting, SLIDE, WAVE_LOAD, seed, size.requests_of(setting), arrivals=wave)


def gain_of_quarters(gain: np.ndarray) -> np.ndarray:
    """float64[quarters]: gained in each quarter of the arrivals. gain: so far, at equal times."""
    ends = np.arange(1, QUARTERS + 1) * len(gain) // QUARTERS - 1
    return np.diff(gain[ends], prepend=0.0)


def last_over_best(gain: np.ndarray) -> float:
    quarters = gain_of_quarters(gain)
    return float(quarters[-1] / quarters.max())


def urgent_by_phase(urgent: np.ndarray, time_s: np.ndarray, phase_s: float) -> tuple[float, float]:
    """Mean urgent requests in the low and in the high phases of a wave."""
    high = (time_s // phase_s) % 2 == 1
    return float(urgent[~high].mean()), float(urgent[high].mean())


def phase_s_of(arrivals: str) -> float:
    return float(arrivals.rpartition("phase_s=")[2])


def picture(rows: pd.DataFrame, path: Path) -> None:
    first = rows.iloc[0]
    here = rows[(rows["family"] == first["family"]) & (rows["device"] == first["device"])]
    here = here[here["seed"] == here["seed"].min()]
    steady = here[here["arrivals"] == "poisson"]
    queues = {
        f"requests queued, load {LOADS[1]:g}": steady[(steady["scheduler"] == SLIDE) & (steady["load"] == LOADS[1])],
        f"requests queued, load {OVERLOAD:g}": steady[(steady["scheduler"] == SLIDE) & (steady["load"] == OVERLOAD)],
        f"requests queued, waves {WAVE_LOW:g} to {WAVE_HIGH:g}": here[here["arrivals"] != "poisson"],
    }
    title = f"gain per second, load {OVERLOAD:g}"
    figure, row = drawing.panels([title, *queues], "time, s", "gain per second / mean offered", share_y=False)
    for style, (name, scheduler) in enumerate({"Sarathi-FCFS": FCFS, "SlideBatching": SLIDE}.items()):
        cell = steady[(steady["scheduler"] == scheduler) & (steady["load"] == OVERLOAD)].iloc[0]
        offered = cell["ideal_gain"] / len(cell["gain"])  # of a sample's time
        gained = running_mean(np.diff(cell["gain"], prepend=0.0)) / offered
        look = {**drawing.STYLES[style], "marker": None}
        row[0].plot(running_mean(np.asarray(cell["time_s"])), gained, label=name, linewidth=1.4, **look)
    for axes, runs in zip(row[1:], queues.values(), strict=True):
        cell = runs.iloc[0]
        for style, (name, column) in enumerate({"urgent": "urgent_in_all", "normal": "normal"}.items(), start=2):
            look = {**drawing.STYLES[style], "marker": None}
            axes.plot(cell["time_s"], cell[column], label=f"SlideBatching, {name}", linewidth=1.2, **look)
    for axes in row:
        axes.set_ylim(bottom=0)
    drawing.save(figure, row[:2], path)


def running_mean(series: np.ndarray, width: int = 5) -> np.ndarray:
    """float64[samples - width + 1]."""
    return np.convolve(series, np.ones(width) / width, mode="valid")


@claim("proserve-fig16-17", cells=cells, measure=serve_sampled, picture=picture)
def judge(rows: pd.DataFrame) -> list[Check]:
    steady, waves = rows[rows["arrivals"] == "poisson"], rows[rows["arrivals"] != "poisson"]
    gains = {
        name: series(steady, "gain", scheduler=scheduler, load=OVERLOAD)
        for name, scheduler in {"Sarathi-FCFS": FCFS, "SlideBatching": SLIDE}.items()
    }
    kept = {name: np.array([last_over_best(gain) for gain in of_name]) for name, of_name in gains.items()}
    urgent = [
        np.array([counts.mean() for counts in series(steady, "urgent_in_all", scheduler=SLIDE, load=load)])
        for load in LOADS
    ]
    phase_s = phase_s_of(waves["arrivals"].iloc[0])
    phases = np.array(
        [
            urgent_by_phase(counts, time_s, phase_s)
            for counts, time_s in zip(series(waves, "urgent_in_all"), series(waves, "time_s"), strict=True)
        ]
    )
    return [
        Check("gain of the last over the best quarter, Sarathi-FCFS", kept["Sarathi-FCFS"], TOWARD_0),
        Check("gain of the last over the best quarter, SlideBatching", kept["SlideBatching"], STAYS),
        *(
            Check(f"urgent requests, load {LOADS[i + 1]:g} less load {LOADS[i]:g}", urgent[i + 1] - urgent[i], ABOVE_0)
            for i in range(len(LOADS) - 1)
        ),
        Check("urgent requests, high over low phases", (phases[:, 1] + 1) / (phases[:, 0] + 1), FOLLOWS),
    ]
