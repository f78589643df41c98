"""The learned router of the preset session-fleet beside every router that ships, where it was trained and elsewhere.

    python -m experiments.session_fleet docs/results/learned-session-fleet.md

Runs all (half an hour on two cores) and writes the page. Hypothesis and words: session_fleet.md.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments import arguments
from experiments.environments.rules import rules_of
from experiments.outcomes import cells_of, outcomes_of
from experiments.prose import sections
from servegym.baselines.artifact.files import load_artifact
from servegym.baselines.learned.derived import LearnedPolicy
from servegym.baselines.registry import learned_path
from servegym.envs.cluster_routing import random_clusters
from servegym.evaluation.intervals import Interval, student_interval
from servegym.evaluation.markdown import table
from servegym.scenarios.presets import spelled_out
from servegym.scenarios.values import Pool
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.policy import Policy
from servegym.simulator.runs.simulation import Simulation

OURS, TUNED = "learned:session-fleet", "lost-gain, tuned"
FIRST_SEED, SEEDS = 12_000_000, 24
FIGURES = ("TDG ratio", "SLO attainment", "p99 TTFT, s", "p99 TPOT, ms", "starved")
TDG, ATTAINMENT = 0, 1
AHEAD, BEHIND = 0.03, 0.005  # of the hypothesis
H100, A100, A6000 = "h100-llama3-8b", "a100-llama3-8b", "a6000-llama3.1-8b"
TRAINED = "as trained, 12 requests/s"
# What differs from the preset.
PLACES: dict[str, dict[str, Any]] = {
    TRAINED: {},
    "6 requests/s": {"rate_per_s": 6.0},
    "24 requests/s": {"rate_per_s": 24.0},
    "two H100, four A6000": {"pools": (Pool(H100, 2), Pool(A6000, 4))},
    "eight engines, 24 requests/s": {
        "pools": (Pool(H100, 2), Pool(A100, 4), Pool(A6000, 2)), "rate_per_s": 24.0, "requests": 3000,
    },
    "an A100 fails for 30 s": {"incidents": (Incident(40.0, 1, "fail"), Incident(70.0, 1, "return"))},
    "engines with expected-gain": {"scheduler": "expected-gain:steps=ignore"},
    "routers hear 1 s late": {"signal_delay_s": 1.0},
}  # fmt: skip
Outcomes = Mapping[str, np.ndarray]  # float64[seeds, figures] of each router


def routers() -> dict[str, Policy]:
    """Every router that ships, and the base that ours was trained upon."""
    found = rules_of("router")
    ours = found[OURS]
    assert isinstance(ours, LearnedPolicy) and ours.base is not None
    return found | {TUNED: ours.base}


def scenarios_of(
    changes: Mapping[str, Any], seeds: int, preset: str = "session-fleet", first_seed: int = FIRST_SEED
) -> list[Scenario]:
    """Of one of `PLACES`."""
    source = random_clusters(4).with_overrides(spelled_out({"preset": preset, "split": "test", **changes}))
    return [source(np.random.default_rng(first_seed + seed)) for seed in range(seeds)]


def figures_of(policy: Policy, scenario: Scenario) -> tuple[float, ...]:
    """`FIGURES` under a router."""
    summary = Simulation(dataclasses.replace(scenario, router=policy)).run().summary
    return (
        summary["tdg_ratio"], summary["slo_attainment"], summary["ttft_s"]["p99"], 1000 * summary["tpot_s"]["p99"],
        summary["starved"],
    )  # fmt: skip


def by_router(policies: Mapping[str, Policy], scenarios: list[Scenario]) -> Outcomes:
    found = outcomes_of(figures_of, [(policy,) for policy in policies.values()], scenarios)
    return dict(zip(policies, found, strict=True))


def heuristics(outcomes: Outcomes) -> list[str]:
    """Those of the hypothesis."""
    return [name for name in outcomes if name != TUNED and not name.startswith("learned:")]


def all_routers(outcomes: Outcomes) -> str:
    """A row a router, those that attain most first."""
    styles = (".4f", ".3f", ".1f", ".1f", ".3f")
    rows = []
    for name in sorted(outcomes, key=lambda name: -outcomes[name][:, ATTAINMENT].mean()):
        rows.append((f"`{name}`" if name != TUNED else TUNED, *cells_of(outcomes[name], styles)))
    return table(("router", *FIGURES), rows)


def closest(outcomes: Outcomes, figure: int) -> str:
    """The heuristic with the highest mean of a figure."""
    return max(heuristics(outcomes), key=lambda name: outcomes[name][:, figure].mean())


def verdict(outcomes: Outcomes, name: str = OURS) -> str:
    """Whether the hypothesis holds of a router at a place: ahead of every heuristic, and behind none."""
    ours, ahead, behind = outcomes[name], [], []
    for other in set(heuristics(outcomes)) - {name}:
        less = ours - outcomes[other]
        tdg, attainment = student_interval(less[:, TDG]), less[:, ATTAINMENT].mean()
        ahead.append(attainment >= AHEAD or tdg.low > 0)
        behind.append(min(tdg.mean, attainment) < -BEHIND)
    return "behind" if any(behind) else "holds" if all(ahead) else "not ahead of all"


def ahead_in_attainment(outcomes: Outcomes) -> bool:
    """Whether ours is ahead of every heuristic in SLO attainment, by an interval above 0."""
    less = (outcomes[OURS] - outcomes[name] for name in heuristics(outcomes))
    return all(student_interval(one[:, ATTAINMENT]).low > 0 for one in less)


def beside_best(ours: np.ndarray, others: Outcomes) -> list[str]:
    """Cells of a row: by attainment and by TDG ours, the best heuristic among others, and the difference."""
    cells = []
    for figure, style in ((ATTAINMENT, ".3f"), (TDG, ".4f")):
        best = closest(others, figure)
        less = student_interval((ours - others[best])[:, figure]).text(f"+{style}")
        cells += [f"{ours[:, figure].mean():{style}}", f"`{best}` {others[best][:, figure].mean():{style}}", less]
    return cells


def elsewhere(places: Mapping[str, Outcomes]) -> str:
    """A row a place: ours, the best heuristic there, and the difference, by attainment and by TDG."""
    rows = []
    for place, outcomes in places.items():
        cells = [place, *beside_best(outcomes[OURS], outcomes)]
        tuned = student_interval((outcomes[OURS] - outcomes[TUNED])[:, ATTAINMENT]).text("+.3f")
        rows.append((*cells, tuned, verdict(outcomes)))
    names = ("attainment", "best heuristic", "less it", "TDG", "best heuristic", "less it", "attainment less tuned")
    return table(("where", *names, "hypothesis"), rows)


def training() -> str:
    """How the policy that ships was trained, by its own provenance."""
    said = load_artifact(learned_path(OURS)).provenance
    found = said["validation"]
    less = Interval.about(found["difference_tdg_ratio"], found["half_width_tdg_ratio"]).text("+.4f")
    row = (f"`{said['training']}`", f"{said['steps']:,}", f"{said['minutes']:.1f}", less)
    return table(("configuration", "scenarios served", "minutes", "TDG in validation, less its base"), [row])


def page(places: Mapping[str, Outcomes], seeds: int) -> str:
    words, trained = sections(Path(__file__).with_suffix(".md")), places[TRAINED]
    found = {place: verdict(outcomes) for place, outcomes in places.items()}
    held = sum(one == "holds" for one in found.values())
    failed = "; ".join(f"{place}: {one}" for place, one in found.items() if one != "holds")
    clear = sum(ahead_in_attainment(one) for one in places.values())
    beside = [(one[OURS] - one[TUNED])[:, ATTAINMENT].mean() for one in places.values()]
    said = f"The hypothesis holds at {held} of {len(found)} places" + (f", and fails at: {failed}." if failed else ".")
    return f"""# A learned router for agents' sessions

