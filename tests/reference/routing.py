"""The interface and helpers that routers of the reference simulator share."""

from collections.abc import Callable
from dataclasses import dataclass

from .requests import Request
from .snapshots import EngineSnapshot


@dataclass
class Route:
    """A router's decision."""

    engine: int | None  # None: the request is held
    decode_engine: int | None = None
    line: int | None = None  # where it is held; None: in the line of its tier
    refused: bool = False  # the request is not served
    tier: int | None = None  # into which the engine is moved first; None: it stays where it is


def smallest(snapshots: list[EngineSnapshot], key: Callable[[EngineSnapshot], float]) -> EngineSnapshot:
    """Return the smallest. Ties: the engine sent a request longest ago, then the lower index."""
    return min(snapshots, key=lambda snapshot: (key(snapshot), snapshot.sent, snapshot.index))


class Router:
    lines: list[list[Request]]  # requests held, one for each tier and one for best effort
    tiers: list[float]  # TPOT SLOs

    def prepare(self, requests: list[Request], snapshots: list[EngineSnapshot]) -> None:
        """Prepare for a run with the whole workload, for defaults, and all engines as the router will know them."""
        self.everyone, self.snapshots = requests, snapshots

    def route(self, r: Request, taking: list[EngineSnapshot], now_s: float) -> Route:
        """Route r. taking: the engines that take it, in order; at least one."""
        engine = self.choose(r, taking, now_s).index
        return Route(engine, self.decode_engine(r))

    def choose(self, r: Request, snapshots: list[EngineSnapshot], now_s: float) -> EngineSnapshot:
        """Choose one of `snapshots`, the engines that take r, in order."""
        raise NotImplementedError

    def decode_engine(self, r: Request) -> int | None:
        """Return where r, just sent for prefill, goes with its first token; None: the router is asked then."""
        return None
