"""Sessions of agents on one engine that caches prefixes: do they end sooner if those computed least for go first?

    python -m experiments.program_aware docs/results/program-aware.md

Hypotheses: program_aware.md.
"""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments import arguments
from experiments.claims.harness.checks import ABOVE_0, Range
from experiments.claims.harness.rows import values
from experiments.outcomes import runs_of
from servegym.evaluation.intervals import Interval, student_interval
from servegym.evaluation.markdown import header, row
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.runs.simulation import Simulation

WORDS = Path(__file__).with_suffix(".md")
READING = Path(__file__).with_name("program_aware_reading.md")  # written after the run
DEVICE = "h100-llama3-8b"
AGENTS = (48, 72, 96, 128)
MANY = (96, 128)
CANDIDATES = tuple(
    f"plas:quantum_tokens={tokens},promote_after_s={wait_s}" for tokens in (1024, 4096) for wait_s in (60, 300, 1500)
)
TRAINING_SEEDS, FIRST_SEED = (20_180, 20_181), 1_080_000
FCFS, GAIN = "sarathi-fcfs", "expected-gain"
OTHERS = ("vllm-v1", FCFS, "sjf", "slide-batching", GAIN)
FASTER, SLOWER = Range(high=1), Range(low=1)
IN_TIME = "session_slo_attainment"
STYLES = {
    IN_TIME: ("sessions in time", ".3f"), "p50": ("session p50, s", ".1f"),
    "p99": ("session p99, s", ".0f"), "tdg_ratio": ("TDG ratio", ".3f"), "slo_attainment": ("SLO attainment", ".3f"),
    "ttft_p99_s": ("TTFT p99, s", ".1f"), "starved": ("starved", ".3f"), "cached_share": ("hit rate", ".2f"),
}  # fmt: skip


def figures_of(scheduler: str, agents: int, seed: int, requests: int) -> dict[str, Any]:
    spec = ServingSpec().with_overrides({
        "device": DEVICE, "trace": "agent-sessions", "max_prompt_tokens": 32_768, "clients": agents,
        "requests": requests, "prefix_caching": "on", "scheduler": scheduler, "seed": seed,
    })  # fmt: skip
    result = Simulation(spec.build()).run()
    summary = result.summary
    return {
        **{name: summary[name] for name in STYLES if name in summary}, **summary["session_s"],
        "ttft_p99_s": summary["ttft_s"]["p99"],
    }  # fmt: skip


def runs(schedulers: Iterable[str], agents: Iterable[int], seeds: Iterable[int], requests: int) -> pd.DataFrame:
    """A row a run: scheduler, agents, seed, and its figures."""
    return runs_of(partial(figures_of, requests=requests), scheduler=schedulers, agents=agents, seed=seeds)


def chosen(training: pd.DataFrame) -> str:
    """The candidate that has most sessions in time."""
    return str(training.groupby("scheduler")[IN_TIME].mean().idxmax())


def by_seed(rows: pd.DataFrame, scheduler: str, agents: int, figure: str) -> np.ndarray:
    """float64[seeds]."""
    return values(rows, figure, scheduler=scheduler, agents=agents)


def ratio(rows: pd.DataFrame, ours: str, agents: int, figure: str) -> Interval:
    """Ours over `sarathi-fcfs`, paired by seed."""
    return student_interval(by_seed(rows, ours, agents, figure) / by_seed(rows, FCFS, agents, figure))


def lead(rows: pd.DataFrame, ours: str, other: str, agents: int) -> Interval:
    """By how much more sessions end in time, paired by seed."""
    one, base = (by_seed(rows, name, agents, IN_TIME) for name in (ours, other))
    return student_interval(one - base)


def answers(rows: pd.DataFrame, ours: str) -> list[str]:
    lines = []
    for agents in MANY:
        sooner, later = ratio(rows, ours, agents, "p50"), ratio(rows, ours, agents, "p99")
        more, less = lead(rows, ours, FCFS, agents), lead(rows, GAIN, ours, agents)
        lines += [
            f"1. Median time of a session, {agents} agents, plas over {FCFS}: {sooner.text('.3f')}: "
            f"{FASTER.verdict(sooner)}.",
            f"2. Sessions in time, {agents} agents, plas less {FCFS}: {more.text('+.3f')}: {ABOVE_0.verdict(more)}.",
            f"3. p99 of the time of a session, {agents} agents, plas over {FCFS}: {later.text('.3f')}: "
            f"{SLOWER.verdict(later)}.",
            f"4. Sessions in time, {agents} agents, {GAIN} less plas: {less.text('+.3f')}: {ABOVE_0.verdict(less)}.",
        ]
    return [f"- {line}" for line in sorted(lines, key=lambda line: line[0])]


def tables(rows: pd.DataFrame, schedulers: Iterable[str]) -> list[str]:
    lines: list[str] = []
    for agents in AGENTS:
        lines += [f"\n## {agents} agents\n", *header("scheduler", *(title for title, _ in STYLES.values()))]
        for name in schedulers:
            cells = [student_interval(by_seed(rows, name, agents, figure)).text(style)
                     for figure, (_, style) in STYLES.items()]  # fmt: skip
            lines.append(row(f"`{name}`", *cells))
    return lines


def page(training: pd.DataFrame, rows: pd.DataFrame, ours: str, seeds: int, requests: int) -> str:
    tried = training.groupby("scheduler")[IN_TIME].mean().sort_values(ascending=False)
    lines = [
        "# Program-aware scheduling\n",
        WORDS.read_text(encoding="utf-8"),
        "Measured by `python -m experiments.program_aware docs/results/program-aware.md`: agent-sessions with prompts "
        f"of at most 32,768 tokens, {requests:,} requests a run, one engine of {DEVICE} with prefix caching, {seeds} "
        f"seeds from {FIRST_SEED:,}. Means and 95 % intervals over seeds, ratios and differences paired by seed.\n",
        "## What holds\n",
        f"`plas` is `{ours}`.\n",
        *answers(rows, ours),
        "\n## Chosen on training seeds\n",
        *header("candidate", f"sessions in time, {MANY[0]} agents"),
        *(row(f"`{name}`", f"{share:.3f}") for name, share in tried.items()),
        *tables(rows, (*OTHERS, ours)),
        "",
        READING.read_text(encoding="utf-8").rstrip(),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    asked = arguments.parse(__doc__, seeds=5, requests=3000)
    training = runs(CANDIDATES, MANY[:1], TRAINING_SEEDS, asked.requests)
    ours = chosen(training)
    rows = runs((*OTHERS, ours), AGENTS, range(FIRST_SEED, FIRST_SEED + asked.seeds), asked.requests)
    asked.page.write_text(page(training, rows, ours, asked.seeds, asked.requests), encoding="utf-8")


if __name__ == "__main__":
    main()
