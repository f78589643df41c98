"""Workers: any number of processes that run the trials of one study, each exactly once.

A worker takes an index (see `attempts`) by making a trial for it, under a lock, and runs it. If it dies, another or a
later worker marks its trial as FAILed, which opens the index again. A worker that wrongly counted as dead finds its
trial FAILed, drops the result and continues.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from servegym.errors import StorageError, WorkError
from servegym.tuners.search.attempts import (
    DIED,
    ENDED,
    INDEX,
    WORKER,
    Attempts,
    attempts_of,
    finished_trials,
    worker_of,
)
from servegym.tuners.search.storage import Shared, quiet, shared

Objective = Callable[[Trial], "float | Sequence[float]"]
Progress = Callable[[int, int], None]

POLL_S = 0.5  # how often a worker checks whether an index is open or the others are done
REAP_S = 5.0  # how often a busy worker checks for dead ones
SUPERFLUOUS = "its index has another trial"


@dataclasses.dataclass(frozen=True)
class Claim:
    """An index that this worker has taken, and the trial that stands for it."""

    index: int
    trial_id: int
    number: int


class Worker:
    """One call of `work`."""

    def __init__(
        self, study: Study, objective: Objective, trials: int, enqueue: Sequence[Mapping[str, Any]], retries: int
    ) -> None:
        self.study = study
        self.objective = objective
        self.trials = trials
        self.enqueue = enqueue
        self.retries = retries
        self.raw: BaseStorage = study._storage  # private, but a study has no other access to its storage
        self.storage: Shared = shared(self.raw)
        self.study_id = self.raw.get_study_id_from_name(study.study_name)
        self.unheard: dict[str, float] = {}  # worker of which nothing is known -> time since when, s

    def run(self, progress: Progress) -> list[FrozenTrial]:
        with quiet(), self.storage.presence.enter() as name:
            try:
                return self._run(name, progress)
            except StorageError:
                raise
            except KeyboardInterrupt:
                self.leave(name, "interrupted")
                raise
            except BaseException as error:
                self.leave(name, f"{type(error).__name__}: {error}")
                raise

    def _run(self, name: str, progress: Progress) -> list[FrozenTrial]:
        reported = -1
        reap_at_s = -math.inf
        while True:
            if time.monotonic() >= reap_at_s:
                self.reap()
                reap_at_s = time.monotonic() + REAP_S
            claim, attempts = self.claim(name)
            finished = finished_trials(attempts)
            if len(finished) != reported:
                reported = len(finished)
                progress(reported, self.trials)
            if claim is not None:
                self.do(claim)
            elif reported == self.trials:
                return finished
            else:
                time.sleep(POLL_S)
                reap_at_s = -math.inf

    def claim(self, name: str) -> tuple[Claim | None, list[Attempts]]:
        """Take the first open index. Returns it (None: all are finished or taken), and the attempts before."""
        with self.storage.exclusive():
            attempts = self._attempts()
            opened = next((index for index, one in enumerate(attempts) if one.open), None)
            if opened is None:
                return None, attempts
            self._check_deaths(opened, attempts[opened])
            trial_id, number = self._trial_for(opened, attempts[opened])
            try:
                self.raw.set_trial_user_attr(trial_id, WORKER, name)
                self.storage.beat(trial_id)  # before it runs: a running trial without a heartbeat would run for ever
                taken = self.raw.set_trial_state_values(trial_id, TrialState.RUNNING)
            except UpdateFinishedTrialError:
                return None, attempts  # another had it, and is done with it: the lock was lost
            if not taken:
                trial = self.raw.get_trial(trial_id)
                if worker_of(trial) != name or trial.state != TrialState.RUNNING:
                    return None, attempts  # another has it: the lock was lost
            return Claim(opened, trial_id, number), attempts

    def do(self, claim: Claim) -> None:
        """Run a trial to its end; do nothing if its index has another one."""
        if self._attempts()[claim.index].redundant(claim.number):
            self._fail(claim.trial_id, SUPERFLUOUS)
            return
        study = optuna.load_study(  # a new one, since a study keeps the trials that it has seen
            study_name=self.study.study_name, storage=self.raw, sampler=self.study.sampler, pruner=self.study.pruner
        )
        try:
            with self._beating(claim.trial_id):
                trial = Trial(study, claim.trial_id)
                values: float | Sequence[float] | None
                try:
                    values, state = self.objective(trial), TrialState.COMPLETE
                except optuna.TrialPruned:
                    values, state = None, TrialState.PRUNED
                self._tell(study, trial, claim, values, state)
        except UpdateFinishedTrialError:
            pass  # was taken for dead: another worker has the index by now

    def _tell(
        self, study: Study, trial: Trial, claim: Claim, values: float | Sequence[float] | None, state: TrialState
    ) -> None:
        if self.raw.get_trial(claim.trial_id).state.is_finished():
            raise UpdateFinishedTrialError
        try:
            study.tell(trial, values, state)
        except (StorageError, UpdateFinishedTrialError):
            raise
        except (TypeError, ValueError) as error:
            if self.raw.get_trial(claim.trial_id).state.is_finished():
                raise UpdateFinishedTrialError from None
            raise WorkError(f"trial {claim.index} gave {values!r} at {trial.params}: {error}") from None

    def reap(self) -> None:
        """Fail the running trials of dead workers, which opens their indices."""
        for attempts in self._attempts():
            for trial in attempts.live:
                if trial.state == TrialState.RUNNING and self._dead(worker_of(trial)):
                    self._fail(self._id(trial), DIED)
                    self.storage.presence.forget(worker_of(trial))
                elif trial.state == TrialState.WAITING and attempts.redundant(trial.number):
                    self._fail(self._id(trial), SUPERFLUOUS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            optuna.storages.fail_stale_trials(self.study)  # of databases: those without a heartbeat

    def _dead(self, worker: str) -> bool:
        alive = self.storage.presence.alive(worker)
        if alive is not None:
            return not alive
        if self.storage.beats_every_s is not None:
            return False  # its heartbeat says so, or not
        if worker not in self.unheard:
            self.unheard[worker] = time.monotonic()
            warnings.warn(
                f"nothing is known here of the worker {worker}, which has a trial: "
                f"taken for dead after {self.storage.grace_s:g} s",
                stacklevel=2,
            )
        return time.monotonic() - self.unheard[worker] > self.storage.grace_s

    def leave(self, name: str, why: str) -> None:
        """Open this worker's index again, if the storage is reachable."""
        with contextlib.suppress(StorageError), self.storage.impatient():
            for attempts in self._attempts():
                for trial in attempts.live:
                    if worker_of(trial) == name:
                        self._fail(self._id(trial), why)

    def _trial_for(self, index: int, attempts: Attempts) -> tuple[int, int]:
        if attempts.waiting is not None:
            return self._id(attempts.waiting), attempts.waiting.number
        system: dict[str, Any] = {}
        if index < len(self.enqueue):
            system["fixed_params"] = dict(self.enqueue[index])  # as Study.enqueue_trial does
        if attempts.failed:  # as Optuna's own retries do: RetryHeartbeatStaleTrialCallback.retry_history reads it
            system["failed_trial"] = attempts.failed[0].number
            system["retry_history"] = [trial.number for trial in attempts.failed]
        template = create_trial(state=TrialState.WAITING, system_attrs=system, user_attrs={INDEX: index})
        trial_id = self.raw.create_new_trial(self.study_id, template)
        return trial_id, self.raw.get_trial(trial_id).number

    def _check_deaths(self, index: int, attempts: Attempts) -> None:
        if attempts.deaths > self.retries:
            numbers = ", ".join(str(trial.number) for trial in attempts.failed)
            parameters = next((trial.params for trial in reversed(attempts.failed) if trial.params), {})
            raise WorkError(
                f"{attempts.deaths} workers died of trial {index} (numbers {numbers} in the study), at {parameters}: "
                "find out what ends them (memory?) before you continue"
            )

    def _fail(self, trial_id: int, why: str) -> None:
        with contextlib.suppress(UpdateFinishedTrialError):  # another worker did it
            self.raw.set_trial_user_attr(trial_id, ENDED, why)
            self.raw.set_trial_state_values(trial_id, TrialState.FAIL)

    @contextlib.contextmanager
    def _beating(self, trial_id: int) -> Iterator[None]:
        """Send heartbeats regularly."""
        every_s = self.storage.beats_every_s
        if every_s is None:
            yield
            return
        stop = threading.Event()

        def beat() -> None:
            with contextlib.suppress(StorageError):  # the worker's own next call says so
                while not stop.wait(every_s):
                    self.storage.beat(trial_id)

        thread = threading.Thread(target=beat, name=f"heartbeat of trial {trial_id}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()

    def _attempts(self) -> list[Attempts]:
        return attempts_of(self.raw.get_all_trials(self.study_id, deepcopy=False), self.trials)

    def _id(self, trial: FrozenTrial) -> int:
        return self.raw.get_trial_id_from_study_id_trial_number(self.study_id, trial.number)


RETRIES = 3


def work(
    study: Study,
    objective: Objective,
    trials: int,
    *,
    enqueue: Sequence[Mapping[str, Any]] = (),
    progress: Progress | None = None,
    retries: int = RETRIES,
) -> list[FrozenTrial]:
    """Run trials of a study until `trials` of them are finished, along with the other workers.

    study: of `open_study`. objective: as Optuna's; TrialPruned finishes a trial, any other exception ends this worker
    (and leaves the trial's index open). enqueue: fixed parameters of the first trials; missing ones are drawn.
    progress: called with (finished, trials) at the start and whenever any worker has finished more.
    retries: how many more workers may die of a trial after the first.

    Returns the finished trials, one for each index, in order. (The study itself has failed trials too.) `worker_of`
    tells which worker ran one.

    Raises WorkError for a trial whose objective is not a number or whose workers die; StorageError if the storage is
    lost: finished trials are kept, and another call continues.
    """
    return Worker(study, objective, trials, enqueue, retries).run(progress or (lambda finished, trials: None))
