"""What scalers of the reference simulator have in common."""

from .requests import Request
from .snapshots import EngineSnapshot

Change = tuple[int | None, bool]  # of an engine: its tier (None: the common pool), and whether it is closed


class Scaler:
    interval_s: float
    lines: list[list[Request]]  # as for routers
    tiers: list[float]

    def prepare(self, requests: list[Request], snapshots: list[EngineSnapshot]) -> None:
        self.everyone, self.snapshots = requests, snapshots

    def decide(self, now_s: float, now: list[Change]) -> list[Change]:
        """For each engine; `now`: what it is."""
        raise NotImplementedError
