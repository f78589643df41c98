"""What is left to do is read off the trials."""

import pytest

pytest.importorskip("optuna")

from optuna.trial import TrialState, create_trial

from servegym.tuners.search.attempts import DIED, attempts_of, finished_trials


def trial(number, index, state, **attributes):
    values = {"value": 1.0} if state == "COMPLETE" else {}
    made = create_trial(state=TrialState[state], user_attrs={"slot": index} | attributes, **values)
    made.number = number
    return made


def test_an_index_is_open_until_a_trial_of_it_is_finished():
    trials = [
        trial(0, 0, "COMPLETE"),
        trial(1, 1, "PRUNED"),
        trial(2, 2, "RUNNING"),
        trial(3, 3, "FAIL"),
        trial(4, 4, "FAIL"),
        trial(5, 4, "RUNNING"),
        trial(6, 5, "WAITING"),
    ]
    attempts = attempts_of(trials, 7)
    assert [index.open for index in attempts] == [False, False, False, True, False, True, True]
    assert [found.number for found in finished_trials(attempts_of(trials, 7))] == [0, 1]


def test_finished_trials_are_in_the_order_of_indices_whatever_their_numbers():
    trials = [trial(0, 2, "COMPLETE"), trial(1, 0, "FAIL"), trial(2, 1, "PRUNED"), trial(3, 0, "COMPLETE")]
    assert [found.number for found in finished_trials(attempts_of(trials, 3))] == [3, 2, 0]
    assert [found.number for found in finished_trials(attempts_of(trials, 1))] == [3]


def test_trials_of_others_have_no_index():
    foreign = create_trial(state=TrialState.COMPLETE, value=1.0)
    ours = trial(1, 0, "COMPLETE")
    assert finished_trials(attempts_of([foreign, ours], 2)) == [ours]


@pytest.mark.parametrize("state", ["RUNNING", "WAITING"])
def test_of_two_live_trials_at_an_index_the_lower_number_stays(state):
    (index,) = attempts_of([trial(3, 0, "RUNNING"), trial(2, 0, state)], 1)
    assert index.redundant(3)
    assert not index.redundant(2)


def test_a_finished_trial_makes_the_others_at_its_index_unnecessary():
    (index,) = attempts_of([trial(2, 0, "RUNNING"), trial(3, 0, "COMPLETE")], 1)
    assert index.redundant(2)


def test_deaths_are_those_that_nothing_else_explains():
    trials = [trial(0, 0, "FAIL"), trial(1, 0, "FAIL", ended=DIED), trial(2, 0, "FAIL", ended="interrupted")]
    assert attempts_of(trials, 1)[0].deaths == 2
