"""The work of a study: one slot for each trial asked for, and which trial stands for which slot.

A study of N trials has slots 0 to N - 1. A slot is finished once a trial of it is COMPLETE or PRUNED; one whose trials
have all FAILed (their workers died or were stopped) is open again. So what is left to do is read off the trials, and
nothing has to be put back into a queue by a worker that may die before it does so.

Should two trials of a slot be alive (the lock under which slots are taken can be lost with a database), the one with
the lowest number stays; trials get their numbers in the order in which they appear, so all workers agree which it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

SLOT = "slot"
WORKER = "worker"
ENDED = "ended"  # why a trial FAILed; of one whose worker's heart stopped beating the reason is missing
DIED = "its worker died"


@dataclasses.dataclass
class Slot:
    """The trials of one slot, in the order of their numbers."""

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
        """Whether another trial of the slot makes that of this number unnecessary."""
        return self.finished is not None or bool(self.live and self.live[0].number < number)


def slots_of(trials: Iterable[FrozenTrial], count: int) -> list[Slot]:
    """The slots of a study of `count` trials. Trials of others (a dashboard's user) have none and are left alone."""
    slots = [Slot() for _ in range(count)]
    for trial in sorted(trials, key=lambda trial: trial.number):
        slot = slot_of(trial)
        if slot is not None and 0 <= slot < count:
            slots[slot].trials.append(trial)
    return slots


def slot_of(trial: FrozenTrial) -> int | None:
    slot = trial.user_attrs.get(SLOT)
    return slot if isinstance(slot, int) else None


def worker_of(trial: FrozenTrial) -> str:
    """Which worker ran a trial: HOST-PROCESS-RANDOM."""
    return str(trial.user_attrs.get(WORKER, "unknown"))


def finished_trials(slots: Iterable[Slot]) -> list[FrozenTrial]:
    """The finished trial of each slot that has one, in the order of slots."""
    return [trial for slot in slots if (trial := slot.finished) is not None]
