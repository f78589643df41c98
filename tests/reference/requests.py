"""A request of the reference simulator, with the names of docs/simulation.md."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engines import Engine
    from .memory import Block
    from .work import Work

INF = math.inf


@dataclass(eq=False, kw_only=True)
class Request:
    index: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    first_token_gain: float  # of token 1
    decode_token_gain: float  # of each later token
    priority: int = 0  # lower is more important
    weight: float = 1.0
    ttft_slo_s: float = 1.0
    tpot_slo_s: float = 0.05
    ttlt_slo_s: float = INF
    predicted_output_tokens: float = math.nan  # nan: unknown
    client: int = 0
    application: int = 0
    urgency: int = 0
    ready_s: float = math.nan  # when it joins its engine's queue; nan: at its arrival
    comes_s: float = math.nan  # when it could be sent, if it follows none: when it arrives, or has been predicted
    after: int = -1  # the request that it follows
    think_s: float = 0.0  # after the end of that
    session: int = -1  # its first request; -1: it is in none
    session_tokens: int = 0  # computed for those that it follows
    beginning: int | None = None  # the first chunk of its prompt
    chunks: list[int] = field(default_factory=list)  # of its prompt (and answer), full ones, by number
    adapter: int = 0  # a LoRA adapter; 0: the model itself
    tier: int = 0

    emitted: int = 0  # or under way, at an engine that schedules asynchronously
    under_way: int = 0
    in_flight: int = 0  # tokens among the computed ones of a batch that still runs
    computed: int = 0
    kept: int = 0
    borrowed: bool = False  # what is kept is in a prefix store
    blocks: int = 0
    table: "list[Block]" = field(default_factory=list)  # those blocks, at an engine that caches prefixes
    found: "list[Block]" = field(default_factory=list)  # while it is considered for admission there
    found_tokens: int = 0
    stored_blocks: int = 0  # that would be loaded from host memory, behind those found
    stored_tokens: int = 0
    admitted: int = 0  # number of its last admission, counted over the run; 0: never
    evicted: int = 0  # number of its last eviction, counted over the run; 0: never
    emission_s: list[float] = field(default_factory=list)  # when each token came out of an engine
    set_out_s: list[float] = field(default_factory=list)  # and set out for the client
    finish_s: float | None = None
    refused_s: float | None = None  # when the router refused it, or a request that it follows
    gain: float = 0.0
    task: "Work | None" = None  # it is a member of
    kv_at: "Engine | None" = None  # the prefill engine that its KV is to leave
    decode_engine: int | None = None  # that the router has named
    sent_tokens: int = 0  # emitted when it was last sent for prefill
    cached_tokens: int = 0  # taken from prefix stores and caches
    reroutes: int = 0  # times it was taken back

    def __post_init__(self) -> None:
        if math.isnan(self.ready_s):
            self.ready_s = self.arrival_s
        self.comes_s = self.ready_s

    @property
    def ended(self) -> bool:
        return self.finish_s is not None or self.refused_s is not None

    @property
    def context(self) -> int:
        return self.prompt_tokens + self.emitted

    @property
    def cached(self) -> int:
        return self.computed + max(self.kept, self.found_tokens + self.stored_tokens)

    @property
    def to_load(self) -> int:
        return max(self.kept - self.found_tokens, self.stored_tokens, 0)

    @property
    def shared_blocks(self) -> int:
        """Count the found blocks that others hold."""
        return sum(block.references > 0 for block in self.found)

    @property
    def left(self) -> int:
        return self.context - self.cached

    @property
    def decoding(self) -> bool:
        return self.emitted > 0 and self.left == 1

    @property
    def running(self) -> bool:
        return self.blocks > 0

    @property
    def prefilled(self) -> bool:
        """Return whether it has emitted a token since it was last sent for prefill."""
        return self.emitted - self.under_way > self.sent_tokens

    @property
    def interactive(self) -> bool:
        return self.ttlt_slo_s == INF

    def deadline(self, token: int) -> float:
        if not self.interactive:
            return self.arrival_s + self.ttlt_slo_s
        return self.arrival_s + self.ttft_slo_s + (token - 1) * self.tpot_slo_s

    def remain(self, now_s: float) -> float:
        return self.deadline(self.emitted + 1) - now_s

    def weight_of(self, token: int) -> float:
        return self.first_token_gain if token == 1 else self.decode_token_gain

    def shape(self, tokens: int) -> tuple[int, int, bool]:
        """Return a chunk of it as a latency model takes it; see latency.py."""
        return tokens, self.cached, self.decoding
