"""Do parameters of expected-gain that were tuned without a device, a trace or an SLO recipe do as well there? And what
does it bring to tune on the deployment that is served?

    python -m experiments.transfer docs/results/transfer.md

Hypotheses: transfer.md. Runs are kept in --ledger, from which the same command goes on.
"""

import argparse
import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.kept_runs import Kept, served
from servegym.baselines.registry import scheduler
from servegym.baselines.schedulers.expected_gain import HOPELESS
from servegym.baselines.time_budgets import DEADLINES
from servegym.evaluation.intervals import Interval
from servegym.evaluation.ledger import Row
from servegym.evaluation.markdown import table
from servegym.evaluation.panels.statistics import bootstrap, difference
from servegym.simulator.runs.simulation import Simulation

WORDS = Path(__file__).with_name("transfer.md")
AXES = {
    "device": ("a100-llama3-8b", "h100-llama3-8b", "a6000-llama3.1-8b", "ascend910b-qwen2-7b", "a100-qwen1.5-7b"),
    "trace": ("azure-conv", "sharegpt", "polyserve-mooncake-toolagent", "flowprefill"),
    "slo": ("proserve", "polyserve", "qoserve", "flowprefill-colocated"),
    "load": (0.7, 1.4),
}
LEFT_OUT = ("device", "trace", "slo")
TUNED_SEED, FIRST_TESTED, SETTINGS_SEED = 41_000, 42_000, 0
TDG, ATTAINMENT = FIGURES = ("tdg_ratio", "slo_attainment")
DEFAULT = 0  # the first of the settings
WEIGHTS = (0.0, 0.5)  # of attainment, in what a deployment is tuned for
# The bounds of the hypotheses, of the TDG ratio of what was tuned without a group, less that of the others.
TRANSFERS, NEEDLESS, HARMLESS = -0.005, 0.01, -0.002


class Setting(NamedTuple):
    """Parameters of expected-gain; eta in smallest TPOT SLOs of the requests."""

    gamma: float
    eta: float
    output_tokens: float
    most_late: float
    deadlines: str
    hopeless: str

    def text(self, tpot_slo_s: float) -> str:
        words = self._asdict() | {"eta": repr(self.eta * tpot_slo_s)}
        return "expected-gain:steps=ignore," + ",".join(f"{name}={value}" for name, value in words.items())


class Cell(NamedTuple):
    device: str
    trace: str
    slo: str
    load: float


class Run(NamedTuple):
    """A setting, by its number, on a cell with a seed."""

    setting: int
    cell: Cell
    seed: int


class Group(NamedTuple):
    """The cells with one device, trace or recipe."""

    axis: str
    value: str

    def has(self, cell: Cell) -> bool:
        return bool(getattr(cell, self.axis) == self.value)


def settings(count: int) -> list[Setting]:
    """The defaults, and points of a Latin hypercube; numbers of three digits."""
    from scipy.stats.qmc import LatinHypercube

    made = [Setting(2.0, 0.9, 200.0, 0.75, "early-first-token", "last")]
    for gamma, eta, tokens, late, deadlines, hopeless in LatinHypercube(6, seed=SETTINGS_SEED).random(count - 1):
        drawn = (0.5 * 16**gamma, 0.5 + 0.7 * eta, 20 * 100**tokens, 0.2 + 0.8 * late)
        numbers = [float(f"{number:.3g}") for number in drawn]
        words = [names[int(at * len(names))] for at, names in ((deadlines, DEADLINES), (hopeless, HOPELESS))]
        made.append(Setting(*numbers, *words))  # type: ignore[arg-type]
    return made


def measured(run: Run, tried: Sequence[Setting], requests: int) -> Row:
    spec, workload = served(run.cell, run.seed, requests)
    text = tried[run.setting].text(float(workload.table["tpot_slo_s"].min()))
    summary = Simulation(spec.with_values({"scheduler": text}).build(run.seed, workload=workload)).run().summary
    return {"run": [run.setting, list(run.cell), run.seed], **{figure: summary[figure] for figure in FIGURES}}


def run_of(row: Row) -> Run:
    setting, cell, seed = row["run"]
    return Run(setting, Cell(*cell), seed)


