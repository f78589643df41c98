"""The router lost-gain beside every router that ships: attainment, TDG and waits on many fleets, and what fleets carry.

    python -m experiments.lost_gain docs/results/lost-gain.md

Runs all (a quarter of an hour on two cores) and writes the page. Hypotheses and words: lost_gain.md.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments import arguments
from experiments.prose import sections
from experiments.session_fleet import (
    A100,
    A6000,
    ATTAINMENT,
    H100,
    Outcomes,
    all_routers,
    beside_best,
    by_router,
    closest,
    heuristics,
    routers,
    scenarios_of,
    verdict,
)
from experiments.session_fleet import PLACES as SESSION_PLACES
from servegym.baselines import registry
from servegym.evaluation.compared import COMPARED
from servegym.evaluation.comparison import Comparison
from servegym.evaluation.goodput import GoodputSearch, search_goodput
from servegym.evaluation.intervals import student_interval
from servegym.evaluation.markdown import table
from servegym.evaluation.targets import parse_target
from servegym.scenarios.ranges import Range
from servegym.scenarios.values import Pool
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.policies.policy import Policy

OURS, BEFORE = "lost-gain", "predicted-cost"
REFUSING = ("lost-gain:refuse=0.2", "predicted-cost:refuse=0.1", "prefix-affinity:refuse=1")
FIRST_SEED, SEEDS = 11_000_000, 12
SESSIONS, MIXED = "session-fleet", "mixed-fleet"
P99_TTFT, STARVED = 2, 4  # of `FIGURES`
TWO_AND_FOUR = (Pool(H100, 2), Pool(A6000, 4))
EIGHT = (Pool(H100, 2), Pool(A100, 4), Pool(A6000, 2))
OWN_SLO = "ttft_s=2,tpot_s=0.06"
CLASSES = "classes:chat=0.5:ttft_s=1:tpot_s=0.05,agent=0.5:ttft_s=4:tpot_s=0.15"
EXPERTS, SMALL = "a100-qwen3-30b-a3b", "a5000-qwen1.5-7b"
ADAPTERS = {"adapters": 40, "max_loras": 8, "max_cpu_loras": 16, "lora_load_s": 0.5, "lora_activate_s": 0.03}
FAILS = (Incident(5.0, 2, "fail"), Incident(15.0, 2, "return"))
# What differs from the preset mixed-fleet. Loads are relative to the saturation of the fleet under its SLOs.
MIXED_PLACES: dict[str, dict[str, Any]] = {
    "as in the preset: load 1.2 to 1.8, 400 requests": {},
    "load 1.1 to 1.6, 3,000 requests": {"load": Range(1.1, 1.6), "requests": 3000},
    "load 0.7 to 1.1, 3,000 requests": {"load": Range(0.7, 1.1), "requests": 3000},
    "two H100, four A6000, load 1 to 1.5": {"pools": TWO_AND_FOUR, "load": Range(1.0, 1.5), "requests": 4000},
    "two H100, four A6000, load 0.6 to 1": {"pools": TWO_AND_FOUR, "load": Range(0.6, 1.0), "requests": 4000},
    "the same, TTFT 2 s, TPOT 0.06 s, load 1 to 1.5": {
        "pools": TWO_AND_FOUR, "slo": OWN_SLO, "load": Range(1.0, 1.5), "requests": 4000,
    },
    "eight engines, load 0.8 to 1.3": {"pools": EIGHT, "load": Range(0.8, 1.3), "requests": 5000},
    "four equal A100, load 0.7 to 1.2": {"pools": (Pool(A100, 4),), "load": Range(0.7, 1.2), "requests": 3000},
    "four equal A100, load 1.2 to 1.5": {"pools": (Pool(A100, 4),), "load": Range(1.2, 1.5), "requests": 3000},
    "routers hear 1 s late, load 0.8 to 1.4": {"signal_delay_s": 1.0, "load": Range(0.8, 1.4), "requests": 2000},
    "an A100 fails for 10 s, load 0.7 to 1.2": {"incidents": FAILS, "load": Range(0.7, 1.2), "requests": 1500},
    "engines with expected-gain, load 0.9 to 1.5": {
        "scheduler": "expected-gain:steps=ignore", "load": Range(0.9, 1.5), "requests": 2000,
    },
    "requests of azure-code, load 0.7 to 1.3": {"trace": "azure-code", "load": Range(0.7, 1.3), "requests": 2000},
    "two classes, TPOT 0.05 and 0.15 s, load 0.7 to 1.3": {"slo": CLASSES, "load": Range(0.7, 1.3), "requests": 2000},
    "four A6000, load 0.6": {"pools": (Pool(A6000, 4),), "load": 0.6, "requests": 2000},
    "four A100, 40 LoRA adapters, load 0.5": {"pools": (Pool(A100, 4),), "load": 0.5, "requests": 2000, **ADAPTERS},
    "four A100, Qwen3-30B-A3B, load 0.5": {"pools": (Pool(EXPERTS, 4),), "load": 0.5, "requests": 2000},
    "four A100, four drafted tokens, load 0.9": {
        "pools": (Pool(A100, 4),), "load": 0.9, "requests": 2000, "speculation": "k=4,acceptance=0.7,draft_s=0.001",
    },
    "four A5000 with 4,000 tokens of KV memory, load 0.9": {
        "pools": (Pool(SMALL, 4),), "slo": "ttft_s=2,tpot_s=0.1", "load": 0.9, "requests": 2000,
        "max_total_tokens": 4000,
    },
    "two A100 prefill, two decode, load 0.8": {
        "pools": (Pool(A100, 2, role="prefill"), Pool(A100, 2, role="decode")), "load": 0.8, "requests": 2000,
    },
}  # fmt: skip
MORE_SESSIONS = {"48 requests/s": {"rate_per_s": 48.0, "requests": 3000}}
PLACES = {MIXED: MIXED_PLACES, SESSIONS: SESSION_PLACES | MORE_SESSIONS}
# What fleets carry: pools, SLOs. Requests of azure-conv under vllm-v1.
FLEETS: dict[str, tuple[tuple[Pool, ...], str]] = {
    "an H100, two A100, an A6000": ((Pool(H100), Pool(A100, 2), Pool(A6000)), "proserve"),
    "two H100, four A6000": (TWO_AND_FOUR, OWN_SLO),
    "two H100, four A100, two A6000": (EIGHT, "ttft_s=1,tpot_s=0.1"),
    "four A100": ((Pool(A100, 4),), OWN_SLO),
}
CARRYING = (OURS, BEFORE, "prefix-affinity", "min-load", "polyserve", "gorouting", "lost-gain:refuse=0.2")
TARGET = "attainment=0.95"


def others_of(name: str, outcomes: Outcomes) -> Outcomes:
    """The heuristics beside which a router is judged: all others, and those that refuse if it does."""
    refuses = name in REFUSING
    mine = {OURS, name} if refuses else {name}
    names = [one for one in heuristics(outcomes) if one not in mine and (refuses or one not in REFUSING)]
    return {one: outcomes[one] for one in names}


def judged(name: str, outcomes: Outcomes) -> str:
    """`verdict` of a router beside `others_of` it."""
    return verdict({**others_of(name, outcomes), name: outcomes[name]}, name)


def row_of(name: str, place: str, outcomes: Outcomes) -> tuple[str, ...]:
    """A row of `places_table`."""
    ours, others = outcomes[name], others_of(name, outcomes)
    cells = [place, *beside_best(ours, others)]
    theirs = others[closest(others, ATTAINMENT)]
    for figure, style in ((P99_TTFT, ".1f"), (STARVED, ".3f")):
        cells.append(" / ".join(f"{found[:, figure].mean():{style}}" for found in (ours, theirs)))
    return (*cells, judged(name, outcomes))


def places_table(name: str, places: Mapping[str, Outcomes]) -> str:
    """A row a place: a router, the best other in each figure, and the difference."""
    names = ("attainment", "best other", "less it", "TDG", "best other", "less it")
    last = ("p99 TTFT, s: ours / theirs", "starved: ours / theirs", "verdict")
    return table(("where", *names, *last), [row_of(name, place, one) for place, one in places.items()])


def carried(fleet: str, names: tuple[str, ...] = CARRYING) -> tuple[str, ...]:
    """What a fleet carries under each router, requests/s, as a row."""
    pools, slo = FLEETS[fleet]
    spec = COMPARED.replaced(pools=pools, slo=(slo,), scheduler=("vllm-v1",), router=names)
    search = GoodputSearch(Comparison(spec, 5), parse_target(TARGET))
    with tempfile.TemporaryDirectory() as folder:
        found = search_goodput(search, folder)
    rates = [found[found.scheduler.str.endswith(f"+ {name}")].goodput_per_s.to_numpy("f8") for name in names]
    return (fleet, f"`{slo}`", *(student_interval(one).text(".1f") for one in rates))


def page(results: Mapping[str, Mapping[str, Outcomes]], fleets: list[tuple[str, ...]], seeds: int) -> str:
    """results: by preset and place."""
    words = sections(Path(__file__).with_suffix(".md"))
    without = {place: judged(OURS, one) for places in results.values() for place, one in places.items()}
    held = sum(one == "holds" for one in without.values())
    behind = "; ".join(place for place, one in without.items() if one == "behind") or "none"
    parts = "\n".join(
        f"""### {preset}

