"""MaskablePPO upon two routers, on two fleets, from several seeds: curves of training, and a judging on fresh seeds.

    python -m experiments.ppo_routers results/ppo-routers docs/results/ppo-routers.md

Trains what the folder does not have yet, judges all that was trained beside every router that ships, and writes the
page and its picture. Hypotheses and words: ppo_routers.md. For routers that came later, on the same scenarios, into a
page that is there:

    python -m experiments.ppo_routers --router lost-gain --into docs/results/ppo-routers.md
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.one_choice import changes_table
from experiments.outcomes import cells_of
from experiments.ppo_arms import (
    AFFINITY,
    ARMS,
    CONFIG,
    COST,
    EVOLUTION,
    EVOLUTION_CONFIGS,
    HORIZON,
    LONG,
    LONG_SEEDS,
    MIXED,
    SESSIONS,
    Arm,
    Trained,
    trained,
)
from experiments.prose import sections
from experiments.session_fleet import (
    ATTAINMENT,
    FIGURES,
    PLACES,
    TDG,
    TUNED,
    Outcomes,
    by_router,
    routers,
    scenarios_of,
)
from servegym.baselines import registry
from servegym.baselines.artifact.files import load_artifact
from servegym.envs.cluster_routing import random_clusters
from servegym.evaluation.intervals import Interval, student_interval
from servegym.evaluation.markdown import table
from servegym.scenarios.presets import spelled_out
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.simulation import Simulation

SEEDS, FIRST_SEED = 5, 8_800_000  # of trainings; of the scenarios that all are judged on
SCENARIOS = {SESSIONS: 8, MIXED: 64}  # judged on
ELSEWHERE = 6  # scenarios of each place that no training saw
CHANGED = 16  # decisions an episode
WITHIN_S = (10, 30, 60, 100, 200, 400)  # the next turn of a session
CMA = "learned:session-fleet"
LATER, NEXT = "### Routers that came later\n", "## Elsewhere\n"  # headings of the page
STYLES = (".4f", ".3f", ".1f", ".1f", ".3f")
DOTS_PER_INCH = 150
COLOURS = {AFFINITY: "#d95f02", COST: "#1b5e9b"}


def judging_scenarios(place: str) -> list[Scenario]:
    source = random_clusters(4).with_overrides(spelled_out({"preset": place, "split": "test"}))
    return [source(np.random.default_rng(FIRST_SEED + seed)) for seed in range(SCENARIOS[place])]


def judged(place: str, found: Sequence[Trained]) -> Outcomes:
    """Of a place, every router that ships and every policy that was trained there ("NAME-SEED")."""
    policies = routers()
    for one in found:
        for path in one.policies:
            policies[path.parent.name] = load_artifact(path).policy("router")
    return by_router(policies, judging_scenarios(place))


def of_arm(outcomes: Outcomes, one: Trained) -> np.ndarray:
    """float64[seeds, scenarios, figures] of an arm's policies."""
    return np.array([outcomes[path.parent.name] for path in one.policies])


def less(outcomes: Outcomes, one: Trained, other: str, figure: int) -> Interval:
    """A figure of an arm's policies less another router's on the same scenarios, over trainings."""
    differences = of_arm(outcomes, one)[..., figure] - outcomes[other][:, figure]
    return student_interval(differences.mean(axis=1))


def best_heuristic(outcomes: Outcomes, figure: int) -> str:
    """The shipped router with the highest mean of a figure that no training and no tuning made."""
    names = [name for name in routers() if name != TUNED and not name.startswith("learned:")]
    return max(names, key=lambda name: outcomes[name][:, figure].mean())


def curves_table(found: Sequence[Trained]) -> str:
    """A row an arm: attainment and TDG less the base's at the first validation and at the end, over seeds."""
    rows = []
    for one in found:
        steps, attained = one.over_steps("attainment_difference")
        _, gained = one.over_steps("difference")
        unit = " episodes" if one.arm.change == EVOLUTION else ""
        cells = [interval.text("+.3f") for interval in (attained[1], attained[-1])]
        cells += [gained[-1].text("+.4f"), f"{np.mean(one.minutes):.1f}"]
        rows.append((in_words(one.arm), str(len(one.curves)), f"{steps[-1]:,}{unit}", *cells))
    names = ("attainment at the first validation", "at the end", "TDG at the end", "minutes of processors")
    return table(("upon", "trainings", "decisions", *names), rows)


def in_words(arm: Arm) -> str:
    return f"`{arm.base}`, {arm.place}" + (f"; {arm.change}" if arm.change else "")


