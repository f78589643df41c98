"""What the page of pd_ratio says of its hypotheses, and which ratios it compares."""

import numpy as np

from experiments.pd_ratio import (
    CALM,
    DEFAULTS,
    GRID,
    LONG,
    PLACES,
    STATIC,
    TURNS,
    Ratio,
    answers,
    best_static,
    curves_table,
    figures_of,
    grid,
    making_all,
    rows_of,
    without_rule,
)
from servegym.baselines.registry import scaler

OURS = Ratio(5, "pd-ratio:interval_s=1")
TRAINED = Ratio(5, "learned:results/policy.json")


def outcomes(attainment: dict[Ratio, float]) -> dict[Ratio, np.ndarray]:
    """With these attainments, and TDG ratios .1 above, on three seeds."""
    seeds = np.array([-0.001, 0.0, 0.001])
    return {
        ratio: np.stack([value + seeds, value + 0.1 - seeds, *4 * [seeds]]).T for ratio, value in attainment.items()
    }


def test_the_best_fixed_ratio_is_what_it_is_held_against():
    others = {OURS: 0.85, without_rule(OURS): 0.7, making_all(OURS): 0.84, TRAINED: 0.86}
    found = outcomes({ratio: 0.1 * ratio.prefill for ratio in STATIC} | others)
    assert best_static(found) == Ratio(7, "static")
    calm = outcomes(dict.fromkeys(STATIC, 0.9) | {OURS: 0.88, making_all(OURS): 0.88, TRAINED: 0.87})
    assert answers({TURNS: found, CALM: calm, LONG: found}, OURS, TRAINED).splitlines() == [
        "- 1. 36 requests/s, beside 7 : 1: attainment +0.150: holds; TDG +0.150: holds.",
        "- 2. 24 requests/s, beside 1 : 7: attainment -0.020: fails; TDG -0.020: fails.",
        "- 3. 36 requests/s, a change takes 30 s, beside itself with outlast=0: attainment +0.150: holds; "
        "TDG +0.150: holds.",
        "- 3. 36 requests/s, beside itself with outlast=0: attainment +0.150: holds; TDG +0.150: holds.",
        "- 4. 24 requests/s, beside itself with first_s=1e9: attainment +0.000: holds; TDG +0.000: holds.",
        "- 4. 36 requests/s, a change takes 30 s, beside 5 : 3: attainment +0.350: holds; TDG +0.350: holds.",
        "- 4. 36 requests/s, a change takes 30 s, beside itself with first_s=1e9: attainment +0.010: fails; "
        "TDG +0.010: holds.",
        "- 4. 36 requests/s, beside itself with first_s=1e9: attainment +0.010: holds; TDG +0.010: holds.",
        "- 5. 24 requests/s, the learned scaler, beside the tuned: attainment -0.010: fails; TDG -0.010: fails.",
        "- 5. 36 requests/s, a change takes 30 s, the learned scaler, beside the tuned: attainment +0.010: holds; "
        "TDG +0.010: holds.",
        "- 5. 36 requests/s, the learned scaler, beside the tuned: attainment +0.010: holds; TDG +0.010: holds.",
    ]
    rows = rows_of(found, OURS).splitlines()
    assert len(rows) == 2 + 11 and "| 2 : 6 | 0.200 ± 0.002 |" in rows[3] and "+0.650" in rows[3]


def test_all_settings_can_be_set():
    settings = grid()
    assert len(settings) == len(set(settings)) == np.prod([len(values) for values in GRID.values()])
    for one in (settings[0], settings[-1], Ratio(5, DEFAULTS)):
        policy = scaler(one.scaler)
        assert policy.name == "pd-ratio" and one.label == f"`{one.scaler}`"


def test_a_long_change_is_made_less_often():
    """Where a change takes 30 s a turn of 83 s is not long enough for one there and back, once a turn has been seen, or
    if the first is expected to be as short."""
    ours = Ratio(5, "pd-ratio:interval_s=1,window_s=1,rest_checks=0")
    place = PLACES[LONG] | {"requests": 9000}
    often, seldom, never = (figures_of(place, one, 1)[-1] for one in (without_rule(ours), making_all(ours), ours))
    assert often > seldom > never == 0


def test_curves_are_over_trainings_and_say_what_each_kept():
    def row(steps, difference, score):
        figures = {"attainment_difference": difference, "difference": difference / 10, "wait_difference_s": -difference}
        return {"steps": steps, "score": score, **figures}

    first, second = ([row(0, 0.0, 1.0), row(96, 0.1, 1.2), row(192, last, 1.0 + last)] for last in (0.3, 0.06))
    rows = curves_table([first, second]).splitlines()[2:]
    assert rows == [
        "| 96 | +0.100 | +0.010 | -0.10 |",
        "| 192 | +0.180 ± 1.525 | +0.018 ± 0.152 | -0.18 |",
        "| kept | +0.200 ± 1.271 | +0.020 ± 0.127 | -0.20 |",
    ]
