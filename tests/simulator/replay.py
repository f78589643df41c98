"""Replaying a recorded timeline in plain Python, checking each line against the rules of docs/simulation.md.

Whatever the scheduler, a line that could not have happened is an AssertionError; what happened comes back as batches.
"""

import dataclasses

import numpy as np

from servegym.simulator.deployment import HostMemory
from servegym.simulator.simulation import Simulation
from servegym.simulator.types import ARRIVAL, BATCH_END, BATCH_START, EVICTED, FINISH, LOADED, SCHEDULED, TOKEN


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
    """What a timeline says happened. Lists go by request."""

    batches: list[Batch]
    emission_s: list[list[float]]
    gains: list[list[float]]
    finished: list[bool]
    scheduled_tokens: list[int]
    lost_tokens: list[int]  # computed, and then evicted
    evictions: list[int]


def replay(simulation: Simulation) -> Replay:
    """The recorded timeline of a simulation, checked line by line."""
    lines = simulation.arrays.timeline[: simulation.arrays.clock[0].timeline_used]
    return _Replayer(simulation).play(lines)


class _Replayer:
    def __init__(self, simulation: Simulation):
        deployment = simulation.scenario.deployment
        self.table = simulation.scenario.workload.table
        self.block_tokens, self.total_blocks = deployment.block_tokens, deployment.total_blocks
        self.engines = deployment.engines
        n = len(self.table)
        self.computed, self.emitted, self.blocks, self.kept = [0] * n, [0] * n, [0] * n, [0] * n
        self.arrived = [False] * n
        self.host = deployment.host or HostMemory(0, 0.0, 0.0)
        self.ready_s = simulation.arrays.outcomes["ready_s"]
        self.moving_s = [0.0] * self.engines  # for the batch being formed
        self.loading: dict[int, int] = {}  # tokens loaded for the batch being formed, by request
        self.running: list[Batch | None] = [None] * self.engines
        self.evicted_before: list[list[int]] = [[] for _ in range(self.engines)]
        self.ended: list[list[tuple]] = [[] for _ in range(self.engines)]  # TOKEN and FINISH lines of an end
        self.log = Replay([], [[] for _ in range(n)], [[] for _ in range(n)], [False] * n, [0] * n, [0] * n, [0] * n)

    def play(self, lines: np.ndarray) -> Replay:
        handlers = {
            ARRIVAL: self.arrive, EVICTED: self.evict, BATCH_START: self.start, SCHEDULED: self.schedule,
            LOADED: self.load, TOKEN: self.token, FINISH: self.finish, BATCH_END: self.end,
        }  # fmt: skip
        assert (np.diff(lines["time_s"]) >= 0).all(), "time went backward"
        forming: Batch | None = None  # its SCHEDULED lines follow BATCH_START at once
        for line in lines:
            if forming is not None and line.kind != SCHEDULED:
                self.formed(forming)
                forming = None
            handlers[int(line.kind)](line)
            if line.kind == BATCH_START:
                forming = self.running[line.engine]
        if forming is not None:
            self.formed(forming)
        return self.log

    def queue(self, engine: int) -> list[int]:
        here = range(engine, len(self.table), self.engines)
        return [r for r in here if self.arrived[r] and not self.log.finished[r]]

    def holders(self, engine: int) -> list[int]:
        return [r for r in range(engine, len(self.table), self.engines) if self.blocks[r] > 0]

    def blocks_in_use(self, engine: int) -> int:
        return sum(self.blocks[r] for r in range(engine, len(self.table), self.engines))

    def arrive(self, line: np.record) -> None:
        r = line.request
        assert not self.arrived[r] and line.time_s == self.ready_s[r] >= self.table["arrival_s"][r]
        assert line.engine == r % self.engines
        self.arrived[r] = True

    def evict(self, line: np.record) -> None:
        r = line.request
        assert self.running[line.engine] is None, "evicted while a batch runs"
        assert r in self.queue(line.engine)
        assert 0 <= line.tokens <= self.computed[r], "saved more than there was"
        self.loading.pop(r, None)
        self.kept[r] = int(line.tokens)
        kept_blocks = sum(-(-kept // self.block_tokens) for kept in self.kept[line.engine :: self.engines])
        assert kept_blocks <= self.host.blocks, "more in host memory than it holds"
        self.moving_s[line.engine] += self.kept[r] * self.host.save_s_per_token
        self.log.lost_tokens[r] += self.computed[r] - self.kept[r]
        self.log.evictions[r] += 1
        self.computed[r] = self.blocks[r] = 0
        self.evicted_before[line.engine].append(int(r))

    def load(self, line: np.record) -> None:
        r = line.request
        assert self.running[line.engine] is None and r in self.queue(line.engine)
        assert line.tokens == self.kept[r] > 0 and self.blocks[r] == 0
        self.moving_s[line.engine] += self.kept[r] * self.host.load_s_per_token
        self.computed[r] = self.loading[r] = self.kept[r]
        self.kept[r] = 0

    def start(self, line: np.record) -> None:
        assert self.running[line.engine] is None, "iterations overlap"
        assert line.tokens == len(self.queue(line.engine)) > 0
        batch = Batch(int(line.engine), float(line.time_s), float(line.value), self.evicted_before[line.engine])
        self.evicted_before[line.engine] = []
        batch.moving_s, self.moving_s[line.engine] = self.moving_s[line.engine], 0.0
        self.running[line.engine] = batch
        self.log.batches.append(batch)

    def schedule(self, line: np.record) -> None:
        batch, r, tokens = self.running[line.engine], int(line.request), int(line.tokens)
        assert batch is not None and line.time_s == batch.start_s
        assert r in self.queue(line.engine), "not here: not arrived, finished, or another engine's"
        assert r not in [entry.request for entry in batch.entries], "twice in a batch"
        left = int(self.table["prompt_tokens"][r]) + self.emitted[r] - self.computed[r]
        assert 1 <= tokens <= left
        decoding = self.emitted[r] > 0 and left == 1
        assert self.kept[r] == 0, "computed on while a part lies in host memory"
        loaded = self.loading.pop(r, 0)
        batch.entries.append(Entry(r, tokens, self.computed[r], left, decoding, self.blocks[r] > 0, loaded))
        self.log.scheduled_tokens[r] += tokens
        self.blocks[r] = -(-(self.computed[r] + tokens) // self.block_tokens)

    def formed(self, batch: Batch) -> None:
        assert batch.entries, "an empty batch"
        assert self.blocks_in_use(batch.engine) <= self.total_blocks, "more KV blocks than there are"
        batch.holders = len(self.holders(batch.engine))

    def token(self, line: np.record) -> None:
        self.ended[line.engine].append(("token", int(line.request)))
        self.log.gains[line.request].append(float(line.value))

    def finish(self, line: np.record) -> None:
        self.ended[line.engine].append(("finish", int(line.request)))

    def end(self, line: np.record) -> None:
        batch = self.running[line.engine]
        assert batch is not None, "an end without a start"
        assert line.tokens == self.blocks_in_use(batch.engine)
        expected = []
        for entry in batch.entries:
            r = entry.request
            self.computed[r] += entry.tokens
            if self.computed[r] < self.table["prompt_tokens"][r] + self.emitted[r]:
                continue
            self.emitted[r] += 1
            self.log.emission_s[r].append(float(line.time_s))
            expected.append(("token", r))
            if self.emitted[r] == self.table["output_tokens"][r]:
                expected.append(("finish", r))
                self.log.finished[r] = True
                self.computed[r] = self.blocks[r] = 0
        assert self.ended[line.engine] == expected, "other tokens than those the batch computed"
        self.ended[line.engine] = []
        batch.end_s = float(line.time_s)
        assert line.value == batch.end_s - batch.start_s
        self.running[line.engine] = None
