"""The work of a study: its indices, and the attempts at each.

A study of N trials has the indices 0 to N - 1; an attempt at one is an Optuna trial with a number. An index is finished
once an attempt is COMPLETE or PRUNED, and open if all its attempts have FAILed (their workers died or were stopped). So
the open work follows from the trials, and no worker has to return it to a queue before it dies.

If two attempts at an index run at once (a database can lose the lock under which indices are taken), the one with the
lower number counts; numbers follow the order of creation, so all workers agree on it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

INDEX = "slot"  # name of the trial's attribute in stored studies
WORKER = "worker"
ENDED = "ended"  # attribute: the reason why a trial FAILed; missing if its worker's heartbeat stopped
DIED = "its worker died"


@dataclasses.dataclass
class Attempts:
    """The attempts at one index, in the order of their numbers."""

    trials: list[FrozenTrial] = dataclasses.field(default_factory=list)

    @property
    def finished(self) -> FrozenTrial | None:
        return next((trial for trial in self.trials if trial.state.name in ("COMPLETE", "PRUNED")), None)

    @property
    def live(self) -> list[FrozenTrial]:
        return [trial for trial in self.trials if not trial.state.is_finished()]

    @property
    def waiting(self) -> FrozenTrial | None:
        """The trial in state WAITING of a worker that died before it started the trial."""
        return self.live[0] if self.live and self.live[0].state.name == "WAITING" else None

    @property
    def open(self) -> bool:
        return self.finished is None and (not self.live or self.waiting is not None)

    @property
    def failed(self) -> list[FrozenTrial]:
        return [trial for trial in self.trials if trial.state.name == "FAIL"]

    @property
    def deaths(self) -> int:
        """Number of workers that died while running an attempt."""
        return sum(trial.user_attrs.get(ENDED, DIED) == DIED for trial in self.failed)

    def redundant(self, number: int) -> bool:
        """Whether another attempt makes the one with this number unnecessary."""
        return self.finished is not None or bool(self.live and self.live[0].number < number)


def attempts_of(trials: Iterable[FrozenTrial], count: int) -> list[Attempts]:
    """The attempts at each index of a study of `count` trials. Trials of others (a dashboard's user) have no index."""
    attempts = [Attempts() for _ in range(count)]
    for trial in sorted(trials, key=lambda trial: trial.number):
        index = index_of(trial)
        if index is not None and 0 <= index < count:
            attempts[index].trials.append(trial)
    return attempts


def index_of(trial: FrozenTrial) -> int | None:
    index = trial.user_attrs.get(INDEX)
    return index if isinstance(index, int) else None


def worker_of(trial: FrozenTrial) -> str:
    """Name of the worker that ran a trial: HOST-PROCESS-RANDOM."""
    return str(trial.user_attrs.get(WORKER, "unknown"))


def finished_trials(attempts: Iterable[Attempts]) -> list[FrozenTrial]:
    """The finished attempt of each index that has one, in the order of indices."""
    return [trial for of_index in attempts if (trial := of_index.finished) is not None]