class Study:
    """Runs that are kept, and what they say. requests: of a run; seeds: of the judgement."""

    def __init__(self, axes: dict[str, Any], count: int, requests: int, seeds: int, ledger: Path):
        self.axes, self.requests, self.path = axes, requests, ledger
        self.cells = [Cell(*values) for values in itertools.product(*axes.values())]
        self.groups = [Group(axis, value) for axis in LEFT_OUT for value in axes[axis] if len(axes[axis]) > 1]
        self.settings, self.seeds = settings(count), range(FIRST_TESTED, FIRST_TESTED + seeds)
        self.rows: dict[Run, Row] = {}

    def run(self, runs: Iterable[Run], title: str) -> None:
        tried, requests = self.settings, self.requests
        deployment = served(self.cells[0], TUNED_SEED, requests)[0].build(TUNED_SEED).deployment
        study = {"what": "transfer", "requests": requests, "settings": [list(setting) for setting in tried]}
        kept = Kept(self.path, study, [scheduler("expected-gain")], deployment)
        rows = kept.rows(runs, run_of, lambda run: measured(run, tried, requests), title)
        self.rows |= {run_of(row): row for row in rows}

    def tune(self) -> None:
        """Every setting on every cell."""
        self.run((Run(i, cell, TUNED_SEED) for cell in self.cells for i in range(len(self.settings))), "tuning")

    def best(self, without: Group | None = None) -> int:
        """The setting with the highest mean TDG ratio over the cells that are not of a group."""
        return self.best_on([cell for cell in self.cells if without is None or not without.has(cell)])

    def own(self, served: Cell, attainment: float = 0.0) -> int:
        """The setting that is best for a deployment by itself, on its device, trace and recipe, at all loads; by TDG
        ratio + so many times SLO attainment."""
        return self.best_on([cell for cell in self.cells if cell[:-1] == served[:-1]], attainment)

    def best_on(self, cells: Sequence[Cell], attainment: float = 0.0) -> int:
        rows = [[self.rows[Run(i, cell, TUNED_SEED)] for cell in cells] for i in range(len(self.settings))]
        return int(np.argmax([np.mean([row[TDG] + attainment * row[ATTAINMENT] for row in one]) for one in rows]))

    def test(self) -> None:
        """What was chosen, on other seeds of the cells that it is judged on."""
        runs = [
            Run(setting, cell, seed)
            for cell in self.cells
            for seed in self.seeds
            for setting in sorted(
                {
                    DEFAULT,
                    self.best(),
                    *(self.own(cell, weight) for weight in WEIGHTS),
                    *(self.best(one) for one in self.groups if one.has(cell)),
                }
            )
        ]
        self.run(runs, "judging")

    def scores(self, groups: Sequence[Group], figure: str, chosen: int | None = None) -> np.ndarray:
        """float64[cells, seeds] on the cells of each group, of a setting; None: of the one tuned without the group."""
        return np.array(
            [
                [
                    self.rows[Run(self.best(group) if chosen is None else chosen, cell, seed)][figure]
                    for seed in self.seeds
                ]
                for group in groups
                for cell in self.cells
                if group.has(cell)
            ]
        )

    def everywhere(self, figure: str, chosen: Callable[[Cell], int]) -> np.ndarray:
        """float64[cells, seeds] of the setting that is chosen for each cell."""
        return np.array(
            [[self.rows[Run(chosen(cell), cell, seed)][figure] for seed in self.seeds] for cell in self.cells]
        )

    def own_less(self, figure: str, other: int, attainment: float = 0.0) -> Interval:
        """What was tuned for each deployment by itself less another setting, on all cells."""
        own = self.everywhere(figure, lambda cell: self.own(cell, attainment))
        return bootstrap(difference, own, self.everywhere(figure, lambda _: other))

    def less(self, groups: Sequence[Group], figure: str, other: int) -> Interval:
        """What was tuned without each group less another setting, on the cells of the group."""
        return bootstrap(difference, self.scores(groups, figure), self.scores(groups, figure, other))


