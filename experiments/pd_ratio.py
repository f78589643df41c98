"""The ratio of prefill to decode engines as a decision: `pd-ratio` beside every fixed ratio, where the mix of requests
turns.

    python -m experiments.pd_ratio docs/results/pd-ratio.md

Runs all (minutes on two cores) and writes the page; trains the learned scaler if its folder has none. Hypotheses and
words: pd_ratio.md.
"""

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments import arguments
from experiments.claims.harness.checks import ABOVE_0, Range
from experiments.outcomes import cells_of, outcomes_of
from experiments.prose import sections, wrapped
from servegym.baselines.learned.derived import LearnedPolicy
from servegym.baselines.registry import LEARNED, scaler
from servegym.evaluation.intervals import Interval, student_interval
from servegym.evaluation.markdown import table
from servegym.scenarios.demand import Demand
from servegym.scenarios.parts import Fleet, Policies
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.runs.simulation import Simulation
from servegym.tuners import evolution
from servegym.tuners.config import load_config
from servegym.tuners.evolution import EvolutionConfig, inputs_of
from servegym.tuners.runs import POLICY

ENGINES, FIRST_PREFILL = 8, 5
TRAINING_SEEDS, FIRST_TRAINING_SEED, FIRST_SEED = 3, 9_500_000, 9_700_000
TRAINING = "cma-turning-roles"
CURVE_SEEDS = (0, 100_000, 200_000, 300_000, 400_000)  # of trainings; the scenarios of each have the seeds from it on
FIGURES = {
    "SLO attainment": ".3f", "TDG ratio": ".3f", "p99 TTFT, s": ".2f", "p99 TPOT, s": ".3f", "starved": ".3f",
    "role changes": ".1f",
}  # fmt: skip
ATTAINMENT, TDG = 0, 1
BASE = ServingSpec(
    Demand(trace="code-and-writing", slo="ttft_s=2,tpot_s=0.06", rate_per_s=36.0, requests=12_000),
    Fleet(device="a100-llama3-8b", prefill=FIRST_PREFILL, decode=ENGINES - FIRST_PREFILL, role_change_s=1.0),
    Policies(scheduler="vllm-v1", router="min-load", scaler="static"),
)
TURNS, CALM, LONG = "36 requests/s", "24 requests/s", "36 requests/s, a change takes 30 s"
# What differs from BASE. Six engines are enough at 24 requests/s, so that some fixed ratio is right all the time.
PLACES: dict[str, dict[str, Any]] = {
    TURNS: {},
    "36 requests/s, a change takes 10 s": {"role_change_s": 10.0},
    LONG: {"role_change_s": 30.0},
    f"{LONG}, 24,000 requests": {"role_change_s": 30.0, "requests": 24_000},
    "36 requests/s, routers hear 1 s late": {"signal_delay_s": 1.0},
    CALM: {"rate_per_s": 24.0},
    "36 requests/s, conversations only": {"trace": "azure-conv"},
}
SAME_MIX = (CALM, "36 requests/s, conversations only")  # where nothing is to be gained
DEFAULTS = "pd-ratio:interval_s=1,window_s=5"
GRID: Mapping[str, Sequence[float]] = {
    "window_s": (1, 2, 5), "prefill_high": (0.2, 0.35, 0.5), "decode_high": (0.5, 0.65, 0.8),
    "low": (0.7, 1.0), "rest_checks": (0, 2),
}  # fmt: skip
NO_LOSS, LITTLE_LOSS, LEAD = Range(low=-0.01), Range(low=-0.005), Range(low=0.1)
LEARNED_WINS = (TURNS, "36 requests/s, a change takes 10 s")  # expected


class Ratio(NamedTuple):
    """Engines that prefill, of `ENGINES`, at first or, under `static`, all the time."""

    prefill: int
    scaler: str

    @property
    def label(self) -> str:
        if self.scaler.startswith(LEARNED):
            return f"learned, `{TRAINING}`"
        return f"{self.prefill} : {ENGINES - self.prefill}" if self.scaler == "static" else f"`{self.scaler}`"


STATIC = [Ratio(prefill, "static") for prefill in range(1, ENGINES)]
Outcomes = Mapping[Ratio, np.ndarray]  # float64[seeds, figures]


def grid() -> list[Ratio]:
    """`pd-ratio` with each of some settings; low: what a role may have with one engine fewer, over its own high."""
    found = []
    for values in itertools.product(*GRID.values()):
        one = dict(zip(GRID, values, strict=True))
        low = one.pop("low")
        said = {
            "interval_s": 1,
            **one,
            "prefill_low": low * one["prefill_high"],
            "decode_low": low * one["decode_high"],
        }
        found.append(Ratio(FIRST_PREFILL, "pd-ratio:" + ",".join(f"{name}={value:g}" for name, value in said.items())))
    return found