def places_table(places: Mapping[str, Outcomes], found: Sequence[Trained]) -> str:
    """A row an arm: attainment and TDG on fresh seeds, less its base, less the best heuristic, less CMA-ES's."""
    rows = []
    for one in found:
        outcomes, cells = places[one.arm.place], []
        for figure, style in ((ATTAINMENT, ".3f"), (TDG, ".4f")):
            others = (one.arm.base, best_heuristic(outcomes, figure), CMA)
            cells.append(f"{of_arm(outcomes, one)[..., figure].mean():{style}}")
            cells += [less(outcomes, one, other, figure).text(f"+{style}") for other in others]
        rows.append((in_words(one.arm), *cells))
    parts = ("less its base", "less the best heuristic", "less CMA-ES's")
    return table(("upon", "attainment", *parts, "TDG", *parts), rows)


def elsewhere_table(one: Trained) -> str:
    """A row a place of session-fleet's page, where an arm was not trained: figures less those of other routers."""
    others = (one.arm.base, COST, CMA)
    policies = {name: policy for name, policy in routers().items() if name in others}
    policies |= {path.parent.name: load_artifact(path).policy("router") for path in one.policies}
    rows = []
    for place, changes in PLACES.items():
        outcomes, cells = by_router(policies, scenarios_of(changes, ELSEWHERE)), []
        for figure, style in ((ATTAINMENT, ".3f"), (TDG, ".4f")):
            cells.append(f"{of_arm(outcomes, one)[..., figure].mean():{style}}")
            cells += [less(outcomes, one, other, figure).text(f"+{style}") for other in others]
        rows.append((place, *cells))
    parts = ("less its base", f"less `{COST}`", "less CMA-ES's")
    return table(("where", "attainment", *parts, "TDG", *parts), rows)


def routers_table(outcomes: Outcomes, found: Sequence[Trained]) -> str:
    """A row a router, and one an arm, those that attain most first: means over scenarios (and trainings)."""
    means = {name if name == TUNED else f"`{name}`": outcomes[name].mean(axis=0) for name in routers()}
    means |= {f"upon {in_words(one.arm)}": of_arm(outcomes, one).mean(axis=(0, 1)) for one in found}
    rows = [
        (name, *(f"{value:{style}}" for value, style in zip(means[name], STYLES, strict=True)))
        for name in sorted(means, key=lambda name: -means[name][ATTAINMENT])
    ]
    return table(("router", *FIGURES), rows)


def later_section(names: Sequence[str]) -> str:
    """The section of routers that came after the trainings, on the same scenarios; those that attain most first.

    A page that is written with the trainings has all routers in its tables, and needs no such section.
    """
    policies, rows = {name: registry.router(name) for name in names}, []
    for place in SCENARIOS:
        outcomes = by_router(policies, judging_scenarios(place))
        for name in sorted(outcomes, key=lambda name: -outcomes[name][:, ATTAINMENT].mean()):
            rows.append((place, f"`{name}`", *cells_of(outcomes[name], STYLES)))
    words = sections(Path(__file__).with_suffix(".md"))["Later"]
    command = " ".join(["python -m experiments.ppo_routers", *(f"--router {name}" for name in names)])
    return f"{LATER}\n{words}\n\n    {command}\n\n{table(('where', 'router', *FIGURES), rows, words=2)}\n"


def with_later(page: str, section: str) -> str:
    """The page with the section of routers that came later, in place of an earlier one."""
    before, heading, after = page.partition(NEXT)
    return before.partition(LATER)[0] + section + heading + after


def next_turn_s(base: str) -> np.ndarray:
    """float64[...]: from a request's arrival to that of its session's next one, under a router on session-fleet."""
    overrides = {"preset": SESSIONS, "split": "train", "router": base}
    source, found = random_clusters(4).with_overrides(spelled_out(overrides)), []
    for seed in range(SCENARIOS[SESSIONS]):
        simulation = Simulation(source(np.random.default_rng(seed)))
        turns, arrival_s = simulation.scenario.workload.turns, simulation.run().columns["arrival_s"]
        assert turns is not None
        later = turns.after >= 0
        found.append(arrival_s[later] - arrival_s[turns.after[later]])
    return np.concatenate(found)


def turns_table() -> str:
    """A row a base: which share of the next turns comes within a time."""
    waits = {base: next_turn_s(base) for base in (AFFINITY, COST)}
    rows = [(f"`{base}`", *(f"{(wait <= limit).mean():.2f}" for limit in WITHIN_S)) for base, wait in waits.items()]
    return table(("router", *(f"within {limit} s" for limit in WITHIN_S)), rows)


