"""Every trial exactly once, whoever does it and whoever is killed; and the same trials, however often one stops."""

import os
import warnings

import pytest

pytest.importorskip("optuna")
pytest.importorskip("cmaes")

import optuna
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.trial import TrialState, create_trial

from servegym.errors import ServegymError
from servegym.tuners.search import workers
from servegym.tuners.search.attempts import worker_of
from servegym.tuners.search.storage import StorageError, WorkError
from servegym.tuners.search.workers import work
from tests.tuners.search.studies import SAMPLERS, WARM_START, Workers, bowl, opened, points

pytestmark = pytest.mark.slow

N = 12


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(workers, "POLL_S", 0.02)


def states(study):
    return [trial.state.name for trial in study.trials]


def failing(at, error):
    """The bowl, which raises an error at the call of this number."""
    calls = iter(range(1000))

    def objective(trial):
        value = bowl(trial)
        if next(calls) == at:
            raise error
        return value

    return objective


def test_first_points_are_first_and_progress_is_told(tmp_path):
    told = []
    done = work(opened(tmp_path), bowl, 3, enqueue=[WARM_START, {"x": 0.75}], progress=lambda *it: told.append(it))
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert done[0].params == WARM_START
    assert done[1].params["x"] == 0.75
    assert len({trial.params["y"] for trial in done}) == 3
    assert worker_of(done[0]).split("-")[-2] == str(os.getpid())


def test_a_finished_study_has_nothing_left_to_do_and_can_be_enlarged(tmp_path):
    done = points(work(opened(tmp_path), bowl, 4))
    assert points(work(opened(tmp_path), failing(0, AssertionError("nothing to do")), 4)) == done
    more = points(work(opened(tmp_path), bowl, 7))
    assert more[:4] == done
    assert more == points(work(opened(tmp_path / "at once"), bowl, 7))
    assert points(work(opened(tmp_path), bowl, 2)) == done[:2]


# An objective that raises StorageError leaves its trial running, as a killed worker does.
@pytest.mark.parametrize(
    ("sampler", "end"),
    [(sampler, StorageError("away")) for sampler in SAMPLERS] + [("tpe", KeyboardInterrupt())],
    ids=[*SAMPLERS, "tpe-interrupted"],
)
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_stopped_studies_are_the_same_byte_for_byte(tmp_path, sampler, end):
    count, times = (5, 1) if sampler == "gp" else (N, 3)  # the GP is slow
    expected = points(work(opened(tmp_path / "whole", sampler=sampler), bowl, count, enqueue=[WARM_START]))
    stopped = tmp_path / "stopped"
    for _ in range(times):
        with pytest.raises(type(end)):
            work(opened(stopped, sampler=sampler), failing(3, end), count, enqueue=[WARM_START])
    study = opened(stopped, sampler=sampler)
    assert points(work(study, bowl, count, enqueue=[WARM_START])) == expected
    assert states(study).count("FAIL") == times


def test_a_grid_is_its_first_points(tmp_path):
    grid = [{"x": x, "y": y} for x in (0.0, 0.5, 1.0) for y in (0.1, 1.0)]
    with pytest.raises(KeyboardInterrupt):
        work(opened(tmp_path), failing(4, KeyboardInterrupt()), len(grid), enqueue=grid)
    assert [trial.params for trial in work(opened(tmp_path), bowl, len(grid), enqueue=grid)] == grid


