"""Evolution of the task batch_scheduler by a script: a step mutates the best program so far, and keeps what is better.

    python -m experiments.evolution.scripted results/evolution --steps 50 --hidden-seed 846193 \\
        --page docs/results/evolution.md

It is judged on a hidden panel that no step has seen: other seeds, and a trace that the search has not. The first seed
is named when it runs.
"""

import argparse
import csv
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import servegym
from experiments.evolution.mutator import mutated
from servegym.evaluation.markdown import narrow_header, row
from servegym.evaluation.scoring.evolution import evaluated, settings_of
from servegym.evaluation.scoring.results import Score

TASK = Path(__file__).parent / "batch_scheduler"
HEADING = Path(__file__).with_name("scripted.md")
HIDDEN = """\
description: As the panel score with other seeds, and a trace that it does not have.
trace: [azure-conv, sharegpt, mooncake-conversation, azure-code]
device: [a100-llama3-8b, ascend910b-qwen3-8b]
load: [0.5, high, overload]
slo: proserve
requests: 400
first_seed: {first_seed}
seeds: 3
"""
STEPS, PROGRAM, BEST, PANEL = "steps.csv", "program.py", "best.py", "hidden.yaml"


class Step(NamedTuple):
    """A program that was asked about. best: of all so far. load: the machine's load average of a minute, at its end."""

    step: int
    combined_score: float
    best: float
    seconds: float
    cpu_s: float
    load: float
    refused: str


def evolve(folder: Path, steps: int, seed: int) -> list[Step]:
    """Step 0 is the start; the best program is in `BEST` afterwards."""
    settings, random = settings_of(TASK), np.random.default_rng(seed)
    program = best = (TASK / "initial_program.py").read_text(encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    done: list[Step] = []
    for step in range(steps + 1):
        if step:
            program = mutated(best, random)
        (folder / PROGRAM).write_text(program, encoding="utf-8")
        began = time.perf_counter()
        answer = evaluated(folder / PROGRAM, settings)
        seconds, value = time.perf_counter() - began, answer["combined_score"]
        before = done[-1].best if done else -1.0
        if value > before:
            best = program
            (folder / BEST).write_text(best, encoding="utf-8")
        cpu_s = answer.get("check_cpu_s", 0.0) + answer.get("run_cpu_s", 0.0)
        refused = answer["artifacts"]["feedback"] if answer["refused"] else ""
        done.append(Step(step, value, max(before, value), seconds, cpu_s, os.getloadavg()[0], refused))
        print(f"step {step}: {value:.4f}, best {done[-1].best:.4f}, {seconds:.1f} s {refused}", flush=True)
    with (folder / STEPS).open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(Step._fields)
        table.writerows(done)
    return done


def judged(folder: Path, hidden_seed: int) -> dict[str, Score]:
    """The start and the best program on the hidden panel, with a shipped scheduler beside them."""
    panel = folder / PANEL
    panel.write_text(HIDDEN.format(first_seed=hidden_seed), encoding="utf-8")
    asked: dict[str, Any] = {
        "start": TASK / "initial_program.py",
        "best": folder / BEST,
        "sarathi-fcfs": "sarathi-fcfs",
    }
    return {who: servegym.score(policy, panel, least=0.0, limit_s=120.0) for who, policy in asked.items()}


def page(done: list[Step], scores: dict[str, Score], folder: Path, seed: int, hidden_seed: int) -> str:
    """What came of it, in Markdown."""
    later = done[1:]
    seconds, cpu_s = ([getattr(step, name) for step in later] for name in ("seconds", "cpu_s"))
    kept = sum(now.best > before.best for before, now in zip(done, later, strict=False))
    median_s, median_cpu_s = statistics.median(seconds), statistics.median(cpu_s)
    ends, starts = scores["best"].combined_score, scores["start"].combined_score
    verdict = "It ends above its start" if ends > starts else "It does not end above its start"
    lines = [
        HEADING.read_text(encoding="utf-8"),
        f"**{verdict}** on the hidden panel: {starts:.4f} before, {ends:.4f} after {len(later)} steps (TDG over that\n"
        f"of {scores['best'].relative_to}; first seed {hidden_seed}, named when it was started).\n",
        *narrow_header("program", "public panel", "hidden panel", "SLO attainment, hidden", "starved, hidden"),
    ]
    for who, public in (("start", done[0].combined_score), ("best", done[-1].best), ("sarathi-fcfs", None)):
        score, seen = scores[who], "-" if public is None else f"{public:.4f}"
        met, starved = (f"{score.metrics[name]:.3f}" for name in ("slo_attainment", "starved"))
        hidden = f"{score.combined_score:.4f} [{score.low:.4f}, {score.high:.4f}]"
        lines.append(row(who, seen, hidden, met, starved))
    lines += [
        "\nThe public panel's numbers are shares of the best found; on the hidden one there is no such search. "
        "Intervals: 95 %, over three seeds of each cell.\n",
        f"{len(later)} steps with the mutator's seed {seed}: {kept} were better than all before, "
        f"{sum(bool(step.refused) for step in later)} were refused. A candidate took {median_cpu_s:.2f} s of processor "
        f"time in the median for its check and its runs. By the clock that was {median_s:.2f} s (at most "
        f"{max(seconds):.2f} s), and the start, with all that is made ready once, {done[0].seconds:.0f} s, on "
        f"{os.cpu_count()} cores ({platform.machine()}) that others used too: a load average of "
        f"{statistics.median(step.load for step in later):.1f}.\n",
        *narrow_header("step", "score", "seconds"),
        *(row(now.step, f"{now.best:.4f}", f"{now.seconds:.2f}")
          for before, now in zip([None, *done], done, strict=False) if before is None or now.best > before.best),
        "\nThe program it ends with:\n", "```python", (folder / BEST).read_text(encoding="utf-8").strip(), "```",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where programs and steps are kept")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the mutator")
    parser.add_argument("--hidden-seed", type=int, required=True, help="first seed of the hidden panel")
    parser.add_argument("--page", type=Path, help="where to write what came of it")
    given = parser.parse_args()
    done = evolve(given.folder, given.steps, given.seed)
    scores = judged(given.folder, given.hidden_seed)
    for who, found in scores.items():
        print(f"hidden panel: {who} {found.combined_score:.4f} [{found.low:.4f}, {found.high:.4f}]")
    if given.page:
        given.page.write_text(page(done, scores, given.folder, given.seed, given.hidden_seed), encoding="utf-8")


if __name__ == "__main__":
    main()
