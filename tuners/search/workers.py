"""Workers: any number of processes that do the trials of one study, each exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial

from servegym.tuners.search.worker import Objective, Progress, Worker

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
    (and leaves the trial's index open). enqueue: parameters of the first trials (fixed; those that one leaves out are
    drawn). progress: told (finished, trials) at the start and whenever more are finished, by any worker.
    retries: how many workers may die of one trial, besides the first.

    Returns the finished trials, one for each index, in order: what results are made of. (The study itself
    has failed trials too.) `worker_of` says which worker ran one.

    Raises WorkError for a trial whose objective is not a number or of which workers die; StorageError where the storage
    is lost: finished trials are kept, calling again goes on.
    """
    return Worker(study, objective, trials, enqueue, retries).run(progress or (lambda finished, trials: None))
