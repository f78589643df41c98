"""Every trial runs once, whichever workers are killed; and a study has the same trials, however often it is stopped."""

import os

import pytest

pytest.importorskip("optuna")
pytest.importorskip("cmaes")

import optuna
from optuna.trial import TrialState, create_trial

from servegym.errors import ServegymError, StorageError, WorkError
from servegym.tuners.search import workers
from servegym.tuners.search.workers import worker_of
from tests.tuners.search.studies import SAMPLERS, WARM_START, Workers, bowl, opened, points, sampler_of, work

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


def test_first_points_are_first_and_progress_is_reported(tmp_path):
    calls = []
    done = work(opened(tmp_path), bowl, 3, enqueue=[WARM_START, {"x": 0.75}], progress=lambda *it: calls.append(it))
    assert calls == [(0, 3), (1, 3), (2, 3), (3, 3)]
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
    expected = points(work(opened(tmp_path / "whole"), bowl, count, sampler, enqueue=[WARM_START]))
    stopped = tmp_path / "stopped"
    for _ in range(times):
        with pytest.raises(type(end)):
            work(opened(stopped), failing(3, end), count, sampler, enqueue=[WARM_START])
    study = opened(stopped)
    assert points(work(study, bowl, count, sampler, enqueue=[WARM_START])) == expected
    assert states(study).count("FAIL") == times


def test_a_grid_is_its_first_points(tmp_path):
    grid = [{"x": x, "y": y} for x in (0.0, 0.5, 1.0) for y in (0.1, 1.0)]
    with pytest.raises(KeyboardInterrupt):
        work(opened(tmp_path), failing(4, KeyboardInterrupt()), len(grid), enqueue=grid)
    assert [trial.params for trial in work(opened(tmp_path), bowl, len(grid), enqueue=grid)] == grid


def test_a_trial_that_was_drawn_in_part_is_drawn_again_as_a_whole(tmp_path):
    """Optuna's retry callback would keep x and draw y as the first number of the sampler."""
    study = opened(tmp_path)

    def killed(trial):
        trial.suggest_float("x", 0, 1)
        raise StorageError("away")

    with pytest.raises(StorageError):
        work(study, killed, 1)
    assert points(work(opened(tmp_path), bowl, 1)) == points(work(opened(tmp_path / "whole"), bowl, 1))


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


def test_of_two_finished_trials_at_an_index_the_first_counts(tmp_path):
    """As another program may add them; and those of a dashboard's user do not count."""
    study = opened(tmp_path)
    for value, attributes in ((1.0, {}), (2.0, {"slot": 0}), (3.0, {"slot": 0})):
        study.add_trial(create_trial(value=value, user_attrs=attributes))
    assert [trial.number for trial in work(study, bowl, 2)] == [1, 3]


def test_a_waiting_trial_of_a_dead_worker_is_run(tmp_path):
    study = opened(tmp_path)
    study.add_trial(create_trial(state=TrialState.WAITING, user_attrs={"slot": 0}))
    assert points(work(study, bowl, 2)) == points(work(opened(tmp_path / "alone"), bowl, 2))
    assert states(study) == ["COMPLETE"] * 2


@pytest.mark.parametrize("state", [TrialState.RUNNING, TrialState.COMPLETE])
def test_a_trial_that_another_worker_has_meanwhile_is_not_taken(tmp_path, monkeypatch, state):
    """As when a database is restarted between looking for a trial and taking it, and others are faster."""
    study = opened(tmp_path)
    late = workers.Worker(study, study._storage, "late", 1, sampler_of)
    made = late._new_trial

    def taken_meanwhile(index, failed):
        trial_id = made(index, failed)
        for change in (TrialState.RUNNING, state):
            study._storage.set_trial_state_values(trial_id, change, [1.0] if change.is_finished() else None)
        return trial_id

    monkeypatch.setattr(late, "_new_trial", taken_meanwhile)
    if state.is_finished():
        assert late.take()[0] is None
    else:
        assert late.take()[0].number == 0  # it repeats a call whose answer was lost
    assert states(study) == [state.name]


def test_workers_that_die_of_a_trial_are_not_replaced_for_ever(tmp_path):
    for call in (1, 0):
        with pytest.raises(StorageError, match="away"):
            work(opened(tmp_path), failing(call, StorageError("away")), 3)
    with pytest.raises(WorkError, match=r"2 workers died of trial 1 \(numbers 1, 2 in the study\), at \{'x': "):
        work(opened(tmp_path), bowl, 3, retries=1)
    assert len(work(opened(tmp_path), bowl, 3, retries=2)) == 3


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
    expected = work(opened(tmp_path / "alone"), bowl, N, "tpe", enqueue=[WARM_START])
    assert points(work(opened(tmp_path), bowl, N)) == points(expected)
