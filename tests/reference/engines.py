"""An engine of the reference simulator: its queue, its memories and what has happened there."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .disturbances import Corrector
from .latency import Latency
from .requests import INF, Request

if TYPE_CHECKING:
    from .packer import Formation, Scheduler

Batch = list[tuple[Request, int]]  # requests with their chunks, in batch order


@dataclass
class HostMemory:
    """Of each engine. Without blocks there is none."""

    blocks: int = 0
    load_s_per_token: float = 0.0
    save_s_per_token: float = 0.0


@dataclass
class Group:
    """Running statistics of a client or an application at one engine."""

    admitted_prompt_tokens: int = 0
    emitted_tokens: int = 0
    outputs: list[int] = field(default_factory=list)  # output tokens of each finished request

    @property
    def finished(self) -> int:
        return len(self.outputs)

    @property
    def mean_output_tokens(self) -> float:
        return sum(self.outputs) / len(self.outputs) if self.outputs else 0.0

    @property
    def squared_deviations(self) -> float:
        return sum((tokens - self.mean_output_tokens) ** 2 for tokens in self.outputs)


@dataclass
class Kind:
    """What the engines of a pool share: who decides, what a batch takes and what it is thought to take."""

    scheduler: "Scheduler"
    device: Latency
    fit: Latency


@dataclass
class Engine:
    index: int
    block_tokens: int
    total_blocks: int
    watermark_blocks: int
    queue: list[Request] = field(default_factory=list)  # in order of arrival
    host: HostMemory = field(default_factory=HostMemory)
    batch: Batch = field(default_factory=list)  # empty: idle
    start_s: float = 0.0  # of its running iteration
    end_s: float = INF
    iterations: int = 0  # that have ended
    computed_tokens: int = 0  # in them
    busy_s: float = 0.0  # durations of the iterations that have ended
    by_client: dict[int, Group] = field(default_factory=lambda: defaultdict(Group))
    by_application: dict[int, Group] = field(default_factory=lambda: defaultdict(Group))
    corrector: Corrector | None = None
    role: str = "both"  # both, prefill, decode
    kind: Kind | None = None  # None: the simulation's
    on_their_way: dict[int, int] = field(default_factory=dict)  # blocks of KV on its way from or to here, by request
    waits_for_kv: bool = False  # its first-ranked request needs memory taken for KV on its way
    moved_in_vain: "list[Formation]" = field(default_factory=list)  # attempts to form the next batch that ended so

    @property
    def all_holders(self) -> int:
        return len(self.holders) + len(self.on_their_way)

    @property
    def holders(self) -> list[Request]:
        """Those in the queue, who can be evicted."""
        return [request for request in self.queue if request.holder]

    @property
    def free_blocks(self) -> int:
        return self.total_blocks - sum(request.blocks for request in self.queue) - sum(self.on_their_way.values())

    @property
    def free_host_blocks(self) -> int:
        return self.host.blocks - sum(self.blocks_for(request.kept) for request in self.queue)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)  # rounded up

    def groups_of(self, r: Request) -> tuple[Group, Group]:
        return self.by_client[r.client], self.by_application[r.application]
