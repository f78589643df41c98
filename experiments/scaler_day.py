"""The day of a scaler: engines in service at equal SLO attainment, where they take time to start.

    python -m experiments.scaler_day docs/results/scaler-day.md

Runs all and writes the page. Hypothesis and words: scaler_day.md.
"""

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.outcomes import cells_of, outcomes_of
from experiments.prose import sections
from servegym.baselines import registry
from servegym.baselines.artifact.files import load_artifact
from servegym.evaluation.intervals import Interval, student_interval
from servegym.evaluation.markdown import table
from servegym.scenarios.documents import load_spec
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.statuses import AT_CHECKS
from servegym.simulator.runs.simulation import Simulation

DAY_S, ENGINES = 1440.0, 8
TRAINING, HELD_OUT = range(8_600_000, 8_600_006), range(8_700_000, 8_700_006)
LEAST = 0.99  # attainment
FIGURES = ("TDG ratio", "SLO attainment", "p99 TTFT, s", "starved", "engines in service")
STYLES = (".4f", ".3f", ".2f", ".4f", ".2f")
ATTAINMENT, IN_SERVICE = 1, 4
STATIC, TARGET, FORECAST, POLYSERVE = "static", "target-utilisation", "forecast", "polyserve"
# Of `servegym tune scaler-day`, on other seeds.
TUNED = {TARGET: "window_s=5.482,tolerance=0.4915", FORECAST: "window_s=19.67,drain_s=46.33,slack=0.3984,trust=3.067"}
VALUES: dict[str, Sequence[float]] = {
    STATIC: range(4, ENGINES + 1),
    TARGET: (8, 12, 16, 20, 22, 24, 26, 28, 30, 32, 34),
    FORECAST: (1.0, 1.2, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0, 2.1, 2.2),
    POLYSERVE: (1.0,),
}
OF_LEARNED = (1.6, 1.8, 2.0, 2.1, 2.2, 2.3, 2.4, 2.5, 2.6, 2.8, 3.0)  # engine_rate of its base


class Place(NamedTuple):
    """Where scalers are judged: how long engines take to start, and what becomes of the first day's requests."""

    startup_s: float
    first_day: Callable[[Workload], Workload] = lambda workload: workload


def fewer_yesterday(workload: Workload) -> Workload:
    """Of the first day's requests every second one."""
    kept = (workload.table["arrival_s"] >= DAY_S) | (np.arange(len(workload)) % 2 == 0)
    return Workload(workload.table[kept], workload.name, workload.provenance)


def later_yesterday(workload: Workload) -> Workload:
    """The first day's requests three hours later, those of its end at its beginning."""
    arrival_s = workload.table["arrival_s"]
    return workload.replace(arrival_s=np.where(arrival_s < DAY_S, (arrival_s + DAY_S / 8) % DAY_S, arrival_s))


PLACES = {
    "1 s (a minute)": Place(1.0),
    "10 s (ten minutes)": Place(10.0),
    "60 s (an hour)": Place(60.0),
    "10 s; half as many requests yesterday": Place(10.0, fewer_yesterday),
    "10 s; yesterday all was three hours later": Place(10.0, later_yesterday),
}


def scenario_of(family: str, value: float, place: Place, seed: int) -> Scenario:
    """The scenario of a scaler whose one number is `value` (a family of `VALUES`, or a learned one upon forecast)."""
    spec = load_spec("scaler-day").replaced(startup_s=place.startup_s)
    if family == STATIC:
        spec = spec.replaced(engines=int(value), started=int(value), scaler="static")
    if family == POLYSERVE:
        spec = spec.replaced(router="polyserve", scheduler="polyserve")
    scenario = spec.build(seed)
    if family.startswith(registry.LEARNED):
        scaler = registry.scaler(family).with_settings(engine_rate=value, ahead_s=place.startup_s)
    else:
        scaler = registry.scaler(scaler_text(family, value, place))
    return dataclasses.replace(scenario, workload=place.first_day(scenario.workload), scaler=scaler)


def scaler_text(family: str, value: float, place: Place) -> str:
    """The scaler as one writes it."""
    if family == TARGET:
        return f"{family}:interval_s=1,most_requests={value:g},{TUNED[family]}"
    if family == FORECAST:
        of_place = f"day_s={DAY_S:g},ahead_s={place.startup_s:g}"
        return f"{family}:interval_s=1,engine_rate={value:g},{of_place},{TUNED[family]}"
    return f"{family}:interval_s={value:g}" if family == POLYSERVE else family


def first_day_engine_s(simulation: Simulation) -> float:
    """Run a simulation up to the end of the first day: engine-seconds in service so far."""
    while simulation.arrays.status[0].now_s < DAY_S:
        if not simulation.advance_to(AT_CHECKS):  # no scaler is asked: all are in service throughout
            return DAY_S * len(simulation.arrays.engines)
    return float(simulation.result().figure("cost_engine_s"))


