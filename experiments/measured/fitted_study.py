"""The measured runs with terms fitted to other runs than those they are judged on: a page of its own.

python -m experiments.measured.fitted_study docs/results/measured-fitted.md
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.measured.profiles import profile_of
from experiments.measured.public_runs import folder_of_runs, read_runs
from experiments.measured.study import GOALS, of_version
from servegym.errors import ServegymError
from servegym.evaluation.markdown import table
from servegym.evaluation.measured.few_runs import means_error
from servegym.evaluation.measured.figures import METRICS
from servegym.evaluation.measured.fitting import Fitted, Setting, fit
from servegym.evaluation.measured.runs import Run

NOTHING, OTHERS, SAME, ITSELF = "nothing", "runs of other models", "other runs of the model", "the run itself"


@dataclass(frozen=True, eq=False)
class Judged:
    """A run under terms that were fitted to others, or to itself; errors: of its means, percent."""

    run: Run
    by: str
    terms: Fitted
    errors: Mapping[str, float]


def study(runs: Iterable[Run], folder: Path) -> list[Judged]:
    """Runs over HTTP: what lies between client and engine is fitted with the rest, and others have nothing there."""
    settings = [(run, profile_of(run, folder), of_version(run)) for run in runs if run.over_http]
    fits: dict[tuple[str, ...], Fitted] = {}
    judged = []
    for setting in settings:
        for by, chosen in _fitted_to(setting, settings).items():
            key = tuple(run.name for run, _, _ in chosen)
            if not chosen and by != NOTHING:
                continue
            if key not in fits:
                fits[key] = fit(chosen) if chosen else Fitted()
            judged.append(Judged(setting[0], by, fits[key], means_error(setting, fits[key])))
    return judged


def _fitted_to(setting: Setting, settings: Sequence[Setting]) -> dict[str, list[Setting]]:
    model = setting[0].model
    may = [one for one in settings if not one[0].overloaded]
    return {
        NOTHING: [],
        OTHERS: [one for one in may if one[0].model != model],
        SAME: [one for one in may if one[0].model == model and one is not setting],
        ITSELF: [one for one in may if one is setting],
    }


def medians(judged: Iterable[Judged]) -> dict[str, float]:
    errors = [one.errors for one in judged]
    return {metric: float(np.median([abs(error[metric]) for error in errors])) for metric in METRICS}


HEAD = """# Measured on GPUs: terms fitted to other runs

Written by `SERVEGYM_DATA=DATA python -m experiments.measured.fitted_study docs/results/measured-fitted.md`; do
not edit. The runs of [measured](measured.md) that were served over HTTP.

Three terms, fitted (`fitting.py`): every batch times a factor, CPU time of a step, seconds between client and queue.
Each starts from a prior (1 ± 0.1, 0 ± 1 ms, 0 ± 10 ms). **No run is judged by terms it was fitted to**, but in the last
column, which only says what three terms can do at best. Runs in which clients gave up are judged and never fitted.
The goal is that of hypothesis 1 there, on all {runs} runs over HTTP. A first try, with plain squares, had been seen
when the fit was made robust: one run with a long queue (Llama-2-70B, general) had made every batch of the others 5 %
longer.
"""
READING = """**One run of the same model is enough** for the goal. What is left are the runs in which clients gave up,
and the one that waits in a queue. With runs of other models it is missed, by 0.2 points of TTFT and 1.6 of E2E. The
tables below say why. The client's side is about the same for all of them, 6 to 8 ms. Batch times are not: those of
Llama-2-70B are longer than its tables say, and what mends them makes Llama-2-7B's, which were right, 5 % too long; at
its loads E2E grows by up to three times that.
"""
TERMS = "What was fitted to the runs of all other models:\n"


def section(judged: Sequence[Judged]) -> str:
    """The page."""
    of = _by(judged)
    outcomes = []
    for by, found in of.items():
        figures = medians(found)
        met = all(figures[metric] <= goal for metric, goal in GOALS.items())
        goal = ("met" if met else "missed") if by in (OTHERS, SAME) else "-"
        outcomes.append([by, str(len(found)), _three(figures, "{:.1f}"), goal])
    names = list(dict.fromkeys(one.run.name for one in judged))
    rows = [
        [_named(name, judged), *(_three(found[name].errors, "{:+.1f}") if name in found else "-" for found in (
            {one.run.name: one for one in found} for found in of.values()
        ))]
        for name in names
    ]  # fmt: skip
    fitted = [[model, *_numbers(terms)] for model, terms in {one.run.model: one.terms for one in of[OTHERS]}.items()]
    return "\n".join(
        [
            HEAD.format(runs=len(names)),
            table(("fitted to", "runs judged", "median absolute error, %", "6 / 6 / 15"), outcomes),
            READING,
            "Signed errors of means, % (E2E / ITL / TTFT); *: clients gave up.\n",
            table(("run", *(f"fitted to {by}" for by in of)), rows),
            TERMS,
            table(("judged", "every batch times", "CPU time of a step, ms", "client to queue, ms"), fitted),
        ]
    )


def _numbers(terms: Fitted) -> list[str]:
    return [f"{terms.factor:.3f}", f"{1e3 * terms.step_cpu_s:.2f}", f"{1e3 * terms.client_s:.1f}"]


def _by(judged: Sequence[Judged]) -> dict[str, list[Judged]]:
    return {by: [one for one in judged if one.by == by] for by in (NOTHING, OTHERS, SAME, ITSELF)}


def _named(name: str, judged: Sequence[Judged]) -> str:
    return name + "*" * next(one.run.overloaded for one in judged if one.run.name == name)


def _three(errors: Mapping[str, float], written: str) -> str:
    return " / ".join(written.format(errors[metric]) for metric in METRICS)


def main(target: Path) -> None:
    folder = folder_of_runs()
    target.write_text(section(study(read_runs(folder), folder)), encoding="utf-8")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except ServegymError as error:
        sys.exit(f"error: {error}")
