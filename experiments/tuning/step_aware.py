"""Are schedulers with a time budget better where their batches end at the steps of a device?

    python -m experiments.tuning.step_aware docs/results/step-aware-batches.md

Hypotheses: step_aware.md.
"""

import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track

from experiments import arguments
from experiments.claims.harness.cells import Cell
from experiments.claims.harness.checks import ABOVE_0
from experiments.claims.harness.measures import serve
from experiments.claims.harness.settings import Size
from servegym.evaluation.intervals import Interval, student_interval
from servegym.evaluation.markdown import header, row

WORDS = Path(__file__).with_suffix(".md")
LOADS = (0.7, 1.0, 1.4)
A100 = "a100-llama3-8b"
DEVICES = (A100, "a100-llama3-8b-tp4", "a100-llama3-70b-tp4", "a6000-llama3.1-8b")
NAMES = ("slide-batching", "expected-gain", "qoserve")
PLAIN = {name: f"{name}:steps=ignore" for name in NAMES}
STEPPED = {name: f"{name}:steps=device" for name in NAMES}
EARLY = "slide-batching:steps=device,deadlines=early-first-token"
OTHERS = (EARLY, "sjf", "sjf:budget=profiled", "edf", "edf:budget=profiled")
POLICIES = (*itertools.chain(*zip(PLAIN.values(), STEPPED.values(), strict=True)), *OTHERS)
JUDGED = {"TDG ratio": "tdg_ratio", "SLO attainment": "slo_attainment"}
WAITS = {"TTFT p99, s": "ttft_p99_s", "starved": "starved"}
FORMATS = {"tdg_ratio": ".4f", "slo_attainment": ".4f", "ttft_p99_s": ".1f", "starved": ".4f"}


class Panel(NamedTuple):
    """Traces and the first seed that they are drawn with."""

    title: str
    families: tuple[str, ...]
    first_seed: int

    def seeds(self, number: int) -> range:
        return range(self.first_seed, self.first_seed + number)


PANELS = (
    Panel("Training traces", ("azure-conv", "sharegpt"), 20_140),
    Panel(
        "Held-out traces",
        ("azure-code", "mooncake-conversation", "servegen-m-small", "servegen-deepseek-r1"),
        1_070_000,
    ),
)


def runs_of(panel: Panel, devices: tuple[str, ...], seeds: int, requests: int) -> pd.DataFrame:
    """A row a run: panel, family, device, load, seed, candidate, and the figures of `COLUMNS`."""
    size = Size("step-aware", panel.families, devices, tuple(panel.seeds(seeds)), requests)
    cells = list(itertools.product(size.settings, LOADS, size.seeds, POLICIES))
    rows = []
    for setting, load, seed, policy in track(cells, panel.title, console=Console(stderr=True)):
        figures = serve(Cell(*setting, policy, load, seed, size.requests_of(setting)))
        keys = {"panel": panel.title, "family": setting.family, "device": setting.device, "load": load, "seed": seed}
        rows.append(keys | {"candidate": policy} | {column: figures[column] for column in FORMATS})
    table = pd.DataFrame(rows)
    return table.assign(score=table[list(JUDGED.values())].mean(axis=1))


def by_seed(rows: pd.DataFrame, name: str, column: str) -> np.ndarray:
    """float64[seeds]: the mean over all settings and loads."""
    return rows[rows["candidate"] == name].groupby("seed")[column].mean().to_numpy()


def difference(rows: pd.DataFrame, one: str, other: str, column: str) -> Interval:
    return student_interval(by_seed(rows, one, column) - by_seed(rows, other, column))


def steps_gain(rows: pd.DataFrame, name: str, column: str = "score") -> Interval:
    """What `steps=device` adds, paired by seed."""
    return difference(rows, STEPPED[name], PLAIN[name], column)


def by_device(rows: pd.DataFrame) -> list[str]:
    lines = header("device", *STEPPED)
    for device, of_device in rows.groupby("device", sort=False):
        lines.append(row(str(device), *(steps_gain(of_device, name).text("+.4f") for name in STEPPED)))
    lines.append(row("all", *(steps_gain(rows, name).text("+.4f") for name in STEPPED)))
    return lines