def figures_of(place: Mapping[str, Any], ratio: Ratio, seed: int) -> tuple[float, ...]:
    """`FIGURES` of a run."""
    said = {"prefill": ratio.prefill, "decode": ENGINES - ratio.prefill, "scaler": ratio.scaler, **place}
    result = Simulation(BASE.replaced(**said).build(seed)).run()
    columns, changes = result.columns, result.arrays.engines["totals"]["role_changes"].sum()
    summary = result.summary
    return (
        summary["slo_attainment"], summary["tdg_ratio"], np.nanquantile(columns["ttft_s"], 0.99),
        np.nanquantile(columns["tpot_s"], 0.99), summary["starved"], float(changes),
    )  # fmt: skip


def by_ratio(ratios: Sequence[Ratio], place: Mapping[str, Any], seeds: range) -> Outcomes:
    found = outcomes_of(partial(figures_of, place), [(ratio,) for ratio in ratios], seeds)
    return dict(zip(ratios, found, strict=True))


def best(outcomes: Outcomes) -> Ratio:
    """The one with the highest mean attainment."""
    return max(outcomes, key=lambda ratio: outcomes[ratio][:, ATTAINMENT].mean())


def best_static(outcomes: Outcomes) -> Ratio:
    """The fixed ratio that attains most on these very seeds: more than one could choose beforehand."""
    return best({ratio: outcomes[ratio] for ratio in STATIC})


def ahead(outcomes: Outcomes, ratio: Ratio, other: Ratio, figure: int) -> Interval:
    return student_interval(outcomes[ratio][:, figure] - outcomes[other][:, figure])


def without_rule(ours: Ratio) -> Ratio:
    """The same settings for a scaler that does not look at how long a change takes."""
    return ours._replace(scaler=f"{ours.scaler},outlast=0")


def making_all(ours: Ratio) -> Ratio:
    """The same settings for a scaler that makes all changes of the first phase, as if that never ended."""
    return ours._replace(scaler=f"{ours.scaler},first_s=1e9")


def answers(places: Mapping[str, Outcomes], ours: Ratio, learned: Ratio) -> str:
    """What became of each hypothesis."""
    lines = []
    for place, outcomes in places.items():
        fixed, without, all_made = best_static(outcomes), without_rule(ours), making_all(ours)
        first, is_long = Ratio(FIRST_PREFILL, "static"), place.startswith(LONG)
        asked = [(4, ours, all_made, LEAD if is_long else NO_LOSS, ABOVE_0 if is_long else NO_LOSS)]
        if place in SAME_MIX:
            asked += [(2, ours, fixed, NO_LOSS, NO_LOSS)]
        elif is_long:
            asked += [(3, ours, without, LEAD, ABOVE_0), (4, ours, first, NO_LOSS, NO_LOSS)]
        else:
            asked += [(1, ours, fixed, LEAD, ABOVE_0), (3, ours, without, NO_LOSS, NO_LOSS)]
        of_learned = ABOVE_0 if place in LEARNED_WINS else LITTLE_LOSS
        asked += [(5, learned, ours, of_learned, LITTLE_LOSS)]
        for number, one, other, *expected in asked:
            attainment, tdg = (ahead(outcomes, one, other, figure) for figure in (ATTAINMENT, TDG))
            names = {without: "itself with outlast=0", all_made: "itself with first_s=1e9", ours: "the tuned"}
            label = ("the learned scaler, " if one == learned else "") + f"beside {names.get(other, other.label)}"
            lines.append(
                f"- {number}. {place}, {label}: attainment {attainment.text('+.3f')}: "
                f"{expected[0].verdict(attainment)}; TDG {tdg.text('+.3f')}: {expected[1].verdict(tdg)}."
            )
    return "\n".join(sorted(lines))


def rows_of(outcomes: Outcomes, ours: Ratio) -> str:
    """A row a ratio: `FIGURES`, and the attainment of ours less its own on the same seeds."""
    rows = []
    for ratio, found in outcomes.items():
        less = "" if ratio == ours else ahead(outcomes, ours, ratio, ATTAINMENT).text("+.3f")
        rows.append((ratio.label, *cells_of(found, FIGURES.values()), less))
    return table(("prefill : decode", *FIGURES, "attainment of the tuned less this"), rows)


def trained(folder: Path) -> Ratio:
    """The learned scaler of a folder, trained if there is none."""
    if not (folder / "summary.json").exists():
        evolution.train(load_config(TRAINING), folder)
    return Ratio(FIRST_PREFILL, f"{LEARNED}{folder / POLICY}")


