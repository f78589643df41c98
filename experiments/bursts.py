"""Every router that ships where requests come in bursts, on fleets of unequal and of equal engines.

    python -m experiments.bursts docs/results/bursts.md

Runs all (two minutes on two cores) and writes the page. Hypotheses and words: bursts.md.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments import arguments
from experiments.lost_gain import MIXED, TWO_AND_FOUR
from experiments.prose import sections
from experiments.session_fleet import A100, ATTAINMENT, TDG, TUNED, Outcomes, by_router, routers, scenarios_of
from servegym.baselines import registry
from servegym.evaluation.intervals import student_interval
from servegym.evaluation.markdown import table
from servegym.scenarios.demand import BURST
from servegym.scenarios.ranges import Range
from servegym.scenarios.values import Pool

OURS = "lost-gain"
VARIANTS = ("lost-gain:window_s=25", "lost-gain:refuse=0.2")
FIRST_SEED, SEEDS = 14_000_000, 16
P99_TTFT, STARVED = 2, 4  # of `FIGURES`
# What differs from the preset mixed-fleet. Loads are relative to the saturation of the fleet.
PLACES: dict[str, dict[str, Any]] = {
    "80 requests at load 3": {"load": 3.0, "requests": 80},
    "80 requests at load 2": {"load": 2.0, "requests": 80},
    "200 requests at load 2": {"load": 2.0, "requests": 200},
    "cv 3, load 0.6 to 0.9": {"cv": 3.0, "load": Range(0.6, 0.9), "requests": 1500},
    "cv 8, load 0.6 to 0.9": {"cv": 8.0, "load": Range(0.6, 0.9), "requests": 1500},
    "calm, burst, calm; load 0.9 to 1.3": {"load_profile": BURST, "load": Range(0.9, 1.3), "requests": 1500},
    "two H100, four A6000, cv 4": {"pools": TWO_AND_FOUR, "cv": 4.0, "load": Range(0.6, 0.9), "requests": 2000},
    "four A100, cv 4, load 0.5 to 0.8": {
        "pools": (Pool(A100, 4),), "cv": 4.0, "load": Range(0.5, 0.8), "requests": 1500,
    },
}  # fmt: skip


def means_table(places: Mapping[str, Outcomes], figure: int, style: str) -> str:
    """Make a table with a row a router, the best in the mean of its places first, and a column a place."""
    names = next(iter(places.values()))
    mean = {name: [one[name][:, figure].mean() for one in places.values()] for name in names}
    worst_last = -1 if figure in (TDG, ATTAINMENT) else 1
    rows = [
        (f"`{name}`" if name != TUNED else name, *(f"{value:{style}}" for value in mean[name]))
        for name in sorted(names, key=lambda name: worst_last * sum(mean[name]))
    ]
    return table(("router", *places), rows)


def beside_ours(places: Mapping[str, Outcomes], names: tuple[str, ...]) -> str:
    """Make a table with a row a place: what each of these routers attains more than lost-gain."""
    rows = [
        (place, *(student_interval(one[name][:, ATTAINMENT] - one[OURS][:, ATTAINMENT]).text("+.3f") for name in names))
        for place, one in places.items()
    ]
    return table(("where", *(f"`{name}`" for name in names)), rows)


def page(places: Mapping[str, Outcomes], seeds: int) -> str:
    words = sections(Path(__file__).with_suffix(".md"))
    others = ("predicted-cost", "prefix-affinity", VARIANTS[0], VARIANTS[1], "learned:mixed-fleet")
    return f"""# Routers where requests come in bursts

<!-- written by python -m experiments.bursts -->

    servegym compare --spec mixed-fleet --scheduler vllm-v1 --load 0.8 --cv 3 --router lost-gain --router predicted-cost

{words["Choose"]}

**Hypotheses.** {words["Hypotheses"]}

**Found.** {words["Found"]}

{words["Places"].replace("SEEDS", str(seeds))}

## SLO attainment beside lost-gain

{beside_ours(places, others)}
## SLO attainment

{means_table(places, ATTAINMENT, ".3f")}
## TDG ratio

{means_table(places, TDG, ".4f")}
## p99 TTFT, s

{means_table(places, P99_TTFT, ".1f")}
## Share of requests that starve

{means_table(places, STARVED, ".3f")}"""


def main() -> None:
    options = arguments.parse(__doc__, seeds=SEEDS)
    policies = routers() | {name: registry.router(name) for name in VARIANTS}
    places = {}
    for place, changes in PLACES.items():
        places[place] = by_router(policies, scenarios_of(changes, options.seeds, MIXED, FIRST_SEED))
        print(place, flush=True)
    options.page.write_text(page(places, options.seeds), encoding="utf-8")


if __name__ == "__main__":
    main()