def page(study: Study) -> str:
    """The page in Markdown."""
    everything = study.best()
    lines, verdicts = [], []
    for group in study.groups:
        to_all, to_default = (study.less([group], TDG, other) for other in (everything, DEFAULT))
        verdicts.append((to_all, to_default))
        lines.append(
            [
                f"{group.axis} {group.value}",
                str(study.best(group)),
                f"{study.scores([group], TDG, DEFAULT).mean():.4f}",
                to_default.in_words(),
                to_all.in_words(),
                study.less([group], ATTAINMENT, DEFAULT).in_words(),
            ]
        )
    for axis, of_axis in itertools.groupby(study.groups, key=lambda group: group.axis):
        groups = list(of_axis)
        lines.append(
            [
                f"each {axis} in turn",
                "",
                f"{study.scores(groups, TDG, DEFAULT).mean():.4f}",
                *(study.less(groups, TDG, other).in_words() for other in (DEFAULT, everything)),
                study.less(groups, ATTAINMENT, DEFAULT).in_words(),
            ]
        )
    for weight in WEIGHTS:
        lines.append(
            [
                f"each deployment by itself{f', by TDG ratio + {weight:g} x attainment' if weight else ''}",
                "",
                f"{study.everywhere(TDG, lambda _: DEFAULT).mean():.4f}",
                *(study.own_less(TDG, other, weight).in_words() for other in (DEFAULT, everything)),
                study.own_less(ATTAINMENT, DEFAULT, weight).in_words(),
            ]
        )
    asked = [
        ("1, it transfers", [to_all.high < TRANSFERS for to_all, _ in verdicts]),
        ("2, it needs no tuning", [to_default.low > NEEDLESS for _, to_default in verdicts]),
        ("3, tuning does no harm", [to_default.high < HARMLESS for _, to_default in verdicts]),
        (
            "4, it pays to tune on what is served",
            [study.own_less(TDG, DEFAULT, weight).low <= 0.0 for weight in WEIGHTS],
        ),
    ]
    numbers = sorted({DEFAULT, everything, *map(study.best, study.groups)})
    parameters = [
        [str(i), *(f"{value:g}" if isinstance(value, float) else value for value in study.settings[i])] for i in numbers
    ]
    axes = "; ".join(f"{name} {', '.join(map(str, values))}" for name, values in study.axes.items())
    return "\n".join(
        [
            "# Transfer: expected-gain tuned without a device, a trace, a recipe\n",
            WORDS.read_text(encoding="utf-8"),
            "## What was measured\n",
            f"`python -m experiments.transfer docs/results/transfer.md`: {len(study.settings)} settings on "
            f"{len(study.cells)} cells ({axes}), {study.requests} requests a run, tuned on seed {TUNED_SEED}, judged "
            f"on {len(study.seeds)} others; means and 95 % intervals over seeds, paired.\n",
            *(f"- Hypothesis {name}: refuted in {sum(refuted)} of {len(refuted)}." for name, refuted in asked),
            f"\nTuned on all cells: setting {everything}. TDG ratio, on the cells that were left out; in the last rows "
            "on those that were tuned on:\n",
            table(
                ["left out", "setting", "defaults", "tuned without it, less defaults", "less tuned on all",
                 "SLO attainment: less defaults"],
                lines,
            ),
            f"The settings ({DEFAULT}: the defaults; eta in smallest TPOT SLOs):\n",
            table(["", *Setting._fields], parameters),
        ]
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--settings", type=int, default=32, help="how many are tried")
    parser.add_argument("--requests", type=int, default=300, help="of a run")
    parser.add_argument("--seeds", type=int, default=2, help="that what was chosen is judged on")
    parser.add_argument("--ledger", type=Path, default=Path("results/transfer.jsonl"))
    for name in LEFT_OUT:
        parser.add_argument(f"--{name}", nargs="+", default=AXES[name], help="instead of those of the page")
    asked = parser.parse_args(arguments)
    axes = {name: tuple(getattr(asked, name, AXES[name])) for name in AXES}
    study = Study(axes, asked.settings, asked.requests, asked.seeds, asked.ledger)
    study.tune()
    study.test()
    asked.page.parent.mkdir(parents=True, exist_ok=True)
    asked.page.write_text(page(study), encoding="utf-8")


if __name__ == "__main__":
    main()
