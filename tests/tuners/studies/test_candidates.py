"""Choice of the winner, on made-up trials and runs whose right answer is known."""

import optuna
import pandas as pd
import pytest

from servegym.tuners.studies.candidates import best_trials, choose, choose_by_load, nearest
from servegym.tuners.studies.config import FIGURES
from servegym.tuners.studies.search import SETTINGS, Search
from tests.tuners.studies.small import small


def trial(gamma, *values, state=optuna.trial.TrialState.COMPLETE, constraint=None):
    made = optuna.trial.create_trial(
        state=state, values=list(values) or None, user_attrs={SETTINGS: {"scheduler": {"gamma": gamma, "eta": 0.03}}}
    )
    if constraint is not None:
        made.set_constraint("low_priority_attainment", constraint)
    return made


def labels(config, trials):
    return [candidate.label for candidate in best_trials(Search(config, "slide"), trials)]


def test_the_best_k_without_the_defaults_and_without_doubles():
    trials = [trial(1, 0.9), trial(2, 0.5), trial(3, 0.8), trial(3, 0.8), trial(4, 0.7)]
    assert labels(small(top_k=2), trials) == ["trial 2", "trial 4"]
    assert labels(small(top_k=9), trials) == ["trial 2", "trial 4", "trial 1"]


def test_pruned_trials_and_those_that_break_a_constraint_are_left_out():
    trials = [
        trial(1, 0.5), trial(2, state=optuna.trial.TrialState.PRUNED), trial(3, 0.9, constraint=0.1),
        trial(4, 0.6, constraint=-0.1), trial(5, 0.55, constraint=0.0),
    ]  # fmt: skip
    assert labels(small(top_k=9), trials) == ["trial 3", "trial 4"]


def test_of_several_objectives_those_that_nothing_exceeds():
    config = small(top_k=9, objectives=["tdg", "cost"])
    trials = [trial(1, 0.5, 9.0), trial(2, 0.9, 8.0), trial(3, 0.8, 8.5), trial(4, 0.7, 3.0)]
    assert labels(config, trials) == ["trial 1", "trial 3"]  # 0.8 at 8.5 is worse than 0.9 at 8 in both


def runs(**candidates):
    rows = []
    for label, by_load in candidates.items():
        for load, (tdg, low) in by_load.items():
            figures = dict.fromkeys(FIGURES, 0.0) | {"tdg_ratio": tdg, "slo_attainment_low_priority": low}
            rows.append({"candidate": label.replace("_", " "), "load": load, **figures})
    return pd.DataFrame(rows)


ROWS = runs(
    defaults={1.0: (0.8, 0.6), 2.0: (0.4, 0.5)},
    trial_1={1.0: (0.9, 0.6), 2.0: (0.5, 0.1)},
    trial_2={1.0: (0.7, 0.9), 2.0: (0.6, 0.8)},
)


def test_the_best_on_validation_wins_if_it_beats_the_defaults():
    assert choose(small(), ROWS) == "trial 1"
    assert choose(small(), ROWS[ROWS["candidate"] == "defaults"]) == "defaults"
    tie = runs(defaults={1.0: (0.8, 0.6)}, trial_1={1.0: (0.8, 0.9)})
    assert choose(small(), tie) == "defaults"


@pytest.mark.parametrize(("least", "winner"), [(0.3, "trial 1"), (0.5, "trial 2"), (0.95, "defaults")])
def test_the_winner_meets_the_constraints(least, winner):
    assert choose(small(constraints={"low_priority_attainment": least}), ROWS) == winner


def test_less_cost_is_better():
    config = small(objectives=["cost"])
    rows = ROWS.assign(cost_engine_s=[5.0, 5.0, 4.0, 4.0, 3.0, 6.0])
    assert choose(config, rows) == "trial 1"
    assert choose(small(constraints={"cost": 4.2}), rows) == "trial 1"
    assert choose(small(constraints={"cost": 1.0}), rows) == "defaults"


def test_a_schedule_has_the_best_of_each_load():
    schedule = choose_by_load(small(), ROWS)
    assert schedule == {1.0: "trial 1", 2.0: "trial 2"}
    assert [nearest(schedule, load) for load in (0.3, 1.3, 1.5, 2.0, 9.0)] == [
        "trial 1", "trial 1", "trial 2", "trial 2", "trial 2",
    ]  # fmt: skip
    bound = choose_by_load(small(constraints={"low_priority_attainment": 0.5}), ROWS)
    assert bound == {1.0: "defaults", 2.0: "trial 2"}
