"""The scaler target-utilisation, written from docs/systems/target_utilisation.md."""

from math import ceil

from .requests import Request
from .scalers import Change, Scaler
from .snapshots import EngineSnapshot


class TargetUtilisation(Scaler):
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
        for v in self.snapshots:
            tier, closed = self.changes[v.index]
            if tier is None or (closed and not v.here):
                self.changes[v.index] = (None, True)
        return self.changes

    def scale(self, role: str, now_s: float) -> None:
        mine = [v for v in self.snapshots if v.role == role]
        current = len(self.in_use(role))
        total = sum(map(len, self.lines)) + sum(v.requests for v in self.in_use(role))
        if role == "decode":
            total += sum(v.requests for v in self.in_use("prefill"))
        ratio = total / self.target
        count = current if abs(ratio - current) <= self.tolerance * current else ceil(ratio)
        count = min(max(count, self.least), self.most)
        self.counts[role].append((now_s, count))
        lately = max(number for time_s, number in self.counts[role] if now_s - time_s <= self.window_s)
        for _ in range(count - current):
            closed = [v for v in mine if v.up and self.is_closed(v) and (v.pending or v.off)]
            pooled = [v for v in mine if v.up and self.changes[v.index][0] is None]
            if closed:
                self.changes[closed[0].index] = (self.changes[closed[0].index][0], False)
            elif pooled:
                self.changes[pooled[0].index] = (0, False)
        for _ in range(current - lately):
            least = min(self.in_use(role), key=lambda v: (v.requests, -v.index))
            self.changes[least.index] = (self.changes[least.index][0], True)

    def in_use(self, role: str) -> list[EngineSnapshot]:
        return [v for v in self.snapshots if v.role == role and v.up and self.is_open(v)]

    def is_open(self, v: EngineSnapshot) -> bool:
        tier, closed = self.changes[v.index]
        return tier is not None and not closed and (v.off or not v.closed)

    def is_closed(self, v: EngineSnapshot) -> bool:
        tier, closed = self.changes[v.index]
        return tier is not None and closed
