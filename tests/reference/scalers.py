"""What scalers of the reference simulator have in common."""

from .requests import Request
from .views import View

Change = tuple[int | None, bool]  # of an engine: its tier (None: the common pool), and whether it is closed


class Scaler:
    interval_s: float
    lines: list[list[Request]]  # as for routers
    tiers: list[float]

    def prepare(self, requests: list[Request], views: list[View]) -> None:
        self.everyone, self.views = requests, views

    def decide(self, now_s: float, now: list[Change]) -> list[Change]:
        """For each engine; `now`: what it is."""
        raise NotImplementedError
