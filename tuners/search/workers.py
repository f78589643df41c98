"""Workers: any number of processes that run the trials of one study, each trial exactly once.

A study of N trials has the indices 0 to N - 1; an attempt at one is an Optuna trial with a number. A worker takes the
first index without a finished, running or waiting attempt, under a lock, and runs it. If it dies, another or a later
worker marks its attempt as FAILed, which opens the index again. So the open work follows from the trials, and no worker
has to return it to a queue before it dies. A worker that wrongly counted as dead finds its trial FAILed, drops the
result and continues. If a database loses the lock, several workers may make an attempt at an index: the first counts,
and the others FAIL before they run.

Optuna's `Study.optimize`, RetryHeartbeatStaleTrialCallback and MaxTrialsCallback do not do the same: workers that end
together run more than N trials, a trial whose retry could not be added before a second kill is lost, and retries come
after trials that were drawn without their result.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import optuna
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.samplers import BaseSampler
from optuna.storages._heartbeat import get_heartbeat_thread
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from servegym.errors import StorageError, WorkError
from servegym.tuners.search.storage import quiet

if TYPE_CHECKING:
    from servegym.tuners.search.storage import Shared

Objective = Callable[[Trial], "float | Sequence[float]"]
Progress = Callable[[int, int], None]

# Attributes of a trial in stored studies.
INDEX = "slot"
WORKER = "worker"
ENDED = "ended"  # the reason why a trial FAILed; missing if its worker died

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
POLL_S = 0.5  # how often a worker without work checks whether an index is open or the others are done
RETRIES = 3


def index_of(trial: FrozenTrial | Trial) -> int | None:
    """Return the index of an attempt; None for a trial that another program added (a dashboard)."""
    index = trial.user_attrs.get(INDEX)
    return index if isinstance(index, int) else None


def worker_of(trial: FrozenTrial) -> str:
    """Return the name of the worker that ran a trial: HOST-PROCESS-RANDOM."""
    return str(trial.user_attrs.get(WORKER, "unknown"))


def attempts_of(trials: Iterable[FrozenTrial], count: int) -> list[list[FrozenTrial]]:
    """Group trials by index, for a study of `count` trials; each group in the order of their numbers."""
    attempts: list[list[FrozenTrial]] = [[] for _ in range(count)]
    for trial in sorted(trials, key=lambda trial: trial.number):
        index = index_of(trial)
        if index is not None and 0 <= index < count:
            attempts[index].append(trial)
    return attempts


def first_finished(attempts: Iterable[FrozenTrial]) -> FrozenTrial | None:
    """Find the attempt at an index that counts; None if none is finished."""
    return next((trial for trial in attempts if trial.state in FINISHED), None)


def is_open(attempts: Iterable[FrozenTrial]) -> bool:
    """Return whether an index has only failed attempts, or none."""
    return all(trial.state == TrialState.FAIL for trial in attempts)


def comes_first(trial: FrozenTrial, trials: Iterable[FrozenTrial]) -> bool:
    """Return whether all attempts at a trial's index before it have failed."""
    index = index_of(trial)
    earlier = [other for other in trials if other.number < trial.number and index_of(other) == index]
    return index is None or is_open(earlier)


def work(
    study: Study,
    objective: Objective,
    trials: int,
    sampler: Callable[[int], BaseSampler],
    *,
    enqueue: Sequence[Mapping[str, Any]] = (),
    progress: Progress | None = None,
    retries: int = RETRIES,
) -> list[FrozenTrial]:
    """Run trials of a study until `trials` of them are finished, along with the other workers.

    study: of `open_study`. objective: as Optuna's; TrialPruned finishes a trial, any other exception ends this worker
    (and leaves the trial's index open). sampler: makes the sampler of the trial with an index; it must keep all its
    knowledge in the study, as Optuna's TPE, GP, CMA-ES, NSGA-II and random samplers do. enqueue: fixed parameters of
    the first trials; missing ones are drawn.
    progress: called with (finished, trials) at the start and whenever any worker has finished more.
    retries: how many more workers may die of a trial after the first.

    Returns the finished trials, one for each index, in order. (The study itself has failed trials too.) `worker_of`
    tells which worker ran one.

    Raises WorkError for a trial whose objective is not a number or whose workers die; StorageError if the storage is
    lost: finished trials are kept, and another call continues.
    """
    storage: Any = study._storage  # private, but a study has no other access to its storage
    if not hasattr(storage, "presence"):
        raise StorageError(f"a {type(storage).__name__} cannot be shared by workers; use open_storage")
    with quiet(), storage.presence.enter() as name:
        worker = Worker(study, storage, name, trials, sampler, enqueue, retries)
        try:
            return worker.run(objective, progress or (lambda finished, trials: None))
        except StorageError:
            raise
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            worker.leave("interrupted" if interrupted else f"{type(error).__name__}: {error}")
            raise


