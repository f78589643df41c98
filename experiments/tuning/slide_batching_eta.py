"""Which share of the TPOT SLO should be SlideBatching's least latency budget, eta? The paper prints no value.

    python -m experiments.tuning.slide_batching_eta docs/results/slide-batching-eta.md

Hypothesis, rule of choice and what came before: slide_batching_eta.md.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track

from experiments import arguments
from experiments.claims.harness.cells import Cell
from experiments.claims.harness.measures import serve
from experiments.claims.harness.page import header, row
from experiments.claims.harness.settings import DEVICES, FAMILIES, Size, workload
from servegym.baselines.schedulers.slide_batching import ETA
from servegym.evaluation.intervals import Interval, student_interval

WORDS = Path(__file__).with_name("slide_batching_eta.md")
FACTORS = (0.5, 0.65, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
LOADS = (0.7, 1.0, 1.4)
FIRST_SEED = 20_010
# Beside the factors: other rules for the budget and the deadlines, and the authors' code.
OTHERS = {
    "hopeless=exclude, 0.65": ("hopeless=exclude", 0.65),
    "hopeless=exclude, 0.9": ("hopeless=exclude", 0.9),
    "deadlines=early-first-token, 0.9": ("deadlines=early-first-token", 0.9),
    "variant=xllm": ("variant=xllm", None),
    "variant=xllm,starve_threshold=1000": ("variant=xllm,starve_threshold=1000", None),
}
COLUMNS = {"TDG ratio": "tdg_ratio", "SLO attainment": "slo_attainment"}


class Candidate(NamedTuple):
    """A scheduler as it is named on the page. settings: beside eta. factor: eta / smallest TPOT SLO; None: its own."""

    name: str
    settings: str
    factor: float | None

    def text(self, tpot_slo_s: float) -> str:
        eta = () if self.factor is None else (f"eta={self.factor * tpot_slo_s!r}",)
        return f"slide-batching:{','.join((*filter(None, [self.settings]), *eta))}"


def cells(size: Size, loads: Sequence[float], candidates: Sequence[Candidate]) -> Iterator[tuple[str, Cell]]:
    """The runs, each with its candidate's name; those of one workload one after the other."""
    for setting in size.settings:
        for load in loads:
            for seed in size.seeds:
                requests = size.requests_of(setting)
                tpot_slo_s = float(workload(setting, load, seed, requests).table["tpot_slo_s"].min())
                for candidate in candidates:
                    yield candidate.name, Cell(*setting, candidate.text(tpot_slo_s), load, seed, requests)


def measured(name: str, cell: Cell) -> dict[str, Any]:
    figures = serve(cell)
    keys = {"candidate": name, "setting": cell.setting, "load": cell.load, "seed": cell.seed}
    return keys | {column: figures[column] for column in COLUMNS.values()}


def scored(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(score=rows[list(COLUMNS.values())].mean(axis=1))


def by_seed(rows: pd.DataFrame, name: str, column: str) -> np.ndarray:
    """float64[seeds]: the mean over all settings and loads."""
    return rows[rows["candidate"] == name].groupby("seed")[column].mean().to_numpy()


def difference(rows: pd.DataFrame, one: str, other: str, column: str) -> Interval:
    return student_interval(by_seed(rows, one, column) - by_seed(rows, other, column))


def choose(rows: pd.DataFrame, factors: Sequence[float]) -> str:
    """The candidate, one of the factors, with the highest score."""
    return max((f"{factor:g}" for factor in factors), key=lambda name: by_seed(rows, name, "score").mean())


def page(rows: pd.DataFrame, size: Size, factors: Sequence[float], loads: Sequence[float]) -> str:
    names = list(dict.fromkeys(rows["candidate"]))
    best, default = choose(rows, factors), f"{ETA.factor:g}"
    behind = ""
    if default in names and default != best:
        behind = f" The difference of the default is {in_words(difference(rows, default, best, 'score'), '+')}."
    lines = [
        "# SlideBatching's least latency budget\n",
        WORDS.read_text(encoding="utf-8"),
        "Measured by `python -m experiments.tuning.slide_batching_eta docs/results/slide-batching-eta.md`: "
        f"{', '.join(size.families)}, each on {', '.join(size.devices)}; loads "
        f"{', '.join(f'{load:g}' for load in loads)}; seeds {size.seeds[0]} to {size.seeds[-1]}; {size.requests} "
        "requests a run (a third as many of mooncake-conversation); SLOs of ProServe.\n",
        f"**Highest score: {best}. Default: {default}.**{behind} Below, means and their 95 % intervals over seeds, of "
        f"each the mean of {len(size.settings)} settings; differences are paired by seed.\n",
    ]
    for label, column in COLUMNS.items():
        lines += header(label, *(f"load {load:g}" for load in loads), "all", f"all, less {best}")
        for name in names:
            of_load = [student_interval(by_seed(rows[rows["load"] == load], name, column)) for load in loads]
            lines.append(row(name, *map(in_words, of_load), in_words(student_interval(by_seed(rows, name, column))),
                             "" if name == best else in_words(difference(rows, name, best, column), "+")))  # fmt: skip
        lines.append("")
    lines += ["Score by device: mean over families and loads; bold is the largest of the factors.\n"]
    lines += header("", *size.devices, "all", f"all, less {best}")
    devices = rows["setting"].map(lambda setting: setting.device)
    of_device = {name: [by_seed(rows[devices == device], name, "score").mean() for device in size.devices]
                 for name in names}  # fmt: skip
    largest = np.max([of_device[f"{factor:g}"] for factor in factors], axis=0)
    for name in names:
        means = [f"**{mean:.4f}**" if mean == top else f"{mean:.4f}"
                 for mean, top in zip(of_device[name], largest, strict=True)]  # fmt: skip
        lines.append(row(name, *means, in_words(student_interval(by_seed(rows, name, "score"))),
                         "" if name == best else in_words(difference(rows, name, best, "score"), "+")))  # fmt: skip
    lines += ["", "**The hypothesis**, over all settings and loads:\n", *header("", *COLUMNS)]
    for one, other in ((0.9, 0.65), (1.0, 0.9)):
        if one in factors and other in factors:
            pairs = [difference(rows, f"{one:g}", f"{other:g}", column) for column in COLUMNS.values()]
            lines.append(row(f"{one:g} less {other:g}", *(in_words(pair, "+") for pair in pairs)))
    return "\n".join(lines) + "\n"


def in_words(interval: Interval, sign: str = "") -> str:
    return interval.text(f"{sign}.4f")


def main() -> None:
    devices = (DEVICES[0], "a100-llama3-70b-tp4", DEVICES[1])
    asked = arguments.parse(
        __doc__, factors=FACTORS, loads=LOADS, families=FAMILIES, devices=devices, seeds=5, first_seed=FIRST_SEED,
        requests=1000,
    )  # fmt: skip
    seeds = tuple(range(asked.first_seed, asked.first_seed + asked.seeds))
    size = Size("eta", tuple(asked.families), tuple(asked.devices), seeds, asked.requests)
    candidates = [Candidate(f"{factor:g}", "", factor) for factor in asked.factors]
    candidates += [Candidate(name, *other) for name, other in OTHERS.items()]
    runs = len(size.settings) * len(asked.loads) * len(seeds) * len(candidates)
    progress = track(cells(size, asked.loads, candidates), "runs", runs, console=Console(stderr=True))
    rows = scored(pd.DataFrame([measured(name, cell) for name, cell in progress]))
    asked.page.write_text(page(rows, size, asked.factors, asked.loads), encoding="utf-8")


if __name__ == "__main__":
    main()
