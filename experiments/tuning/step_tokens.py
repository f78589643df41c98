"""Is SlideBatching better where its batches end at the steps of a device?

    python -m experiments.tuning.step_tokens docs/results/slide-batching-steps.md

Hypothesis and rule of choice: step_tokens.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track

from experiments import arguments
from experiments.claims.harness.page import header, row
from experiments.claims.harness.settings import DEVICES, FAMILIES, Size
from experiments.tuning.slide_batching_eta import (
    COLUMNS,
    Candidate,
    by_seed,
    cells,
    difference,
    in_words,
    measured,
    scored,
)
from servegym.evaluation.intervals import student_interval
from servegym.latency_models.profile import load_profile

if TYPE_CHECKING:
    import pandas as pd

WORDS = Path(__file__).with_name("step_tokens.md")
LOADS = (0.8, 1.0, 1.4)
SIZES = (0, 64, 128, 256)
OFF, ON = "0", "the profile's"
FIRST_SEED = 20_110
SERVED_BY = (
    DEVICES[0], "a100-llama3-8b-tp4", "a100-llama3-70b-tp4", "a6000-llama3.1-8b", "h100-llama3-8b", DEVICES[1],
)  # fmt: skip


def with_profiled(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, and once more those with the step of their device's profile, as the candidate `ON`."""
    import pandas as pd

    steps = rows["setting"].map(lambda setting: str(load_profile(setting.device).step_tokens))
    return pd.concat([rows, rows[rows["candidate"] == steps].assign(candidate=ON)], ignore_index=True)


def both(rows: pd.DataFrame) -> list[str]:
    """Cells of a table: without, with, and the difference, of each figure."""
    cells = []
    for column in COLUMNS.values():
        cells += [in_words(student_interval(by_seed(rows, name, column))) for name in (OFF, ON)]
        cells.append(in_words(difference(rows, ON, OFF, column), "+"))
    return cells


def page(rows: pd.DataFrame, size: Size) -> str:
    device = rows["setting"].map(lambda setting: setting.device)
    family = rows["setting"].map(lambda setting: setting.family)
    scores = in_words(difference(rows, ON, OFF, "score"), "+")
    figures = [word for label in COLUMNS for word in (f"{label}, without", "with", "difference")]
    lines = [
        "# SlideBatching on devices with steps\n",
        WORDS.read_text(encoding="utf-8"),
        "Measured by `python -m experiments.tuning.step_tokens docs/results/slide-batching-steps.md`: "
        f"{', '.join(size.families)}, each on {', '.join(size.devices)}; loads "
        f"{', '.join(f'{load:g}' for load in LOADS)}; seeds {size.seeds[0]} to {size.seeds[-1]}; {size.requests} "
        "requests a run (a third as many of mooncake-conversation); SLOs of ProServe. Means and 95 % intervals over "
        "seeds; differences are paired by seed.\n",
        f"**Score with the profile's step less without, all settings: {scores}.**\n",
        f"{size.families[0]} on {size.devices[0]}:\n",
        *header("load", *figures),
    ]
    one = rows[(device == size.devices[0]) & (family == size.families[0])]
    lines += [row(f"{load:g}", *both(one[one["load"] == load])) for load in LOADS]
    lines += [f"\nAll traces on {size.devices[0]}:\n", *header("load", *figures)]
    one = rows[device == size.devices[0]]
    lines += [row(f"{load:g}", *both(one[one["load"] == load])) for load in LOADS]
    lines += [
        "\nScore by device, over traces and loads: without, and what each step adds.\n",
        *header("device", "the profile's step", "without", *(f"{tokens}" for tokens in SIZES[1:])),
    ]
    for name in size.devices:
        of_device = rows[device == name]
        more = [in_words(difference(of_device, str(tokens), OFF, "score"), "+") for tokens in SIZES[1:]]
        without = in_words(student_interval(by_seed(of_device, OFF, "score")))
        lines.append(row(name, str(load_profile(name).step_tokens or "none"), without, *more))
    return "\n".join(lines) + "\n"


def main() -> None:
    asked = arguments.parse(__doc__, devices=SERVED_BY, families=FAMILIES, seeds=5, requests=1000)
    import pandas as pd

    seeds = tuple(range(FIRST_SEED, FIRST_SEED + asked.seeds))
    size = Size("steps", tuple(asked.families), tuple(asked.devices), seeds, asked.requests)
    candidates = [Candidate(str(tokens), f"step_tokens={tokens}", None) for tokens in SIZES]
    runs = len(size.settings) * len(LOADS) * len(seeds) * len(candidates)
    progress = track(cells(size, LOADS, candidates), "runs", runs, console=Console(stderr=True))
    rows = with_profiled(scored(pd.DataFrame([measured(name, cell) for name, cell in progress])))
    asked.page.write_text(page(rows, size), encoding="utf-8")


if __name__ == "__main__":
    main()
