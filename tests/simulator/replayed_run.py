"""What a replayed timeline comes to: batches, and figures of each request and engine."""

import dataclasses


@dataclasses.dataclass
class Entry:
    """One request of a batch, as it stood when the batch was formed."""

    request: int
    tokens: int
    computed: int
    left: int
    decoding: bool
    was_running: bool
    loaded: int = 0  # tokens of `computed` that came from host memory for this batch


@dataclasses.dataclass
class Batch:
    engine: int
    start_s: float
    estimate_s: float
    evicted: list[int]
    moving_s: float = 0.0
    entries: list[Entry] = dataclasses.field(default_factory=list)
    running: int = 0  # once it is formed
    end_s: float | None = None  # None: still running, suspended, or lost
    resumed_s: float = 0.0  # when it was started or resumed last
    ran_s: float = 0.0  # up to its last suspension; at the end, in all
    lost: bool = False  # its requests were taken back before its end

    @property
    def tokens(self) -> int:
        return sum(entry.tokens for entry in self.entries)

    @property
    def requests(self) -> list[int]:
        return [entry.request for entry in self.entries]


@dataclasses.dataclass
class Replay:
    """What a timeline says happened. Lists go by request, those named `_at` by engine."""

    batches: list[Batch]
    emission_s: list[list[float]]
    gains: list[list[float]]
    finished: list[bool]
    scheduled_tokens: list[int]
    lost_tokens: list[int]  # computed or kept, and then evicted or taken back
    unfinished_tokens: list[int]  # scheduled in iterations that were lost
    borrowed_tokens: list[int]  # loaded from a prefix store
    cached_tokens: list[int]  # found there, and at first admissions in a prefix cache
    found_tokens: list[int]  # in a prefix cache, at all admissions
    evictions: list[int]
    reroutes: list[int]
    route: list[list[int]]  # engines a request was at, in order
    holds: int
    emitted_at: list[int]
    evictions_at: list[int]
    recalled_at: list[int]
    lost_at: list[int]  # tokens lost by being taken back
    failures_at: list[int]
    suspensions_at: list[int]
    moves_at: list[int]  # out of the common pool, or off
    busy_at: list[float]
    up_at: list[float]  # time up to the last line; and of that, in a tier
    in_tier_at: list[float]
