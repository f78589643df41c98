"""The study of lost-gain: beside which routers it is judged, and what is said of each place."""

import numpy as np

from experiments import lost_gain
from experiments.lost_gain import MIXED, OURS, PLACES, REFUSING
from experiments.session_fleet import TUNED
from servegym.envs.cluster_routing import random_clusters
from servegym.scenarios.presets import spelled_out

OTHER = "predicted-cost"


def outcomes(tdg: float, attainment: float, name: str = OURS) -> dict[str, np.ndarray]:
    """Of a router, with what it has more than others of TDG 0.9 and attainment 0.8, on three scenarios."""
    other = np.zeros((3, 5))
    other[:, 0], other[:, 1], other[:, 2] = (0.90, 0.91, 0.89), (0.80, 0.79, 0.81), 2.0
    refusing = dict.fromkeys(REFUSING, other + np.array([0.02, 0.02, 0.0, 0.0, 0.0]))
    ours = other + np.array([tdg, attainment, 1.0, 0.0, 0.25])
    return {OURS: other, OTHER: other, TUNED: other + 1, **refusing, name: ours}


def test_each_place_can_be_drawn() -> None:
    for preset, places in PLACES.items():
        assert next(iter(places.values())) == {}, preset
        for changes in places.values():
            random_clusters(4).with_overrides(spelled_out({"preset": preset, "split": "test", **changes}))


def test_a_row_has_both_figures_waits_and_the_verdict() -> None:
    row = lost_gain.places_table(OURS, {"here": outcomes(0.01, 0.04)}).splitlines()[-1]
    assert row.startswith(f"| here | 0.840 | `{OTHER}` 0.800 | +0.040 | 0.9100 | `{OTHER}` 0.9000 | +0.0100")
    assert row.endswith("| 3.0 / 2.0 | 0.250 / 0.000 | holds |")
    assert lost_gain.places_table(OURS, {"here": outcomes(-0.01, 0.04)}).endswith("| behind |\n")


def test_a_router_is_judged_beside_those_that_refuse_only_if_it_refuses() -> None:
    found = outcomes(0.0, 0.0)
    assert list(lost_gain.others_of(OURS, found)) == [OTHER]
    assert list(lost_gain.others_of(REFUSING[0], found)) == [OTHER, *REFUSING[1:]]
    assert lost_gain.judged(OURS, outcomes(0.01, 0.04)) == "holds"
    assert lost_gain.judged(OURS, found) == "not ahead of all"
    assert lost_gain.judged(REFUSING[0], outcomes(0.01, 0.01, REFUSING[0])) == "behind"  # beside others that refuse


def test_the_page_names_the_places_where_a_hypothesis_fails() -> None:
    results = {preset: {place: outcomes(0.01, 0.04) for place in places} for preset, places in PLACES.items()}
    behind = "eight engines, load 0.8 to 1.3"
    results[MIXED][behind] = outcomes(-0.01, -0.04)
    count = sum(map(len, PLACES.values()))
    text = lost_gain.page(results, [("two", "own", *"1234567")], 3)
    assert f"at {count - 1} of {count} places; behind one at: {behind}." in text and "3 scenarios a place" in text
