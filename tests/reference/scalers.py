"""The interface and helpers that scalers of the reference simulator share."""

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
        """Decide for each engine. now: its present state."""
        raise NotImplementedError

    def decide_roles(self, now_s: float, now: list[str]) -> list[str]:
        """Decide each engine's role, after `decide`. now: the role that it has, or will have."""
        return now


class ResizingScaler(Scaler):
    """A scaler that wants a number of engines. changes: its decisions so far."""

    changes: list[Change]

    def resize(self, role: str, least: int, most: int) -> None:
        """Apply steps 3 and 4 of target-utilisation."""
        mine = [v for v in self.snapshots if v.role == role]
        current = len(self.in_use(role))
        for _ in range(least - current):
            closed = [v for v in mine if v.up and self.is_closed(v) and (v.pending or v.off)]
            pooled = [v for v in mine if v.up and self.changes[v.index][0] is None]
            if closed:
                self.changes[closed[0].index] = (self.changes[closed[0].index][0], False)
            elif pooled:
                self.changes[pooled[0].index] = (0, False)
        for _ in range(current - most):
            fewest = min(self.in_use(role), key=lambda v: (v.requests, -v.index))
            self.changes[fewest.index] = (self.changes[fewest.index][0], True)

    def send_off(self) -> None:
        for v in self.snapshots:
            tier, closed = self.changes[v.index]
            if tier is None or (closed and not v.here):
                self.changes[v.index] = (None, True)

    def in_use(self, role: str) -> list[EngineSnapshot]:
        return [v for v in self.snapshots if v.role == role and v.up and self.is_open(v)]

    def is_open(self, v: EngineSnapshot) -> bool:
        tier, closed = self.changes[v.index]
        return tier is not None and not closed and (v.off or not v.closed)

    def is_closed(self, v: EngineSnapshot) -> bool:
        tier, closed = self.changes[v.index]
        return tier is not None and closed
