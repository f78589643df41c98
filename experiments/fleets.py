"""A learned router for fleets at overload, requests without sessions: trained on many fleets, judged on others.

    python -m experiments.fleets results/fleets docs/results/learned-fleets.md

Trains the seeds that the folder does not have yet, takes the policy that is best in validation, judges it beside every
router that ships, on fresh requests, and writes the page. Hypotheses and words: fleets.md.
"""

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.prose import sections
from experiments.session_fleet import (
    A100,
    A6000,
    ATTAINMENT,
    H100,
    TDG,
    Outcomes,
    all_routers,
    by_router,
    closest,
    routers,
    scenarios_of,
    verdict,
)
from experiments.session_fleet import OURS as SPECIALIST
from experiments.session_fleet import PLACES as SESSION_PLACES
from servegym.baselines.artifact.files import load_artifact
from servegym.evaluation.intervals import student_interval
from servegym.evaluation.markdown import table
from servegym.scenarios.ranges import Range
from servegym.scenarios.values import Pool
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.policies.policy import Policy
from servegym.tuners import evolution
from servegym.tuners.config import load_config

CONFIG, OURS = "cma-fleets", "learned:fleets"  # OURS: of the training that was best in validation
TRAINING_SEEDS = (0, 100_000, 200_000)  # the scenarios of a training have the seeds from its own on
FIRST_SEED = 9_700_000
SESSIONS, MIXED = "session-fleet", "mixed-fleet"
SCENARIOS = {SESSIONS: 12, MIXED: 64}
P99_TTFT, STARVED = 2, 4  # of `FIGURES`
MIXED_PLACES: dict[str, dict[str, Any]] = {
    "as in the preset, load 1.2 to 1.8": {},
    "load 0.7 to 1.2": {"load": Range(0.7, 1.2)},
    "two H100, four A6000": {"pools": (Pool(H100, 2), Pool(A6000, 4)), "requests": 600},
    "eight engines": {"pools": (Pool(H100, 2), Pool(A100, 4), Pool(A6000, 2)), "requests": 800},
    "sixteen engines": {"pools": (Pool(H100, 4), Pool(A100, 8), Pool(A6000, 4)), "requests": 1600},
    "an A100 fails for 10 s": {"incidents": (Incident(5.0, 2, "fail"), Incident(15.0, 2, "return"))},
    "engines with expected-gain": {"scheduler": "expected-gain:steps=ignore"},
    "routers hear 1 s late": {"signal_delay_s": 1.0},
    "four equal A100": {"pools": (Pool(A100, 4),)},
}
PLACES = {MIXED: MIXED_PLACES, SESSIONS: SESSION_PLACES}  # the first of each is the panel


def trainings(folder: Path) -> list[dict[str, Any]]:
    """Train what is not there yet, and read the summary of each seed, with its policy's path."""
    found = []
    for seed in TRAINING_SEEDS:
        run = folder / str(seed)
        if not (run / "summary.json").is_file():
            evolution.train(dataclasses.replace(load_config(CONFIG), seed=seed), run)
        rows = [json.loads(line) for line in (run / "curve.jsonl").read_text().splitlines()]
        best = max(rows, key=lambda row: row["score"])
        minutes = json.loads((run / "summary.json").read_text())["cpu_minutes"]
        said = {"name": f"learned:{CONFIG}-{seed}", "seed": seed, "path": run / "policy.json", "cpu_minutes": minutes}
        found.append(best | said)
    return found


def trainings_table(found: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            str(one["seed"]), f"{one['steps']:,}", f"{one['cpu_minutes']:.1f}",
            f"{one['difference']:+.4f} ± {one['half_width']:.4f}", f"{one['attainment_difference']:+.4f}",
            f"{one['wait_difference_s']:+.2f}",
        )
        for one in found
    ]  # fmt: skip
    names = ("TDG less the base's", "attainment", "p99 TTFT, s")
    return table(("seed", "best after scenarios", "minutes of processors", *names), rows)


def panels_table(panels: Mapping[str, Outcomes], names: Sequence[str]) -> str:
    """A row a panel: figures of all trainings less the best heuristic's, with intervals over trainings."""
    rows = []
    for place, outcomes in panels.items():
        cells = [place]
        for figure, style in ((ATTAINMENT, "+.3f"), (TDG, "+.4f"), (P99_TTFT, "+.1f")):
            best = closest(outcomes, figure if figure != P99_TTFT else ATTAINMENT)
            less = [(outcomes[name] - outcomes[best])[:, figure].mean() for name in names]
            cells.append(student_interval(less).text(style))
        rows.append(tuple(cells))
    return table(("panel", "attainment", "TDG", "p99 TTFT, s"), rows)


