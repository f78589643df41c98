"""An engine of the reference simulator: its queue, memories and counters."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .adapters import Adapters
from .disturbances import Corrector
from .latency import Latency
from .memory import Memory
from .requests import INF, Request
from .speculation import Speculation
from .stores import Store

if TYPE_CHECKING:
    from .decisions import Scheduler
    from .kv_groups import KvGroup
    from .packer import Formation
    from .work import Operators, Work

Batch = list[tuple[Request, int]]  # requests with their chunks, in batch order


@dataclass
class HostMemory:
    """Host memory of each engine. 0 blocks: none."""

    blocks: int = 0
    load_s_per_token: float = 0.0
    save_s_per_token: float = 0.0


@dataclass
class Group:
    """Running statistics of a client or an application at one engine."""

    admitted_prompt_tokens: int = 0
    num_output_tokens: int = 0
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
    """The policy, device model and estimator that the engines of a pool share."""

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
    most_batch_tokens: float = INF  # its own limits, which a scheduler cannot exceed
    most_sequences: float = INF
    work: "Work | None" = None  # that runs; None: it is idle
    suspended: "list[Work]" = field(default_factory=list)
    end_s: float = INF  # of its running iteration
    suspension_s: float = INF  # of the running task, at a boundary
    boundary_s: float = 0.0  # that boundary, in computing time of the task
    round_s: float | None = None  # that wants the suspension; None: its slice is over
    just_suspended: bool = False
    joined: bool = False  # requests have joined the queue since the scheduler was asked
    iterations: int = 0  # that have been started
    computed_tokens: int = 0  # in those that have ended
    emitted_tokens: int = 0
    busy_s: float = 0.0  # durations of the iterations that have ended
    by_client: dict[int, Group] = field(default_factory=lambda: defaultdict(Group))
    by_application: dict[int, Group] = field(default_factory=lambda: defaultdict(Group))
    corrector: Corrector | None = None
    role: str = "both"  # both, prefill, decode
    pool: int = 0
    kind: Kind | None = None  # None: the simulation's
    on_their_way: dict[int, int] = field(default_factory=dict)  # blocks of KV on its way from or to here, by request
    waits_for_kv: bool = False  # its first-ranked request needs memory taken for KV on its way
    moved_in_vain: "list[Formation]" = field(default_factory=list)  # attempts to form the next batch that ended so
    tier: int | None = None  # None: in the common pool
    up: bool = True
    closed: bool = False  # by a scaler
    drained: bool = False
    startup_s: float | None = None  # None: it is never off
    ready_s: float = 0.0  # loaded from then on; INF: it is off
    next_role: str | None = None  # it drains, and is to have this role; None: it does not
    role_change_s: float | None = None  # None: its role is fixed
    role_ready_s: float | None = None  # it has changed its role, and takes requests then; None: it does
    is_off: bool = False  # or loading
    store: Store | None = None
    groups: "list[KvGroup]" = field(default_factory=list)  # of layers; none: all keep all tokens
    memory: Memory | None = None  # None: it does not cache prefixes
    adapters: Adapters | None = None  # None: it serves the model itself alone
    asynchronous: bool = False
    ahead: "Work | None" = None  # formed while another runs
    loaded_s: float = 0.0  # when the LoRA adapters of the last batch formed are in host memory
    unseen: list[Request] = field(default_factory=list)  # while it is formed: those that are not there
    group: "list[Engine]" = field(default_factory=list)  # that start and end iterations with it, itself too
    just_ended: bool = False  # an iteration, at this instant, and the next one has started
    kv_events: bool = False  # and if so, it publishes KV events to the router
    speculation: Speculation = field(default_factory=Speculation)  # of no drafts
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    operators: "Operators | None" = None  # None: one layer of one
    rounds: int = 0
    blocking_s: list[float] = field(default_factory=list)  # of each preemption: a suspension that a round wanted
    failures: int = 0
    recalled: int = 0
    lost_tokens: int = 0
    serving: bool = False
    service_s: float = 0.0

    @property
    def changes_role(self) -> bool:
        """Return whether it drains for a new role, or has that role and takes no requests yet."""
        return self.next_role is not None or self.role_ready_s is not None

    @property
    def in_lockstep(self) -> bool:
        return len(self.group) > 1

    def has_to_wait(self, now_s: float) -> bool:
        """Return whether it waits for others of its group, which have started before."""
        return any(other.work is not None and other.work.start_s < now_s for other in self.group if other is not self)

    @property
    def decode_tokens(self) -> int:
        """Return the tokens that a decode takes of a budget, as far as a policy knows."""
        return self.speculation.counted(1 + self.speculation.k, decoding=True)

    @property
    def all_running(self) -> int:
        return sum(request.running for request in self.queue + self.unseen) + len(self.on_their_way)

    @property
    def running(self) -> list[Request]:
        """Return the requests that can be evicted: those in the queue that are in no task."""
        return [request for request in self.queue if request.running and request.task is None]

    @property
    def free_blocks(self) -> int:
        if self.memory is not None:
            return len(self.memory.free)
        taken = sum(request.blocks for request in self.unseen) + sum(self.on_their_way.values())
        return self.total_blocks - sum(request.blocks for request in self.queue) - taken

    @property
    def free_host_blocks(self) -> int:
        return self.host.blocks - sum(self.blocks_for(request.kept) for request in self.queue if not request.borrowed)

    @property
    def load_s_per_token(self) -> float:
        """Return the load time of host memory, equal to that of a prefix store if both exist."""
        return self.host.load_s_per_token if self.store is None else self.store.load_s_per_token

    def release(self, r: Request) -> None:
        """Free all blocks of r."""
        if self.memory is not None:
            self.memory.give_up(r)
        r.blocks = 0

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)  # rounded up

    def blocks_to_compute(self, r: Request, chunk: int) -> int:
        """Return the blocks that r holds while it computes a chunk."""
        if self.groups:
            processed = max(0, r.cached - r.in_flight)
            held = sum(group.held(processed, r.cached, r.cached + chunk) for group in self.groups)
            if self.memory is not None:
                held += self.memory.checkpoints(r, r.cached, r.cached + chunk)
                held += self.memory.checkpoints(r, processed, r.cached)  # of a batch that runs
            return held
        return self.blocks_for(r.cached + chunk)

    def reserved_blocks(self, r: Request, chunk: int, most_batch_tokens: float) -> int:
        """Return the blocks reserved for its whole context, of which it computes a chunk now."""
        if self.groups:
            in_flight = most_batch_tokens * (2 if self.asynchronous else 1)
            whole = sum(group.most(r.context, in_flight, r.found_tokens) for group in self.groups)
            return max(whole, self.blocks_to_compute(r, chunk))
        return self.blocks_for(r.context)

    def groups_of(self, r: Request) -> tuple[Group, Group]:
        return self.by_client[r.client], self.by_application[r.application]