def figures_of(family: str, value: float, place: Place, seed: int) -> tuple[float, ...]:
    """`FIGURES` of the second day of a run."""
    simulation = Simulation(scenario_of(family, value, place, seed))
    before_s = first_day_engine_s(simulation)
    result = simulation.run()
    columns = result.columns
    today = columns["arrival_s"] >= DAY_S
    return (
        columns["gain"][today].sum() / columns["ideal_gain"][today].sum(), columns["attained"][today].mean(),
        np.nanquantile(columns["ttft_s"][today], 0.99), columns["starved"][today].mean(),
        (result.figure("cost_engine_s") - before_s) / (result.figure("span_s") - DAY_S),
    )  # fmt: skip


class Judged(NamedTuple):
    """A family at a place: what it was set to, and what came of that on held-out seeds."""

    value: float
    reaches: bool  # the attainment asked for, on training seeds
    held_out: np.ndarray  # float64[seeds, figures]


def chosen(values: Sequence[float], trained: np.ndarray) -> tuple[float, bool]:
    """The cheapest value with the attainment asked for, and True; the one that attains most, and False.

    trained: float64[values, seeds, figures].
    """
    means = trained.mean(axis=1)
    able = means[:, ATTAINMENT] >= LEAST
    best = np.where(able, means[:, IN_SERVICE], np.inf).argmin() if able.any() else means[:, ATTAINMENT].argmax()
    return values[int(best)], bool(able.any())


def judged_at(place: Place, learned: Sequence[str], training: range, held_out: range) -> dict[str, Judged]:
    """Every family, and learned scalers, at a place."""
    tried = VALUES | dict.fromkeys(learned, OF_LEARNED)
    settings = [(family, value, place) for family, values in tried.items() for value in values]
    trained, found = outcomes_of(figures_of, settings, training), {}
    for family, values in tried.items():
        rows = [row for row, (name, *_) in enumerate(settings) if name == family]
        found[family] = chosen(values, trained[rows])
    judged = outcomes_of(figures_of, [(family, value, place) for family, (value, _) in found.items()], held_out)
    return {family: Judged(*said, figures) for (family, said), figures in zip(found.items(), judged, strict=True)}


def cheaper(place: Mapping[str, Judged], family: str, other: str) -> Interval:
    """Engines in service of a family less those of another, on the same seeds."""
    return student_interval(place[family].held_out[:, IN_SERVICE] - place[other].held_out[:, IN_SERVICE])


def named(family: str) -> str:
    """A family in a table: a learned one by its training."""
    if family.startswith(registry.LEARNED) and family.endswith(".json"):
        return f"learned, `{load_artifact(registry.learned_path(family)).provenance['training']}`"
    return f"`{family}`"


def rows_of(place: Mapping[str, Judged]) -> str:
    """A row a family: `FIGURES`, and engines in service less those of target-utilisation and of forecast."""
    rows = []
    for family, (value, reaches, figures) in place.items():
        label = f"{named(family)} {value:g}" + ("" if reaches else ", below 0.99")
        means = cells_of(figures, STYLES)
        less = ["" if family == other else cheaper(place, family, other).text("+.2f") for other in (TARGET, FORECAST)]
        rows.append((label, *means, *less))
    return table(("scaler", *FIGURES, "less target-utilisation", "less forecast"), rows)


def trainings(learned: Sequence[str]) -> str:
    """How learned scalers were trained, by their own provenance."""
    rows = []
    for name in learned:
        said = load_artifact(registry.learned_path(name)).provenance
        found = said["validation"]
        less = Interval.about(found["difference_tdg_ratio"], found["half_width_tdg_ratio"]).text("+.4f")
        rows.append((f"`{said['training']}`", f"{said['steps']:,}", f"{said['minutes']:.1f}", less))
    return table(("configuration", "scenarios served", "minutes", "TDG in validation, less its base"), rows)


def page(places: Mapping[str, Mapping[str, Judged]], seeds: int, learned: Sequence[str] = ()) -> str:
    words = sections(Path(__file__).with_suffix(".md"))
    of_learned = f"\n## A learned scaler\n\n{words['Learned']}\n\n{trainings(learned)}" if learned else ""
    parts = "\n".join(f"### Start-up {name}\n\n{rows_of(place)}" for name, place in places.items())
    return f"""# A scaler's day

<!-- written by python -m experiments.scaler_day -->

    servegym compare --spec scaler-day --scaler target-utilisation:interval_s=1,most_requests=24,window_s=5 \\
        --scaler static --scaler forecast:interval_s=1,day_s=1440,ahead_s=1,engine_rate=1.7,window_s=20

**Hypothesis.** {words["Hypothesis"]}

**Found.** {words["Found"]}

## How

{words["How"]}

## What each needs

{words["Cost"]} Here {seeds} held-out seeds; ± is half a 95 % interval over them (Student's t), of differences on the
same seeds.

{parts}
## Tuning

{words["Tuning"]}
{of_learned}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--seeds", type=int, default=len(HELD_OUT), help="held-out ones")
    parser.add_argument("--learned", action="append", default=[], metavar="PATH", help="judge learned:PATH too")
    options = parser.parse_args()
    learned, places = [f"learned:{path}" for path in options.learned], {}
    for name, place in PLACES.items():
        places[name] = judged_at(place, learned, TRAINING, HELD_OUT[: options.seeds])
        print(f"{name}\n{rows_of(places[name])}", flush=True)
    options.page.write_text(page(places, options.seeds, learned), encoding="utf-8")


if __name__ == "__main__":
    main()