def test_a_retry_says_what_it_retries(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        work(opened(tmp_path), failing(1, KeyboardInterrupt()), 3)
    study = opened(tmp_path)
    done = work(study, bowl, 3)
    assert study.trials[1].user_attrs["ended"] == "interrupted"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        assert RetryHeartbeatStaleTrialCallback.retry_history(done[1]) == [1]


def test_pruned_trials_are_finished(tmp_path):
    study = opened(tmp_path)
    done = work(study, failing(1, optuna.TrialPruned()), 3)
    assert [trial.state.name for trial in done] == ["COMPLETE", "PRUNED", "COMPLETE"]
    assert len(study.trials) == 3


@pytest.mark.parametrize("error", [ServegymError("no such policy"), ZeroDivisionError("a bug"), ValueError("a bug")])
def test_an_error_ends_the_worker_and_leaves_the_index_open(tmp_path, error):
    study = opened(tmp_path)
    with pytest.raises(type(error), match=str(error)):
        work(study, failing(1, error), 3)
    assert study.trials[1].user_attrs["ended"] == f"{type(error).__name__}: {error}"
    assert len(work(study, bowl, 3)) == 3


@pytest.mark.parametrize("value", [float("nan"), None, [1.0, 2.0], "much"])
def test_what_is_not_a_number_ends_the_worker(tmp_path, value):
    study = opened(tmp_path)
    with pytest.raises(WorkError, match=r"trial 0 gave .* at \{'x': "):
        work(study, lambda trial: [bowl(trial), value][1], 2)
    assert states(study) == ["FAIL"]
    assert len(work(study, bowl, 2)) == 2


def test_a_worker_that_was_taken_for_dead_drops_its_result(tmp_path):
    study = opened(tmp_path)
    calls = []

    def objective(trial):
        calls.append(trial.number)
        if len(calls) == 2:  # another worker takes this one for dead
            opened(tmp_path).tell(trial.number, state=TrialState.FAIL)
        return bowl(trial) if len(calls) == 2 else bowl(trial) - 1

    expected = [value - 1 for (_, _, (value,)) in points(work(opened(tmp_path / "alone"), bowl, 4))]
    assert [trial.value for trial in work(study, objective, 4)] == expected
    assert states(study) == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE", "COMPLETE"]


def test_of_two_trials_at_an_index_one_is_run(tmp_path):
    study = opened(tmp_path)
    for index in (0, 0, 1, 0):
        study.add_trial(create_trial(state=TrialState.WAITING, user_attrs={"slot": index}))
    assert [trial.number for trial in work(study, bowl, 2)] == [0, 2]
    assert states(study) == ["COMPLETE", "FAIL", "COMPLETE", "FAIL"]


def test_a_trial_that_was_taken_twice_is_run_by_the_first(tmp_path):
    """As when a database is restarted while a worker holds the lock, which then is no lock."""
    study = opened(tmp_path)
    first, second = (workers.Worker(study, bowl, 1, [], 0) for _ in range(2))
    with study._storage.presence.enter() as name:
        claim, _ = first.claim(name)
        study.add_trial(create_trial(state=TrialState.RUNNING, user_attrs={"slot": 0, "worker": name}))
        late = workers.Claim(0, second.raw.get_trial_id_from_study_id_trial_number(second.study_id, 1), 1)
        second.do(late)
        first.do(claim)
    assert states(study) == ["COMPLETE", "FAIL"]


def test_a_trial_that_another_has_finished_is_not_claimed(tmp_path, monkeypatch):
    """As when a database is restarted between looking for a trial and taking it, and others are faster."""
    study = opened(tmp_path)
    late = workers.Worker(study, bowl, 1, [], 0)
    found = late._trial_for

    def finished_meanwhile(index, attempts):
        trial_id, number = found(index, attempts)
        late.raw.set_trial_state_values(trial_id, TrialState.COMPLETE, [1.0])
        return trial_id, number

    monkeypatch.setattr(late, "_trial_for", finished_meanwhile)
    with study._storage.presence.enter() as name:
        assert late.claim(name)[0] is None
    assert states(study) == ["COMPLETE"]


def test_workers_that_die_of_a_trial_are_not_replaced_for_ever(tmp_path):
    for _ in range(2):
        with pytest.raises(StorageError, match="away"):
            work(opened(tmp_path), failing(1, StorageError("away")) if not _ else failing(0, StorageError("away")), 3)
    with pytest.raises(WorkError, match=r"2 workers died of trial 1 \(numbers 1, 2 in the study\), at \{'x': "):
        work(opened(tmp_path), bowl, 3, retries=1)
    assert len(work(opened(tmp_path), bowl, 3, retries=2)) == 3


def test_the_trial_of_an_unknown_worker_is_left_alone_for_the_grace(tmp_path):
    study = opened(tmp_path, grace_s=1)
    study.add_trial(create_trial(state=TrialState.RUNNING, user_attrs={"slot": 0, "worker": "elsewhere-1-abc"}))
    with pytest.warns(UserWarning, match="of the worker elsewhere-1-abc, which has a trial: taken for dead after 1 s"):
        done = work(study, bowl, 2)
    assert states(study) == ["FAIL", "COMPLETE", "COMPLETE"]
    assert done[0].datetime_start > done[1].datetime_complete


def test_three_workers_of_which_one_is_killed_do_each_trial_once(tmp_path):
    with Workers(tmp_path, None, trials=12, seconds=0.3) as workers:
        for _ in range(3):
            workers.start()
        workers.wait_for_each()
        killed_at = workers.kill_one_that_runs()
        assert workers.join() == [(0, ""), (0, "")]
        ends = workers.lines("end")
    done = work(opened(tmp_path), bowl, 12)
    assert sorted(int(index) for index, *_ in ends) == list(range(12))
    assert len({worker_of(trial) for trial in done}) == 3
    assert points(done) == points(work(opened(tmp_path / "alone"), bowl, 12, enqueue=[WARM_START]))
    assert {(str(index), repr(trial.params["x"])) for index, trial in enumerate(done)} == {
        (index, x) for index, _, _, x, _ in ends
    }
    assert killed_at in {index for index, *_ in ends}


def test_killed_and_started_again_is_as_if_nothing_had_happened(tmp_path):
    with Workers(tmp_path, None, trials=N, seconds=0.1, sampler="tpe") as workers:
        for already in (2, 7):
            workers.start()
            workers.wait_for("end", already)
            workers.kill_one_that_runs()
        workers.start()
        assert workers.join() == [(0, "")]
    expected = work(opened(tmp_path / "alone", sampler="tpe"), bowl, N, enqueue=[WARM_START])
    assert points(work(opened(tmp_path, sampler="tpe"), bowl, N)) == points(expected)