{places_table(OURS, places)}
The same with `refuse=0.2`, beside all others, those that refuse too:

{places_table(REFUSING[0], places)}
All routers at the first of these places:

{all_routers(next(iter(places.values())))}"""
        for preset, places in results.items()
    )
    found = f"Ahead of every other router and behind none at {held} of {len(without)} places; behind one at: {behind}."
    return f"""# Routing by the gain that is expected to be lost

<!-- written by python -m experiments.lost_gain -->

    servegym compare --spec mixed-fleet --scheduler vllm-v1 --load 1.3 --router {BEFORE} --router {OURS}

**Hypotheses.** {words["Hypotheses"]}

**Found.** {found}

{words["Found"]}

## How

{words["How"]}

## What fleets carry

{words["Carry"]}

{table(("fleet", "SLOs", *(f"`{name}`" for name in CARRYING)), fleets)}
## Places

{words["Places"].replace("SEEDS", str(seeds))}

{parts}"""


def measured(policies: Mapping[str, Policy], seeds: int) -> dict[str, dict[str, Outcomes]]:
    """Outcomes by preset and place; half as many seeds with sessions."""
    results: dict[str, dict[str, Outcomes]] = {}
    for preset, places in PLACES.items():
        results[preset] = {}
        for place, changes in places.items():
            drawn = scenarios_of(changes, seeds if preset == MIXED else max(2, seeds // 2), preset, FIRST_SEED)
            results[preset][place] = outcomes = by_router(policies, drawn)
            print(f"{preset}, {place}: {judged(OURS, outcomes)}", flush=True)
    return results


def main() -> None:
    options = arguments.parse(__doc__, seeds=SEEDS)
    policies = routers() | {name: registry.router(name) for name in REFUSING}
    results = measured(policies, options.seeds)
    fleets = [carried(fleet) for fleet in FLEETS]
    options.page.write_text(page(results, fleets, options.seeds), encoding="utf-8")


if __name__ == "__main__":
    main()
