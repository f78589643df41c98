"""The log of a run of the reference simulator."""

from dataclasses import dataclass, field

from .adapters import Adapters
from .memory import Memory


@dataclass
class Iteration:
    engine: int
    start_s: float
    end_s: float  # as it would be if it were not suspended (again)
    batch: list[tuple[int, int]]  # (request, tokens) in batch order
    evicted: list[int]  # requests in order of eviction, each time it happened
    saved: list[int]  # tokens of each of them that were saved
    loaded: list[tuple[int, int]]  # (request, tokens) in order
    free_blocks: int  # after the batch was formed
    free_host_blocks: int
    moving_s: float  # of its duration
    free_blocks_at_end: int | None = None  # before any request finishes or leaves; None: it has not ended


@dataclass
class Move:
    """A request goes to an engine, leaves it or (its KV) arrives; or something happens to an engine."""

    # arrival, departed, received, recalled, held, refused; suspended, resumed, failed, returned, drained, moved, off,
    # started, role
    kind: str
    time_s: float
    request: int  # -1: the engine as a whole
    engine: int  # -1: none
    blocks: int = 0  # it had there when it departed


@dataclass
class EngineLog:
    """The log of an engine."""

    busy_s: float
    rounds: int
    suspensions: int
    blocking_s: list[float]
    failures: int
    recalled: int
    lost_tokens: int
    service_s: float
    serving: bool  # at the end
    memory: Memory | None = None  # that it has, with counts of what was found there
    adapters: Adapters | None = None  # with counts of what was loaded


@dataclass
class Log:
    """The log of a run. Lists are by request index."""

    iterations: list[Iteration]
    emission_s: list[list[float]]  # token by token
    finish_s: list[float | None]  # None: not finished
    gains: list[float]
    gain: float
    evictions: int
    busy_s: list[float]  # of each engine
    moves: list[Move]
    end_s: float = 0.0  # the last instant
    engines: list[EngineLog] = field(default_factory=list)
    cached_tokens: list[int] = field(default_factory=list)
    session_tokens: list[int] = field(default_factory=list)
    session_gains: list[float] = field(default_factory=list)  # `gains` are by TDG
    reroutes: list[int] = field(default_factory=list)
    client_s: list[list[float]] = field(default_factory=list)  # token by token: when the client has it
    ready_s: list[float | None] = field(default_factory=list)  # None: not sent
    refused_s: list[float | None] = field(default_factory=list)  # None: not refused


class StuckError(Exception):
    """Requests are held at the router, and nothing but the router keeps them from running."""
