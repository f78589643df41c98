"""Every router that ships where requests name LoRA adapters: the panel lora_fleet, and other fleets.

    python -m experiments.lora_routers docs/results/lora-routers.md

Runs all (minutes on two cores) and writes the page. Hypotheses and words: lora_routers.md.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments import arguments
from experiments.claims.harness.checks import ABOVE_0, Range
from experiments.environments.rules import rules_of
from experiments.prose import sections, wrapped
from experiments.session_fleet import ATTAINMENT, TDG, Outcomes, all_routers, by_router
from servegym.baselines.registry import router
from servegym.evaluation.intervals import student_interval
from servegym.evaluation.panels.panel import load_panel
from servegym.scenarios.presets import FLEET
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.policy import Policy

PANEL = load_panel("lora_fleet")
OURS, WITHOUT, OWN_ONLY = "predicted-cost", "predicted-cost:adapter=0,stall=0", "predicted-cost:stall=0"
ONE, THREE = "lora-affinity", "lora-affinity:affinity_weight=3"
BASE = "min-load"
LIGHT, HEAVY = (f"the panel, load {load:g}" for load in PANEL.loads)
UNEQUAL, LATE, FEW, PLAIN = "an H100, two A100s and an A6000", "routers hear 1 s late", "4 adapters", "no adapters"
# What differs from the panel's spec.
PLACES: dict[str, dict[str, Any]] = {
    LIGHT: {"load": PANEL.loads[0]},
    HEAVY: {"load": PANEL.loads[1]},
    UNEQUAL: {"load": None, "rate_per_s": 8.0, "pools": FLEET},
    LATE: {"load": PANEL.loads[1], "signal_delay_s": 1.0},
    FEW: {"load": PANEL.loads[1], "adapters": 4},
    PLAIN: {"load": PANEL.loads[1], "adapters": None},
}
NO_LOSS, SAME = Range(low=-0.005), Range(low=-1e-12, high=1e-12)


def routers() -> dict[str, Policy]:
    """Every router that ships, and three with other settings."""
    return rules_of("router") | {name: router(name) for name in (WITHOUT, OWN_ONLY, THREE)}


def scenarios_of(place: str, first_seed: int, seeds: int) -> list[Scenario]:
    spec = PANEL.spec.replaced(**PLACES[place])
    return [spec.build(first_seed + seed) for seed in range(seeds)]


def seeds_at(place: str) -> int:
    """The first seed: at a load of the panel the panel's, elsewhere others."""
    return PANEL.first_seed + PANEL.seeds * list(PLACES).index(place)


def answers(places: Mapping[str, Outcomes]) -> str:
    """What became of each hypothesis: TDG ratio, and attainment beside it."""
    lines = []
    for place, outcomes in places.items():
        asked: list[tuple[int, str, Range]] = [(1, WITHOUT, ABOVE_0), (1, BASE, ABOVE_0)]
        if place in (LIGHT, HEAVY, UNEQUAL, LATE):
            expected = NO_LOSS if place == LIGHT else ABOVE_0
            asked += [(2, ONE, ABOVE_0), (3, THREE, expected), (4, OWN_ONLY, expected)]
        elif place in (FEW, PLAIN):
            asked = [(5, WITHOUT, NO_LOSS if place == FEW else SAME)]
        for number, other, expected in asked:
            less = outcomes[OURS] - outcomes[other]
            tdg, attainment = student_interval(less[:, TDG]), student_interval(less[:, ATTAINMENT])
            lines.append(
                f"- {number}. {place}, beside `{other}`: TDG {tdg.text('+.3f')}: {expected.verdict(tdg)} (attainment "
                f"{attainment.text('+.3f')})."
            )
    return "\n".join(sorted(lines, key=lambda line: line[:3]))


def page(places: Mapping[str, Outcomes], seeds: int) -> str:
    words = sections(Path(__file__).with_suffix(".md"))
    tables = "\n".join(f"### {place}\n\n{all_routers(outcomes)}" for place, outcomes in places.items())
    return wrapped(f"""# Routers where requests name LoRA adapters

<!-- written by python -m experiments.lora_routers -->

    servegym evaluate --panel lora_fleet --baseline {BASE} \\
      --router {BASE} --router {ONE} --router {OURS}

{words["Question"]}

{words["Hypotheses"]}

{words["How"]} Here {seeds} seeds.

## What holds

{answers(places)}

{words["Reading"]}

## Results

{tables}""")


def main() -> None:
    options = arguments.parse(__doc__, seeds=PANEL.seeds)
    policies, places = routers(), {}
    for place in PLACES:
        places[place] = by_router(policies, scenarios_of(place, seeds_at(place), options.seeds))
        print(f"{place}\n{all_routers(places[place])}", flush=True)
    print(answers(places))
    options.page.write_text(page(places, options.seeds), encoding="utf-8")


if __name__ == "__main__":
    main()