<!-- written by python -m experiments.session_fleet -->

    servegym compare --spec session-fleet --router prefix-affinity --router lost-gain --router {OURS}

**Hypothesis.** {words["Hypothesis"]}

**Found.** {said} In SLO attainment alone it is ahead of every heuristic, by intervals above 0, at {clear} places. Its
attainment less that of its base, the tuned `lost-gain`, is {min(beside):+.3f} to {max(beside):+.3f}.

{words["Why"]}

## What was learned

{words["What was learned"]} On two cores, which other work used too:

{training()}
## Every router that ships

{words["How"]} Here {seeds} seeds, 1,500 requests each, under `vllm-v1`:

{all_routers(trained)}
## Elsewhere

The best heuristic is that with the highest mean at that place, for each figure. *Holds* asks for a lead over
every heuristic, also over one with a lower mean and a wider interval.

{elsewhere(places)}"""


def main() -> None:
    options = arguments.parse(__doc__, seeds=SEEDS)
    policies = routers()
    places = {}
    for place, changes in PLACES.items():
        places[place] = by_router(policies, scenarios_of(changes, options.seeds))
        print(f"{place}: {verdict(places[place])}", flush=True)
    options.page.write_text(page(places, options.seeds), encoding="utf-8")


if __name__ == "__main__":
    main()