def by_load(rows: pd.DataFrame) -> list[str]:
    """Two tables, of what is judged and of waits: a row a policy, each figure at each load, the mean over all else."""
    means = rows.groupby(["candidate", "load"])[list(FORMATS)].mean()
    lines = []
    for columns in (JUDGED, WAITS):
        lines += header("scheduler", *(f"{label}, load {load:g}" for label in columns for load in LOADS))
        for policy in POLICIES:
            figures = [(column, means.loc[(policy, load), column]) for column in columns.values() for load in LOADS]
            lines.append(row(f"`{policy}`", *(format(mean, FORMATS[column]) for column, mean in figures)))
        lines.append("")
    return lines


def answers(training: pd.DataFrame, held_out: pd.DataFrame) -> list[str]:
    """What of each hypothesis holds."""
    lines = []
    for number, rows in ((1, training), (2, held_out)):
        for name in STEPPED:
            gain = steps_gain(rows, name)
            lines.append(f"{number}. {name}: score {gain.text('+.4f')}: {ABOVE_0.verdict(gain)}.")
    lower = [
        f"{name} on {device}"
        for device, rows in held_out.groupby("device", sort=False)
        for name in STEPPED
        if steps_gain(rows, name).high < 0
    ]
    lines.append(f"2. Decidedly lower on held-out traces: {', '.join(lower) or 'nowhere'}.")
    conv = training[(training["family"] == "azure-conv") & (training["device"] == A100)]
    for load, (label, column) in itertools.product((1.0, 1.4), JUDGED.items()):
        at = conv[conv["load"] == load]
        interval = difference(at, STEPPED["expected-gain"], "sjf", column)
        lines.append(f"3. {label} at load {load:g}, expected-gain with steps less sjf: {interval.text('+.4f')}: "
                     f"{ABOVE_0.verdict(interval)}.")  # fmt: skip
    for rows, title in ((training, "training"), (held_out, "held-out")):
        at = rows[rows["load"] == 1.0]
        interval = difference(at, EARLY, PLAIN["slide-batching"], "slo_attainment")
        lines.append(f"4. Attainment at load 1, {title} traces, `{EARLY}` less `{PLAIN['slide-batching']}`: "
                     f"{interval.text('+.4f')}: {ABOVE_0.verdict(interval)}.")  # fmt: skip
    return [f"- {line}" for line in lines]


def page(training: pd.DataFrame, held_out: pd.DataFrame, seeds: int, requests: int) -> str:
    lines = [
        "# Step-aware batches\n",
        WORDS.read_text(encoding="utf-8"),
        "Measured by `python -m experiments.tuning.step_aware docs/results/step-aware-batches.md`: "
        f"{seeds} seeds a panel, loads {', '.join(f'{load:g}' for load in LOADS)}, {requests} requests a run "
        "(a third as many of mooncake-conversation), SLOs of ProServe. Intervals are 95 %, over seeds, "
        "paired by seed.\n",
        "## What holds\n",
        *answers(training, held_out),
    ]
    for panel, rows in zip(PANELS, (training, held_out), strict=True):
        lines += [f"\n## {panel.title}\n", f"{', '.join(panel.families)}; seeds from {panel.first_seed:,}.\n",
                  "What `steps=device` adds to the score:\n", *by_device(rows),
                  "\nMeans over traces, devices and seeds:\n", *by_load(rows)]  # fmt: skip
    conv = training[(training["family"] == "azure-conv") & (training["device"] == A100)]
    lines += [f"\n## azure-conv on {A100}\n", "The setting of `servegym compare`.\n", *by_load(conv)]
    return "\n".join(lines) + "\n"


def main() -> None:
    asked = arguments.parse(__doc__, devices=DEVICES, seeds=5, requests=1000)
    training, held_out = (runs_of(panel, tuple(asked.devices), asked.seeds, asked.requests) for panel in PANELS)
    asked.page.write_text(page(training, held_out, asked.seeds, asked.requests), encoding="utf-8")


if __name__ == "__main__":
    main()
