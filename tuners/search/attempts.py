"""The work of a study: the trials asked for, by index, and the attempts at each.

A study of N trials has the indices 0 to N - 1; an attempt at one is a trial of Optuna's, with a number. An index is
finished once an attempt is COMPLETE or PRUNED; one whose attempts have all FAILed (their workers died or were
stopped) is open again. So what is left to do is read off the trials, and nothing has to be put back into a queue by a
worker that may die before it does so.

Should two attempts at an index be alive (the lock under which indices are taken can be lost with a database), the one
with the lowest number stays; numbers are given in the order of appearance, so all workers agree which it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

INDEX = "slot"  # the attribute's name in studies that are stored
WORKER = "worker"
ENDED = "ended"  # why a trial FAILed; of one whose worker's heart stopped beating the reason is missing
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
        """The waiting trial of a worker that died before starting it."""
        return self.live[0] if self.live and self.live[0].state.name == "WAITING" else None

    @property
    def open(self) -> bool:
        return self.finished is None and (not self.live or self.waiting is not None)

    @property
    def failed(self) -> list[FrozenTrial]:
        return [trial for trial in self.trials if trial.state.name == "FAIL"]

    @property
    def deaths(self) -> int:
        """Number of workers that died while running it."""
        return sum(trial.user_attrs.get(ENDED, DIED) == DIED for trial in self.failed)

    def redundant(self, number: int) -> bool:
        """Whether another attempt makes that of this number unnecessary."""
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
    """Which worker ran a trial: HOST-PROCESS-RANDOM."""
    return str(trial.user_attrs.get(WORKER, "unknown"))


def finished_trials(attempts: Iterable[Attempts]) -> list[FrozenTrial]:
    """The finished attempt of each index that has one, in the order of indices."""
    return [trial for of_index in attempts if (trial := of_index.finished) is not None]