def places_table(places: Mapping[str, Outcomes]) -> str:
    """A row a place: ours, less the best heuristic of each figure there, less the specialist, and the verdict."""
    rows = []
    for place, outcomes in places.items():
        ours, cells = outcomes[OURS], [place]
        for figure, style in ((ATTAINMENT, ".3f"), (TDG, ".4f")):
            best = closest(outcomes, figure)
            cells += [f"{ours[:, figure].mean():{style}}", f"`{best}` {outcomes[best][:, figure].mean():{style}}"]
            cells.append(student_interval((ours - outcomes[best])[:, figure]).text(f"+{style}"))
        cells.append(student_interval((ours - outcomes[SPECIALIST])[:, ATTAINMENT]).text("+.3f"))
        waits = (outcomes[name][:, P99_TTFT].mean() for name in (OURS, closest(outcomes, ATTAINMENT)))
        cells += [" / ".join(f"{wait:.1f}" for wait in waits), f"{ours[:, STARVED].mean():.3f}"]
        rows.append((*cells, verdict(outcomes, OURS)))
    names = ("attainment", "best heuristic", "less it", "TDG", "best heuristic", "less it")
    last = (f"attainment less `{SPECIALIST}`", "p99 TTFT, s: ours / theirs", "starved", "verdict")
    return table(("where", *names, *last), rows)


def judged(found: Sequence[Mapping[str, Any]], scenarios: Mapping[str, int]) -> dict[str, dict[str, Outcomes]]:
    """By preset and place. On the panels themselves the policies of all trainings, elsewhere the chosen one."""
    policies = {one["name"]: load_artifact(one["path"]).policy("router") for one in found}
    best = policies[max(found, key=lambda one: one["score"])["name"]]
    shipped: dict[str, Policy] = routers() | {OURS: best}
    results: dict[str, dict[str, Outcomes]] = {}
    for preset, places in PLACES.items():
        results[preset] = {}
        for place, changes in places.items():
            drawn = scenarios_of(changes, scenarios[preset], preset, FIRST_SEED)
            outcomes = by_router(shipped | (policies if place == next(iter(places)) else {}), drawn)
            results[preset][place] = outcomes
            print(f"{preset}, {place}: {verdict(outcomes, OURS)}", flush=True)
    return results


def panel_part(preset: str, places: Mapping[str, Outcomes], hidden: Sequence[str]) -> str:
    """The part of the page about one preset. hidden: of the trainings, which have a table of their own."""
    outcomes = {name: one for name, one in next(iter(places.values())).items() if name not in hidden}
    return f"""### {preset}

{len(outcomes[OURS])} scenarios

{all_routers(outcomes)}
{places_table(places)}"""


def page(found: Sequence[Mapping[str, Any]], results: Mapping[str, Mapping[str, Outcomes]]) -> str:
    chosen = max(found, key=lambda one: one["score"])["seed"]
    words, names = sections(Path(__file__).with_suffix(".md")), [one["name"] for one in found]
    panels = {preset: next(iter(places.values())) for preset, places in results.items()}
    verdicts = {place: verdict(one, OURS) for place, one in results[MIXED].items()}
    failed = "; ".join(f"{place} ({one})" for place, one in verdicts.items() if one != "holds")
    held = f"{sum(one == 'holds' for one in verdicts.values())} of {len(verdicts)} places without sessions"
    held += f"; not at: {failed}" if failed else ""
    parts = "\n".join(panel_part(preset, places, names) for preset, places in results.items())
    return f"""# A learned router for fleets at overload

<!-- written by python -m experiments.fleets -->

    servegym train {CONFIG} --seed {chosen}
    python -m experiments.fleets results/fleets docs/results/learned-fleets.md

**Hypotheses.** {words["Hypotheses"]}

**Found.** (1) and (2) hold together at {held}. {words["Found"]}

## How

{words["How"]}

{trainings_table(found)}
{words["Panels"]}

{panels_table(panels, names)}
{words["Why"]}

## Every router that ships, and other places

{words["Places"]}

{parts}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("page", type=Path)
    options = parser.parse_args()
    found = trainings(options.folder)
    options.page.write_text(page(found, judged(found, SCENARIOS)), encoding="utf-8")


if __name__ == "__main__":
    main()