def draw(found: Sequence[Trained], path: Path) -> None:
    """Attainment and TDG less the base's against decisions, mean and interval over seeds.

    A column is a place, and whether trainings had `TIMES` the decisions.
    """
    compared = [one for one in found if one.arm.change not in (EVOLUTION, HORIZON)]
    columns = list(dict.fromkeys((one.arm.place, one.arm.change == LONG) for one in compared))
    figure = Figure(figsize=(4.6 * len(columns), 5.6), layout="constrained")
    grid = figure.subplots(2, len(columns), squeeze=False, sharex="col")
    kinds = {"": "-", LONG: "-", "rewards of others": "--", "small residuals": ":"}
    for column, (place, is_long) in enumerate(columns):
        for axes, name, words in zip(
            grid[:, column], ("attainment_difference", "difference"), ("SLO attainment", "TDG ratio"), strict=True
        ):
            axes.axhline(0, color="0.6", linewidth=0.8)
            for one in (one for one in compared if (one.arm.place, one.arm.change == LONG) == (place, is_long)):
                steps, intervals = one.over_steps(name)
                thousands, colour = [step / 1000 for step in steps], COLOURS[one.arm.base]
                means, bounds = [each.mean for each in intervals], [each[1:] for each in intervals]
                low, high = np.array(
                    [(mean, mean) if math.isnan(ends[0]) else ends for mean, ends in zip(means, bounds, strict=True)]
                ).T
                axes.fill_between(thousands, low, high, color=colour, alpha=0.13, linewidth=0)
                label = f"upon {one.arm.base}" + (f"; {one.arm.change}" if one.arm.change not in ("", LONG) else "")
                axes.plot(
                    thousands, means, kinds[one.arm.change], color=colour, marker="o", markersize=3, linewidth=1.4,
                    label=label,
                )  # fmt: skip
            axes.set_ylabel(f"{words} less the base's")
            axes.grid(color="0.92", linewidth=0.6)
        grid[0, column].set_title(f"{place}; {LONG}" if is_long else place, fontsize=10)
        grid[0, column].legend(frameon=False, fontsize=8, loc="upper left")
        grid[1, column].set_xlabel("thousand decisions")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DOTS_PER_INCH)


def page(places: Mapping[str, Outcomes], found: Sequence[Trained], picture: Path) -> str:
    words, seeds = sections(Path(__file__).with_suffix(".md")), len(found[0].curves)
    parts = "".join(
        f"### {place}\n\n{SCENARIOS[place]} scenarios\n\n"
        + routers_table(outcomes, [one for one in found if one.arm.place == place]) + "\n"
        for place, outcomes in places.items()
    )  # fmt: skip
    return f"""# MaskablePPO upon two routers

<!-- written by python -m experiments.ppo_routers -->

    servegym train {CONFIG}
    servegym train {EVOLUTION_CONFIGS[MIXED]}
    python -m experiments.ppo_routers results/ppo-routers docs/results/ppo-routers.md

**Hypotheses.** {words["Hypotheses"]}

**Found.** {words["Found"]}

## How

{words["How"]} Here {seeds} trainings of each recipe, and {LONG_SEEDS} with ten times the decisions. {words["Once"]}

From the arrival of a request to that of its session's next one, share within a time:

{turns_table()}
## Curves

{words["Curves"]}

![Attainment and TDG of MaskablePPO less its base's, against decisions]({picture})

{curves_table(found)}
## On fresh seeds

{words["Judged"]}

{places_table(places, found)}
{parts}## Elsewhere

{words["Elsewhere"]} Here {ELSEWHERE} scenarios of each place.

{elsewhere_table(next(one for one in found if one.arm.change == LONG))}
## Why

{words["Why"]}

{changes_table(SESSIONS, (AFFINITY, COST), SCENARIOS[SESSIONS], CHANGED)}
{words["So"]}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the trainings", nargs="?")
    parser.add_argument("page", type=Path, nargs="?")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="trainings of each kind")
    parser.add_argument("--steps", type=int, help="decisions of each training, long ones ten times as many")
    parser.add_argument("--router", action="append", help="only the section of these routers; nothing is trained")
    parser.add_argument("--into", type=Path, help="with --router: write the section into this page, else print it")
    options = parser.parse_args()
    if options.router:
        section = later_section(options.router)
        if options.into is None:
            print(section)
        else:
            options.into.write_text(with_later(options.into.read_text("utf-8"), section), encoding="utf-8")
        return
    if options.page is None:
        parser.error("name a folder and a page, or routers with --router")
    found = list(trained(ARMS, options.folder, options.seeds, options.steps))
    places = {}
    for place in SCENARIOS:
        places[place] = judged(place, [one for one in found if one.arm.place == place])
    picture = Path("images") / f"{options.page.stem}.png"
    draw(found, options.page.parent.parent / picture)
    options.page.write_text(page(places, found, Path("..") / picture), encoding="utf-8")


if __name__ == "__main__":
    main()