class Worker:
    """One call of `work`."""

    def __init__(
        self, study: Study, storage: Shared, name: str, trials: int, sampler: Callable[[int], BaseSampler],
        enqueue: Sequence[Mapping[str, Any]] = (), retries: int = RETRIES,
    ) -> None:  # fmt: skip
        self.study = study
        self.storage = storage
        self.name = name
        self.trials = trials
        self.sampler = sampler
        self.enqueue = enqueue
        self.retries = retries

    def run(self, objective: Objective, progress: Progress) -> list[FrozenTrial]:
        """Run open indices until all are finished, by this worker or others; returns the finished trials."""
        reported = -1
        while True:
            trial, finished = self.take()
            if len(finished) != reported:
                reported = len(finished)
                progress(reported, self.trials)
            if trial is not None:
                self.evaluate(trial, objective)
            elif reported == self.trials:
                return finished
            else:
                time.sleep(POLL_S)

    def take(self) -> tuple[FrozenTrial | None, list[FrozenTrial]]:
        """Take the first open index. Returns its trial (None: all are finished or taken), and the finished trials."""
        with self.storage.exclusive():
            self._fail_dead()
            trials = self._trials()
            attempts = attempts_of(trials, self.trials)
            finished = [trial for group in attempts if (trial := first_finished(group)) is not None]
            waiting = next((trial for trial in trials if trial.state == TrialState.WAITING), None)
            if waiting is None:
                opened = [index for index, group in enumerate(attempts) if is_open(group)]
                if not opened:
                    return None, finished
                trial_id = self._new_trial(opened[0], attempts[opened[0]])
            else:  # of a worker that died before it started the trial
                trial_id = waiting._trial_id
            with contextlib.suppress(UpdateFinishedTrialError):
                if waiting is not None:
                    self.storage.set_trial_user_attr(trial_id, WORKER, self.name)
                self.storage.set_trial_state_values(trial_id, TrialState.RUNNING)
            trials = self._trials()
            trial = next(trial for trial in trials if trial._trial_id == trial_id)
            if trial.state != TrialState.RUNNING or worker_of(trial) != self.name:
                return None, finished  # another worker has it: a database lost the lock
            if not comes_first(trial, trials):  # the lock was lost; or an answer, and Optuna made the trial once more
                self._fail(trial_id, "another attempt came first")
                return None, finished
            return trial, finished

    def _new_trial(self, index: int, failed: Sequence[FrozenTrial]) -> int:
        """Make a WAITING trial of an index; returns its id. Raises WorkError if too many workers died of it."""
        dead = [trial for trial in failed if ENDED not in trial.user_attrs]
        if len(dead) > self.retries:
            numbers = ", ".join(str(trial.number) for trial in failed)
            parameters = next((trial.params for trial in reversed(failed) if trial.params), {})
            raise WorkError(
                f"{len(dead)} workers died of trial {index} (numbers {numbers} in the study), at {parameters}: find "
                "out what ends them (memory?) before you continue"
            )
        fixed = {"fixed_params": dict(self.enqueue[index])} if index < len(self.enqueue) else {}  # as enqueue_trial
        attributes = {INDEX: index, WORKER: self.name}
        template = create_trial(state=TrialState.WAITING, system_attrs=fixed, user_attrs=attributes)
        return self.storage.create_new_trial(self.study._study_id, template)

    def evaluate(self, taken: FrozenTrial, objective: Objective) -> None:
        """Run a trial to its end. Raises WorkError for an objective that is not a number."""
        index = index_of(taken)
        study = optuna.load_study(  # a new one, since a study keeps the trials that it has seen
            study_name=self.study.study_name, storage=self.storage, pruner=self.study.pruner,
            sampler=self.sampler(taken.number if index is None else index),
        )  # fmt: skip
        values: float | Sequence[float] | None
        with contextlib.suppress(UpdateFinishedTrialError):  # counted as dead: another worker has the index by now
            with get_heartbeat_thread(taken._trial_id, self.storage):
                trial = Trial(study, taken._trial_id)
                try:
                    values, state = objective(trial), TrialState.COMPLETE
                except optuna.TrialPruned:
                    values, state = None, TrialState.PRUNED
            try:
                study.tell(trial, values, state, skip_if_finished=True)
            except (TypeError, ValueError) as error:
                raise WorkError(f"trial {index} gave {values!r} at {trial.params}: {error}") from None

    def leave(self, why: str) -> None:
        """Open this worker's index again, if the storage is reachable."""
        with contextlib.suppress(StorageError):
            for trial in self._trials():
                if trial.state == TrialState.RUNNING and worker_of(trial) == self.name:
                    self._fail(trial._trial_id, why)

    def _fail_dead(self) -> None:
        """Fail the running trials of dead workers, which opens their indices."""
        for trial in self._trials():
            if trial.state == TrialState.RUNNING and self.storage.is_dead(worker := worker_of(trial)):
                self._fail(trial._trial_id)
                self.storage.presence.forget(worker)
        if self.storage.heartbeats_tell:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                optuna.storages.fail_stale_trials(self.study)  # of a database: those without a heartbeat

    def _fail(self, trial_id: int, why: str | None = None) -> None:
        with contextlib.suppress(UpdateFinishedTrialError):  # another worker did it
            if why is not None:
                self.storage.set_trial_user_attr(trial_id, ENDED, why)
            self.storage.set_trial_state_values(trial_id, TrialState.FAIL)

    def _trials(self) -> list[FrozenTrial]:
        return self.storage.get_all_trials(self.study._study_id, deepcopy=False)
