"""The gain of sessions that end in time (`session-slo`), earned by schedulers that know sessions and those that do not.

    python -m experiments.session_goodput docs/results/session-goodput.md

Hypotheses: session_goodput.md.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments import arguments
from experiments.claims.harness.checks import ABOVE_0
from experiments.claims.harness.rows import values
from experiments.outcomes import runs_of
from servegym.evaluation.intervals import Interval, student_interval
from servegym.evaluation.markdown import header, row
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.runs.simulation import Simulation

if TYPE_CHECKING:
    import pandas as pd

WORDS = Path(__file__).with_suffix(".md")
READING = Path(__file__).with_name("session_goodput_reading.md")  # written after the run
DEVICE = "h100-llama3-8b"
RATES_PER_S = (4, 6, 8)  # requests, turns included
FIRST_SEED = 1_095_000
OURS, FCFS, SHORT, GAIN = "plas", "sarathi-fcfs", "sjf", "expected-gain"
SCHEDULERS = ("vllm-v1", FCFS, SHORT, "slide-batching", GAIN, OURS)
GOODPUT, IN_TIME = "gain_ratio", "slo_attainment"
STYLES = {
    GOODPUT: "task goodput", "session_slo_attainment": "sessions in time", IN_TIME: "requests in time",
    "on_time_token_share": "tokens in time", "starved": "starved",
}  # fmt: skip


def figures_of(scheduler: str, rate: float, seed: int, requests: int) -> dict[str, float]:
    spec = ServingSpec().with_overrides({
        "device": DEVICE, "trace": "agent-sessions", "max_prompt_tokens": 32_768, "rate_per_s": rate,
        "requests": requests, "prefix_caching": "on", "scheduler": scheduler, "gain": "session-slo", "seed": seed,
    })  # fmt: skip
    result = Simulation(spec.build()).run()
    return {name: result.figure(name) for name in STYLES}


def by_seed(rows: pd.DataFrame, scheduler: str, rate_per_s: float, figure: str) -> np.ndarray:
    """float64[seeds]."""
    return values(rows, figure, scheduler=scheduler, rate=rate_per_s)


def lead(rows: pd.DataFrame, one: str, other: str, figure: str) -> np.ndarray:
    """float64[seeds]: of a scheduler over another at the highest rate."""
    return by_seed(rows, one, RATES_PER_S[-1], figure) - by_seed(rows, other, RATES_PER_S[-1], figure)


def answers(rows: pd.DataFrame) -> list[str]:
    found: list[tuple[str, Interval]] = [
        (f"1. Task goodput, {OURS} less {FCFS}", student_interval(lead(rows, OURS, FCFS, GOODPUT))),
        (f"2. Task goodput, {GAIN} less {OURS}", student_interval(lead(rows, GAIN, OURS, GOODPUT))),
        (
            f"3. {OURS} less {SHORT} in task goodput, less the same in requests in time",
            student_interval(lead(rows, OURS, SHORT, GOODPUT) - lead(rows, OURS, SHORT, IN_TIME)),
        ),
    ]
    return [f"- {what}: {interval.text('+.3f')}: {ABOVE_0.verdict(interval)}." for what, interval in found]


def tables(rows: pd.DataFrame) -> list[str]:
    lines: list[str] = []
    for rate_per_s in RATES_PER_S:
        lines += [f"\n## {rate_per_s} requests/s\n", *header("scheduler", *STYLES.values())]
        for name in SCHEDULERS:
            cells = (student_interval(by_seed(rows, name, rate_per_s, figure)).text(".3f") for figure in STYLES)
            lines.append(row(f"`{name}`", *cells))
    return lines


def page(rows: pd.DataFrame, seeds: int, requests: int) -> str:
    lines = [
        "# Task goodput\n",
        WORDS.read_text(encoding="utf-8"),
        "Measured by `python -m experiments.session_goodput docs/results/session-goodput.md`: agent-sessions with "
        f"prompts of at most 32,768 tokens, {requests:,} requests a run, one engine of {DEVICE} with prefix caching, "
        f"{seeds} seeds from {FIRST_SEED:,}. Means and 95 % intervals over seeds, differences paired by seed. Task "
        "goodput weighs a session by the priority of its first request; sessions in time counts all alike.\n",
        f"## What holds, at {RATES_PER_S[-1]} requests/s\n",
        *answers(rows),
        *tables(rows),
        "",
        READING.read_text(encoding="utf-8").rstrip(),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    asked = arguments.parse(__doc__, seeds=20, requests=1500)
    seeds = range(FIRST_SEED, FIRST_SEED + asked.seeds)
    rows = runs_of(partial(figures_of, requests=asked.requests), scheduler=SCHEDULERS, rate=RATES_PER_S, seed=seeds)
    asked.page.write_text(page(rows, asked.seeds, asked.requests), encoding="utf-8")


if __name__ == "__main__":
    main()
