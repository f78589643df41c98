"""The study of routers in bursts: its places, its order of routers, and what is beside lost-gain."""

import numpy as np

from experiments import bursts
from experiments.lost_gain import MIXED
from experiments.session_fleet import ATTAINMENT, scenarios_of

OTHERS = ("predicted-cost", "prefix-affinity", *bursts.VARIANTS, "learned:mixed-fleet")


def outcomes() -> dict[str, np.ndarray]:
    """Of two scenarios; each router waits one second longer, and attains 0.1 less, than the one before."""
    base = np.array([[0.9, 0.8, 1.0, 50.0, 0.0], [0.9, 0.8, 3.0, 50.0, 0.0]])
    step = np.array([0.0, -0.1, 1.0, 0.0, 0.0])
    return {name: base + step * k for k, name in enumerate((bursts.OURS, *OTHERS))}


def test_arrivals_at_each_place_are_drawn_and_vary() -> None:
    spans = {}
    for place, changes in bursts.PLACES.items():
        scenario = scenarios_of({**changes, "requests": 80}, 1, MIXED, bursts.FIRST_SEED)[0]
        gaps = np.diff(scenario.workload.table["arrival_s"])
        spans[place] = float(gaps.std() / gaps.mean())
    assert spans["cv 8, load 0.6 to 0.9"] > spans["cv 3, load 0.6 to 0.9"] > spans["80 requests at load 2"]


def test_the_best_router_comes_first() -> None:
    places = {"here": outcomes(), "there": outcomes()}
    attainment = bursts.means_table(places, ATTAINMENT, ".2f").splitlines()
    assert attainment[2] == "| `lost-gain` | 0.80 | 0.80 |" and attainment[-1] == f"| `{OTHERS[-1]}` | 0.30 | 0.30 |"
    waits = bursts.means_table(places, bursts.P99_TTFT, ".1f").splitlines()
    assert waits[2] == "| `lost-gain` | 2.0 | 2.0 |"


def test_the_page_has_differences_on_the_same_scenarios() -> None:
    text = bursts.page({"here": outcomes()}, 2)
    assert "| here | -0.100 | -0.200 | -0.300 | -0.400 | -0.500 |" in text and "2 scenarios a place" in text
