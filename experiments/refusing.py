"""Refusing requests at overload: routers that do beside those that do not, on the fleet with agents' sessions.

    python -m experiments.refusing docs/results/refusing.md

Runs all (minutes on two cores) and writes the page. Hypotheses and words: refusing.md.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments import arguments
from experiments.claims.harness.checks import ABOVE_0, Range
from experiments.outcomes import cells_of, outcomes_of
from experiments.prose import sections
from servegym.baselines import registry
from servegym.envs.cluster_routing import random_clusters
from servegym.evaluation.intervals import student_interval
from servegym.evaluation.markdown import table
from servegym.scenarios.presets import spelled_out
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.policy import Policy
from servegym.simulator.runs.simulation import Simulation

COST, AFFINITY = "predicted-cost", "prefix-affinity"
WEIGHTS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
TRAINING_SEEDS, FIRST_SEED = 3, 8_800_000
FIGURES = {
    "TDG ratio": ".3f", "SLO attainment": ".3f", "sessions in time": ".3f", "p99 TTFT, s": ".1f", "starved": ".3f",
    "refused": ".3f",
}  # fmt: skip
TDG, ATTAINMENT, STARVED, REFUSED = 0, 1, 4, 5
SERVED, OVERLOAD = "12 requests/s", "24 requests/s"
# What differs from the preset session-fleet. The later places have twice the requests, which come before sessions end.
PLACES: dict[str, dict[str, Any]] = {
    SERVED: {},
    OVERLOAD: {"rate_per_s": 24.0, "requests": 3000},
    "48 requests/s": {"rate_per_s": 48.0, "requests": 3000},
    "24 requests/s, engines with expected-gain": {
        "rate_per_s": 24.0, "requests": 3000, "scheduler": "expected-gain:steps=ignore",
    },
    "24 requests/s, routers hear 1 s late": {"rate_per_s": 24.0, "requests": 3000, "signal_delay_s": 1.0},
}  # fmt: skip
NO_LOSS = Range(low=-0.005)
Outcomes = Mapping[str, np.ndarray]  # float64[seeds, figures] of each router


def with_refusal(name: str, refuse: float) -> Policy:
    return registry.router(name).with_settings(**({"refuse": refuse} if refuse else {}))


def figures_of(policy: Policy, scenario: Scenario) -> tuple[float, ...]:
    """`FIGURES` under a router; shares are of all requests, those that followed a refused one too."""
    result = Simulation(dataclasses.replace(scenario, router=policy)).run()
    summary = result.summary
    assert summary["requests"] == len(result.scenario.workload)
    return (
        summary["tdg_ratio"], summary["slo_attainment"], summary["session_slo_attainment"], summary["ttft_s"]["p99"],
        summary["starved"], summary.get("refused", 0) / summary["requests"],
    )  # fmt: skip


def by_label(policies: list[Policy], scenarios: list[Scenario]) -> Outcomes:
    found = outcomes_of(figures_of, [(policy,) for policy in policies], scenarios)
    return {policy.label: one for policy, one in zip(policies, found, strict=True)}


def scenarios_of(place: str, seeds: int, split: str = "test") -> list[Scenario]:
    source = random_clusters(4).with_overrides(
        spelled_out({"preset": "session-fleet", "split": split, **PLACES[place]})
    )
    return [source(np.random.default_rng(FIRST_SEED + seed)) for seed in range(seeds)]


def chosen() -> tuple[float, dict[str, Outcomes]]:
    """The weight with the highest TDG ratio + attainment over `SERVED` and `OVERLOAD` on training sessions, and what
    all of them came to."""
    policies = [with_refusal(COST, weight) for weight in WEIGHTS]
    tried = {place: by_label(policies, scenarios_of(place, TRAINING_SEEDS, "train")) for place in (SERVED, OVERLOAD)}
    worth = [sum(one[policy.label][:, : ATTAINMENT + 1].mean() for one in tried.values()) for policy in policies]
    return WEIGHTS[int(np.argmax(worth))], tried


def routers(weight: float) -> list[Policy]:
    return [
        with_refusal(name, refuse) for name, refuse in ((COST, 0.0), (COST, weight), (AFFINITY, 0.0), (AFFINITY, 1.0))
    ]


def answers(places: Mapping[str, Outcomes], weight: float) -> str:
    """What became of each hypothesis."""
    plain, ours, _, mooncake = (policy.label for policy in routers(weight))
    lines = []
    for place, outcomes in places.items():
        less = outcomes[ours] - outcomes[plain]
        attainment, tdg = student_interval(less[:, ATTAINMENT]), student_interval(less[:, TDG])
        if place == SERVED:
            lines.append(f"2. {place}: attainment {attainment.text('+.3f')}: {NO_LOSS.verdict(attainment)}; TDG "
                         f"{tdg.text('+.3f')}: {NO_LOSS.verdict(tdg)}.")  # fmt: skip
            continue
        beside = outcomes[ours] - outcomes[mooncake]
        lines += [
            f"1. {place}: attainment {attainment.text('+.3f')}: {Range(low=0.2).verdict(attainment)}; TDG "
            f"{tdg.text('+.3f')}: {ABOVE_0.verdict(tdg)}.",
            f"3. {place}, beside `{mooncake}`: attainment "
            + ", TDG ".join(f"{one.text('+.3f')}: {ABOVE_0.verdict(one)}" for one in (
                student_interval(beside[:, ATTAINMENT]), student_interval(beside[:, TDG]))) + ".",
        ]  # fmt: skip
    return "\n".join(f"- {line}" for line in sorted(lines, key=lambda line: line[0]))


def rows_of(outcomes: Outcomes) -> str:
    rows = [(f"`{name}`", *cells_of(found, FIGURES.values())) for name, found in outcomes.items()]
    return table(("router", *FIGURES), rows)


def page(weight: float, tried: Mapping[str, Outcomes], places: Mapping[str, Outcomes], seeds: int) -> str:
    words = sections(Path(__file__).with_suffix(".md"))
    tables = "\n".join(f"## {place}\n\n{rows_of(outcomes)}" for place, outcomes in places.items())
    training = "\n".join(f"{place}:\n\n{rows_of(outcomes)}" for place, outcomes in tried.items())
    return f"""# Refusing requests at overload

<!-- written by python -m experiments.refusing -->

    servegym compare --spec session-fleet --rate 24 --requests 3000 \\
      --router predicted-cost --router predicted-cost:refuse={weight}

{words["Question"]}

{words["Hypotheses"]}

{words["How"]} Here {seeds} seeds.

## What holds

With refuse={weight}, less without, on the same requests:

{answers(places, weight)}

{words["Reading"]}

{tables}
## Chosen on training sessions

{words["Choice"]} Here {TRAINING_SEEDS} seeds.

{training}"""


def main() -> None:
    asked = arguments.parse(__doc__, seeds=6)
    weight, tried = chosen()
    print(
        weight,
        {place: {k: v.mean(0).round(3).tolist() for k, v in one.items()} for place, one in tried.items()},
        flush=True,
    )
    places = {}
    for place in PLACES:
        places[place] = by_label(routers(weight), scenarios_of(place, asked.seeds))
        print(place, {name: found.mean(0).round(3).tolist() for name, found in places[place].items()}, flush=True)
    asked.page.write_text(page(weight, tried, places, asked.seeds), encoding="utf-8")


if __name__ == "__main__":
    main()
