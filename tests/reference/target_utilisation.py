"""The scaler target-utilisation, written from docs/systems/target_utilisation.md."""

from math import ceil

from .requests import Request
from .scalers import Change, ResizingScaler
from .snapshots import EngineSnapshot


class TargetUtilisation(ResizingScaler):
    def __init__(
        self,
        interval_s: float = 15.0,
        most_requests: float = 100.0,
        utilisation: float = 0.7,
        tolerance: float = 0.1,
        window_s: float = 300.0,
        least_engines: int = 0,
        most_engines: int = 4096,
    ) -> None:
        self.interval_s, self.window_s, self.tolerance = interval_s, window_s, tolerance
        self.target, self.least, self.most = most_requests * utilisation, least_engines, most_engines

    def prepare(self, requests: list[Request], snapshots: list[EngineSnapshot]) -> None:
        super().prepare(requests, snapshots)
        every = {role: sum(v.role == role for v in snapshots) for role in ("both", "prefill", "decode")}
        self.counts = {role: [(0.0, number)] for role, number in every.items()}  # at first all were wanted

    def decide(self, now_s: float, now: list[Change]) -> list[Change]:
        self.changes = list(now)
        for role in self.counts:
            self.scale(role, now_s)
        self.send_off()
        return self.changes

    def scale(self, role: str, now_s: float) -> None:
        current = len(self.in_use(role))
        total = sum(map(len, self.lines)) + sum(v.requests for v in self.in_use(role))
        if role == "decode":
            total += sum(v.requests for v in self.in_use("prefill"))
        ratio = total / self.target
        count = current if abs(ratio - current) <= self.tolerance * current else ceil(ratio)
        count = min(max(count, self.least), self.most)
        self.counts[role].append((now_s, count))
        self.resize(role, count, max(number for time_s, number in self.counts[role] if now_s - time_s <= self.window_s))
