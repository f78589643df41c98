"""Replaying a recorded timeline in plain Python, checking each line against the rules of docs/simulation.md.

Whatever the scheduler, a line that could not have happened is an AssertionError; what happened comes back as batches.
"""

import dataclasses

import numpy as np

from servegym.simulator.cluster import AT_ONCE, Cluster
from servegym.simulator.deployment import HostMemory
from servegym.simulator.simulation import Simulation
from servegym.simulator.types import (
    ARRIVAL,
    BATCH_END,
    BATCH_START,
    DEPARTED,
    EVICTED,
    FINISH,
    LOADED,
    RECEIVED,
    SCHEDULED,
    TOKEN,
)
from tests.simulator.replayed_link import ReplayedLink

# What comes before what at one instant.
PART_OF_INSTANT = {
    TOKEN: 0, FINISH: 0, BATCH_END: 0, DEPARTED: 0, RECEIVED: 1, ARRIVAL: 2,
    EVICTED: 3, LOADED: 3, BATCH_START: 3, SCHEDULED: 3,
}  # fmt: skip


@dataclasses.dataclass
class Entry:
    """One request of a batch, as it stood when the batch was formed."""

    request: int
    tokens: int
    computed: int
    left: int
    decoding: bool
    holder_before: bool
    loaded: int = 0  # tokens of `computed` that came from host memory for this batch


@dataclasses.dataclass
class Batch:
    engine: int
    start_s: float
    estimate_s: float
    evicted: list[int]
    moving_s: float = 0.0
    entries: list[Entry] = dataclasses.field(default_factory=list)
    holders: int = 0  # once it is formed
    end_s: float | None = None  # None: still running

    @property
    def tokens(self) -> int:
        return sum(entry.tokens for entry in self.entries)


@dataclasses.dataclass
class Replay:
    """What a timeline says happened. Lists go by request, the last two by engine."""

    batches: list[Batch]
    emission_s: list[list[float]]
    gains: list[list[float]]
    finished: list[bool]
    scheduled_tokens: list[int]
    lost_tokens: list[int]  # computed, and then evicted
    evictions: list[int]
    route: list[list[int]]  # engines a request was at, in order
    emitted_at: list[int]
    evictions_at: list[int]


def replay(simulation: Simulation) -> Replay:
    """The recorded timeline of a simulation, checked line by line."""
    lines = simulation.arrays.timeline[: simulation.arrays.clock[0].timeline_used]
    return _Replayer(simulation).play(lines)