def curves(folder: Path) -> list[list[dict[str, Any]]]:
    """The validations of a training of each of `CURVE_SEEDS`, trained if they are not there: the first is the folder's
    own, the others have folders in it."""
    runs = [folder, *(folder / str(seed) for seed in CURVE_SEEDS[1:])]
    for seed, run in zip(CURVE_SEEDS, runs, strict=True):
        if not (run / "summary.json").exists():
            evolution.train(dataclasses.replace(load_config(TRAINING), seed=seed), run)
    return [[json.loads(line) for line in (run / "curve.jsonl").read_text().splitlines()] for run in runs]


def curves_table(found: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """A row a validation, and one of what each training kept: figures less the base's, over trainings. Of waits the
    median, as a run that comes to a standstill counts with the latest time of a run."""
    kept = [max(curve, key=lambda row: row["score"]) for curve in found]
    stages = [*((f"{rows[0]['steps']:,}", rows) for rows in list(zip(*found, strict=True))[1:]), ("kept", kept)]
    cells = []
    for stage, rows in stages:
        both = ([row[name] for row in rows] for name in ("attainment_difference", "difference"))
        wait_s = np.median([row["wait_difference_s"] for row in rows])
        cells.append((stage, *(student_interval(one).text("+.3f") for one in both), f"{wait_s:+.2f}"))
    return table(("scenarios served", "SLO attainment less the base's", "TDG ratio", "p99 TTFT, s, median"), cells)


def weights_of(learned: Ratio) -> str:
    """A row a weight of the learned scaler, searched ones only."""
    policy = scaler(learned.scaler)
    assert isinstance(policy, LearnedPolicy) and policy.network is not None and policy.layout is not None
    ((weight, bias),) = policy.network.layers
    settings, names = EvolutionConfig.of(load_config(TRAINING)), inputs_of(policy.layout, policy.network.shape)
    output, searched = int(settings.outputs), [name.strip() for name in settings.inputs.split(",")]
    rows = [(f"`{name}`", f"{weight[output, names.index(name)]:+.2f}") for name in searched]
    return table(("number", "weight"), [*rows, ("constant", f"{bias[output] - bias[output + len(bias) // 2]:+.2f}")])


def page(
    places: Mapping[str, Outcomes],
    ours: Ratio,
    learned: Ratio,
    tried: int,
    seeds: int,
    found: list[list[dict[str, Any]]],
) -> str:
    words = sections(Path(__file__).with_suffix(".md"))
    tables = "\n".join(f"### {place}\n\n{rows_of(outcomes, ours)}" for place, outcomes in places.items())
    return wrapped(f"""# The ratio of prefill to decode engines as a decision

<!-- written by python -m experiments.pd_ratio -->

    servegym simulate --trace code-and-writing --requests 12000 --rate 36 --slo ttft_s=2,tpot_s=0.06 \\
      --prefill 5 --decode 3 --role-change 1 --router min-load --scheduler vllm-v1 \\
      --scaler {ours.scaler}

{words["Question"]}

{words["Hypotheses"]}

{words["How"]} Here {seeds} seeds; {tried} settings were tried on {TRAINING_SEEDS} others.

## What holds

{answers(places, ours, learned)}

{words["Reading"]}

## Before a phase has ended

{words["First"]}

## A learned scaler

    servegym train {TRAINING}

{words["Learned"]}

{weights_of(learned)}
{words["Curves"]}

{curves_table(found)}
## Results

{tables}""")


def main() -> None:
    options = arguments.parse(__doc__, seeds=8, folder="results/pd-ratio")
    learned, settings = trained(Path(options.folder)), grid()
    ours = best(by_ratio(settings, {}, range(FIRST_TRAINING_SEED, FIRST_TRAINING_SEED + TRAINING_SEEDS)))
    print(f"chosen: {ours.scaler}", flush=True)
    scalers = [Ratio(FIRST_PREFILL, DEFAULTS), without_rule(ours), making_all(ours), learned, ours]
    seeds, places = range(FIRST_SEED, FIRST_SEED + options.seeds), {}
    fixed: dict[tuple[Any, ...], Outcomes] = {}  # how long a change takes is nothing to them
    for name, place in PLACES.items():
        key = tuple(sorted((field, value) for field, value in place.items() if field != "role_change_s"))
        if key not in fixed:
            fixed[key] = by_ratio(STATIC, place, seeds)
        places[name] = {**fixed[key], **by_ratio(scalers, place, seeds)}
        print(f"{name}\n{rows_of(places[name], ours)}", flush=True)
    found = curves(Path(options.folder))
    options.page.write_text(page(places, ours, learned, len(settings), options.seeds, found), encoding="utf-8")


if __name__ == "__main__":
    main()