class _Replayer:
    def __init__(self, simulation: Simulation):
        deployment = simulation.scenario.deployment
        self.table = simulation.scenario.workload.table
        self.pools = [pool for pool in deployment.pools for _ in range(pool.engines)]  # of each engine
        self.engines = deployment.engines
        self.routed = simulation.scenario.router is not None or isinstance(deployment, Cluster)
        n = len(self.table)
        self.computed, self.emitted, self.kept = [0] * n, [0] * n, [0] * n
        self.arrived = [False] * n
        self.hosts = [pool.host or HostMemory(0, 0.0, 0.0) for pool in self.pools]
        self.ready_s = simulation.arrays.outcomes["ready_s"]
        self.decode_engine = simulation.arrays.outcomes["decode_engine"]
        self.queues: list[list[int]] = [[] for _ in range(self.engines)]
        # Blocks that each request holds at an engine: those on their way hold some at two.
        self.held: list[dict[int, int]] = [{} for _ in range(self.engines)]
        link = deployment.link if isinstance(deployment, Cluster) else AT_ONCE
        self.link = ReplayedLink(link, self.pools, self.held)
        self.moving_s = [0.0] * self.engines  # for the batch being formed
        self.loading: dict[int, int] = {}  # tokens loaded for the batch being formed, by request
        self.running: list[Batch | None] = [None] * self.engines
        self.evicted_before: list[list[int]] = [[] for _ in range(self.engines)]
        self.ended: list[list[tuple]] = [[] for _ in range(self.engines)]  # TOKEN and FINISH lines of an end
        self.departing: list[int] = []  # who must leave now
        self.log = Replay(
            [], [[] for _ in range(n)], [[] for _ in range(n)], [False] * n, [0] * n, [0] * n, [0] * n,
            [[] for _ in range(n)], [0] * self.engines, [0] * self.engines,
        )  # fmt: skip

    def play(self, lines: np.ndarray) -> Replay:
        handlers = {
            ARRIVAL: self.arrive, EVICTED: self.evict, BATCH_START: self.start, SCHEDULED: self.schedule,
            LOADED: self.load, TOKEN: self.token, FINISH: self.finish, BATCH_END: self.end,
            DEPARTED: self.depart, RECEIVED: self.receive,
        }  # fmt: skip
        assert (np.diff(lines["time_s"]) >= 0).all(), "time went backward"
        self.check_order_within_instants(lines)
        forming: Batch | None = None  # its SCHEDULED lines follow BATCH_START at once
        for line in lines:
            if forming is not None and line.kind != SCHEDULED:
                self.formed(forming)
                forming = None
            assert not self.departing or line.kind == DEPARTED, "prefilled, and still here"
            handlers[int(line.kind)](line)
            if line.kind == BATCH_START:
                forming = self.running[line.engine]
        if forming is not None:
            self.formed(forming)
        assert not self.departing, "prefilled, and still here"
        return self.log

    def check_order_within_instants(self, lines: np.ndarray) -> None:
        """Ends, arrivals of KV, arrivals, starts; ends and starts by engine, arrivals by request."""
        part = np.array([PART_OF_INSTANT[kind] for kind in lines["kind"].tolist()], int)
        same = np.diff(lines["time_s"]) == 0
        assert (np.diff(part)[same] >= 0).all(), "not in the order of an instant"
        for k in (0, 3):
            both = same & (part[1:] == k) & (part[:-1] == k)
            assert (np.diff(lines["engine"])[both] >= 0).all(), "engines not in order"
        assert (np.diff(lines["request"][part == 2]) > 0).all(), "arrivals not in order"

    def blocks_in_use(self, engine: int) -> int:
        return sum(self.held[engine].values())

    def blocks_of(self, engine: int, tokens: int) -> int:
        return -(-int(tokens) // self.pools[engine].block_tokens)

    def arrive(self, line: np.record) -> None:
        r = line.request
        assert not self.arrived[r] and line.time_s == self.ready_s[r] >= self.table["arrival_s"][r]
        assert self.pools[line.engine].role != "decode", "a decode engine takes no prompts"
        assert self.routed or line.engine == r % self.engines
        self.arrived[r] = True
        self.queues[line.engine].append(int(r))
        self.log.route[r].append(int(line.engine))

    def evict(self, line: np.record) -> None:
        e, r = int(line.engine), int(line.request)
        assert self.running[e] is None, "evicted while a batch runs"
        assert r in self.queues[e]
        assert 0 <= line.tokens <= self.computed[r], "saved more than there was"
        self.loading.pop(r, None)
        self.kept[r] = int(line.tokens)
        kept_blocks = sum(self.blocks_of(e, self.kept[k]) for k in self.queues[e])
        assert kept_blocks <= self.hosts[e].blocks, "more in host memory than it holds"
        self.moving_s[e] += self.kept[r] * self.hosts[e].save_s_per_token
        self.log.lost_tokens[r] += self.computed[r] - self.kept[r]
        self.log.evictions[r] += 1
        self.log.evictions_at[e] += 1
        self.computed[r] = 0
        del self.held[e][r]
        self.evicted_before[e].append(r)

    def load(self, line: np.record) -> None:
        e, r = int(line.engine), int(line.request)
        assert self.running[e] is None and r in self.queues[e]
        assert line.tokens == self.kept[r] > 0 and r not in self.held[e]
        self.moving_s[e] += self.kept[r] * self.hosts[e].load_s_per_token
        self.computed[r] = self.loading[r] = self.kept[r]
        self.held[e][r] = self.blocks_of(e, self.kept[r])
        self.kept[r] = 0

    def start(self, line: np.record) -> None:
        assert self.running[line.engine] is None, "iterations overlap"
        assert line.tokens == len(self.queues[line.engine]) > 0
        batch = Batch(int(line.engine), float(line.time_s), float(line.value), self.evicted_before[line.engine])
        self.evicted_before[line.engine] = []
        batch.moving_s, self.moving_s[line.engine] = self.moving_s[line.engine], 0.0
        self.running[line.engine] = batch
        self.log.batches.append(batch)

    def schedule(self, line: np.record) -> None:
        e, r, tokens = int(line.engine), int(line.request), int(line.tokens)
        batch = self.running[e]
        assert batch is not None and line.time_s == batch.start_s
        assert r in self.queues[e], "not here: not arrived, finished, or another engine's"
        assert r not in [entry.request for entry in batch.entries], "twice in a batch"
        left = int(self.table["prompt_tokens"][r]) + self.emitted[r] - self.computed[r]
        assert 1 <= tokens <= left
        decoding = self.emitted[r] > 0 and left == 1
        assert self.kept[r] == 0, "computed on while a part lies in host memory"
        loaded = self.loading.pop(r, 0)
        holder_before = r in self.held[e] and not loaded
        batch.entries.append(Entry(r, tokens, self.computed[r], left, decoding, holder_before, loaded))
        self.log.scheduled_tokens[r] += tokens
        self.held[e][r] = self.blocks_of(e, self.computed[r] + tokens)

    def formed(self, batch: Batch) -> None:
        assert batch.entries, "an empty batch"
        total_blocks = self.pools[batch.engine].total_blocks
        assert self.blocks_in_use(batch.engine) <= total_blocks, "more KV blocks than there are"
        batch.holders = len(self.held[batch.engine])

    def token(self, line: np.record) -> None:
        self.ended[line.engine].append(("token", int(line.request)))
        self.log.gains[line.request].append(float(line.value))

    def finish(self, line: np.record) -> None:
        self.ended[line.engine].append(("finish", int(line.request)))

    def end(self, line: np.record) -> None:
        e, batch = int(line.engine), self.running[line.engine]
        assert batch is not None, "an end without a start"
        assert line.tokens == self.blocks_in_use(e)
        expected = []
        for entry in batch.entries:
            r = entry.request
            self.computed[r] += entry.tokens
            if self.computed[r] < self.table["prompt_tokens"][r] + self.emitted[r]:
                continue
            self.emitted[r] += 1
            self.log.emitted_at[e] += 1
            self.log.emission_s[r].append(float(line.time_s))
            expected.append(("token", r))
            if self.emitted[r] == self.table["output_tokens"][r]:
                expected.append(("finish", r))
                self.log.finished[r] = True
                self.queues[e].remove(r)
                del self.held[e][r]
            elif self.pools[e].role == "prefill":
                self.departing.append(r)
        assert self.ended[e] == expected, "other tokens than those the batch computed"
        self.ended[e] = []
        batch.end_s = float(line.time_s)
        assert line.value == batch.end_s - batch.start_s
        self.running[e] = None
        self.link.try_engine(e, batch.end_s)

    def depart(self, line: np.record) -> None:
        e, r = int(line.engine), int(line.request)
        assert r == self.departing.pop(0), "not the next to leave"
        assert line.tokens == self.held[e][r] and self.emitted[r] == 1 and self.kept[r] == 0
        self.queues[e].remove(r)
        d = int(self.decode_engine[r])
        assert self.pools[d].role == "decode"
        self.link.join(r, e, d, self.computed[r], float(line.time_s))

    def receive(self, line: np.record) -> None:
        d, r = int(line.engine), int(line.request)
        source = self.link.arrived(r, d, float(line.time_s))
        assert line.tokens == self.held[d][r] == self.blocks_of(d, self.computed[r])
        del self.held[source][r]
        self.queues[d].append(r)
        self.log.route[r].append(d)
        self.link.next_after(d, float(line.time_s))
