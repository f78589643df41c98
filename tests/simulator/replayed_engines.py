"""Engines of a recorded timeline, replayed: their queues, memory, batches and tasks."""

import dataclasses

import numpy as np

from servegym.simulator.inputs.cluster import AT_ONCE, Cluster
from servegym.simulator.inputs.deployment import Deployment, HostMemory
from servegym.simulator.records.types import DRAINED, FAILED, HELD, MOVED, POOL
from servegym.simulator.runs.simulation import Simulation
from tests.reference.kv_groups import KvGroup
from tests.simulator.replayed_cache import cache_of
from tests.simulator.replayed_link import ReplayedLink, destinations
from tests.simulator.replayed_run import Batch, Entry, Replay
from tests.simulator.replayed_store import store_of


def blocks_of(pool: Deployment, tokens: int, chunk: int) -> int:
    """Blocks of a request with so many tokens and the chunk that it computes."""
    if pool.kv_groups:
        return sum(
            KvGroup(**dataclasses.asdict(group)).held(tokens, tokens, tokens + chunk) for group in pool.kv_groups
        )
    return -(-(tokens + chunk) // pool.block_tokens)


class ReplayedEngines:
    """Where each engine stands, line by line; what a line says of it is checked."""

    def __init__(self, simulation: Simulation, lines: np.ndarray):
        deployment = simulation.scenario.deployment
        self.lines = lines
        self.table = simulation.scenario.workload.table
        self.pools = [pool for pool in deployment.pools for _ in range(pool.engines)]  # of each engine
        self.engines = deployment.engines
        self.routed = simulation.scenario.router is not None or isinstance(deployment, Cluster)
        self.in_turn = not self.routed and not np.isin(lines["kind"], (FAILED, DRAINED)).any()
        n = len(self.table)
        self.computed, self.emitted, self.kept = [0] * n, [0] * n, [0] * n
        self.borrowed = [False] * n  # what is kept is in a prefix store
        self.sent = [0] * n  # tokens out when it was last sent for prefill
        self.seen = 0  # requests that have come, in order of their index
        self.at_router: dict[int, float] = {}  # since when
        self.held = set[int]()  # the held requests that have been in a line
        self.source: dict[int, int] = {}  # engine at which the KV of a departed request is
        self.hosts = [pool.host or HostMemory(0, 0.0, 0.0) for pool in self.pools]
        self.stores = [store_of(pool, simulation.scenario.workload) for pool in self.pools]
        self.caches = [cache_of(pool, simulation.scenario.workload) for pool in self.pools]
        self.admitted = [False] * n  # since it was sent to where it is
        self.ready_s = simulation.arrays.outcomes["ready_s"]
        self.queues: list[list[int]] = [[] for _ in range(self.engines)]
        self.up, self.drained = [True] * self.engines, [False] * self.engines
        self.tier = [POOL if pool.tier is None else pool.tier for pool in self.pools]
        # When an engine is ready; inf: it is off. Of engines that are never off 0, and no start-up time.
        starts = simulation.scenario.check_interval_s > 0
        self.startups = [pool.startup if starts else None for pool in self.pools]
        self.ready_at = [0.0] * self.engines
        self.roles = [pool.role for pool in self.pools]
        self.role_ready_s = [0.0] * self.engines  # when an engine that has changed its role takes requests
        if starts:
            for e, pool in enumerate(self.pools):
                if pool.role_change_s is not None:
                    self.tier[e] = pool.tier or 0
        for e, startup in enumerate(self.startups):
            if startup is not None:
                self.tier[e], self.ready_at[e] = POOL, np.inf
        first = 0
        for pool in deployment.pools:
            if pool.startup is not None and starts:
                for e in range(first, first + pool.startup.started):
                    self.tier[e], self.ready_at[e] = pool.tier or 0, 0.0
            first += pool.engines
        self.off = [ready_s == np.inf for ready_s in self.ready_at]
        # Blocks that each request holds at an engine: those on their way hold some at two.
        self.blocks: list[dict[int, int]] = [{} for _ in range(self.engines)]
        link = deployment.link if isinstance(deployment, Cluster) else AT_ONCE
        # Where none goes to the router again it is known which is sent when.
        calm = not np.isin(lines["kind"], (FAILED, MOVED, HELD)).any()
        to = destinations(lines, simulation.arrays.requests["engine"]) if calm else None
        self.link = ReplayedLink(link, self.pools, self.blocks, to)
        self.moving_s = [0.0] * self.engines  # for the batch being formed
        self.loading: dict[int, int] = {}  # tokens loaded for the batch being formed, by request
        self.running: list[Batch | None] = [None] * self.engines
        self.suspended: list[dict[int, Batch]] = [{} for _ in range(self.engines)]  # by index
        self.evicted_before: list[list[int]] = [[] for _ in range(self.engines)]
        self.ended: list[list[tuple]] = [[] for _ in range(self.engines)]  # TOKEN and FINISH lines of an end
        self.departing: list[int] = []  # must leave now
        self.recalling: list[tuple[int, int]] = []  # (engine, request): must be taken back now
        self.now_s = 0.0
        by_request, by_engine = [[0] * n for _ in range(8)], [[0] * self.engines for _ in range(7)]
        self.log = Replay(
            [], [[] for _ in range(n)], [[] for _ in range(n)], [False] * n, *by_request, [[] for _ in range(n)], 0,
            *by_engine, *([0.0] * self.engines for _ in range(3)),
        )  # fmt: skip

    def pass_time(self, now_s: float) -> None:
        for e in range(self.engines):
            if self.up[e]:
                self.log.up_at[e] += now_s - self.now_s
                self.log.in_tier_at[e] += (now_s - self.now_s) * (self.tier[e] != POOL)
        self.now_s = now_s

    def blocks_in_use(self, engine: int) -> int:
        return sum(self.blocks[engine].values())

    def fewest_blocks(self, engine: int) -> int:
        """In use, if requests share all they could."""
        if self.caches[engine] is None:
            return self.blocks_in_use(engine)
        return max(self.blocks[engine].values(), default=0)

    def blocks_of(self, engine: int, tokens: int, chunk: int = 0) -> int:
        """Blocks of a request with so many tokens and the chunk that it computes."""
        return blocks_of(self.pools[engine], int(tokens), int(chunk))

    def context(self, r: int) -> int:
        return int(self.table["prompt_tokens"][r]) + self.emitted[r]

    # The router

    def comes_from_router(self, r: int, time_s: float) -> None:
        """A request that the router holds or sends: just ready, or at the router since this instant, or held before."""
        if r == self.seen:
            assert time_s == self.ready_s[r] >= self.table["arrival_s"][r]
            self.seen += 1
            self.at_router[r] = time_s
        assert r in self.at_router, "requests did not come in order, or one is in two places"
        assert r in self.held or self.at_router[r] == time_s, "at the router, neither held nor sent on"

    def arrive(self, line: np.record) -> None:
        e, r = int(line.engine), int(line.request)
        self.comes_from_router(r, float(line.time_s))
        assert r not in self.source and self.computed[r] == self.kept[r] == 0, "its KV is elsewhere"
        assert self.roles[e] != "decode", "a decode engine takes no prompts"
        assert (self.up[e] and not self.drained[e] and not self.off[e]) or self.engines == 1
        assert line.time_s >= self.role_ready_s[e], "it changes its role"
        assert not self.in_turn or e == r % self.engines
        del self.at_router[r]
        self.held.discard(r)
        self.queues[e].append(r)
        self.sent[r] = self.emitted[r]
        self.admitted[r] = False
        self.log.route[r].append(e)
        if self.stores[e] is not None:
            self.kept[r] = self.stores[e].look_up(r, self.context(r) - 1)
            self.borrowed[r] = self.kept[r] > 0
            self.log.cached_tokens[r] += self.kept[r]

    def hold(self, line: np.record) -> None:
        if int(line.request) not in self.source:  # else its KV may have stood in a line to an engine that has failed
            self.comes_from_router(int(line.request), float(line.time_s))
        assert line.engine == -1 and line.tokens >= 0
        self.held.add(int(line.request))
        self.log.holds += 1

    # Batches

    def evict(self, line: np.record) -> None:
        e, r = int(line.engine), int(line.request)
        assert self.running[e] is None, "evicted while a batch runs"
        assert r in self.queues[e] and not self.in_task(e, r)
        assert 0 <= line.tokens <= self.computed[r], "saved more than there was"
        self.loading.pop(r, None)
        if self.caches[e] is not None:
            self.caches[e].found.pop(r, None)
        self.admitted[r] = True
        self.kept[r] = int(line.tokens)
        size = self.pools[e].block_tokens
        kept_blocks = sum(-(-int(self.kept[k]) // size) for k in self.queues[e] if not self.borrowed[k])
        assert kept_blocks <= self.hosts[e].blocks, "more in host memory than it holds"
        self.moving_s[e] += self.kept[r] * self.hosts[e].save_s_per_token
        self.log.lost_tokens[r] += self.computed[r] - self.kept[r]
        self.log.evictions[r] += 1
        self.log.evictions_at[e] += 1
        self.computed[r] = 0
        self.blocks[e].pop(r, 0)  # none: it was admitted for the batch being formed, which no line says
        self.evicted_before[e].append(r)

    def find(self, line: np.record) -> None:
        e, r, tokens = int(line.engine), int(line.request), int(line.tokens)
        assert self.running[e] is None and r in self.queues[e] and r not in self.blocks[e]
        assert self.caches[e] is not None and 0 < tokens < self.context(r)
        assert tokens % self.pools[e].block_tokens == 0
        self.computed[r] = self.caches[e].found[r] = tokens
        self.blocks[e][r] = self.blocks_of(e, tokens)
        self.log.found_tokens[r] += tokens
        if not self.admitted[r]:
            self.log.cached_tokens[r] += max(0, tokens - self.kept[r])
        instead = min(self.kept[r], tokens)  # of what it has kept
        self.log.lost_tokens[r] += instead * (not self.borrowed[r])
        self.kept[r] -= instead
        if self.kept[r] == 0:
            self.borrowed[r] = False

    def load(self, line: np.record) -> None:
        e, r = int(line.engine), int(line.request)
        assert self.running[e] is None and r in self.queues[e]
        found = 0 if self.caches[e] is None else self.caches[e].found.get(r, 0)
        store, host, tokens = self.pools[e].prefix_store, self.pools[e].host, int(line.tokens)
        assert tokens > 0 and (r not in self.blocks[e] or found > 0)
        if tokens != self.kept[r]:  # blocks in host memory, instead of less that it has kept
            assert self.caches[e] is not None and store is not None and tokens % self.pools[e].block_tokens == 0
            assert self.kept[r] < tokens < self.context(r) - found and not self.borrowed[r]
            self.log.cached_tokens[r] += (tokens - self.kept[r]) * (not self.admitted[r])
            self.log.lost_tokens[r] += self.kept[r]
            self.log.borrowed_tokens[r] += tokens
        from_store = host is None and store is not None
        self.moving_s[e] += tokens * (store if from_store else self.hosts[e]).load_s_per_token
        self.log.borrowed_tokens[r] += tokens * self.borrowed[r]
        self.loading[r] = tokens
        self.computed[r] = found + tokens
        self.blocks[e][r] = self.blocks_of(e, self.computed[r])
        self.kept[r], self.borrowed[r] = 0, False

    def start(self, line: np.record) -> None:
        e = int(line.engine)
        assert self.running[e] is None, "iterations overlap"
        assert self.up[e], "it has failed"
        assert line.tokens == len(self.queues[e]) > 0
        batch = Batch(e, float(line.time_s), float(line.value), self.evicted_before[e])
        batch.resumed_s = batch.start_s
        self.evicted_before[e] = []
        batch.moving_s, self.moving_s[e] = self.moving_s[e], 0.0
        self.running[e] = batch
        self.log.batches.append(batch)

    def schedule(self, line: np.record) -> None:
        e, r, tokens = int(line.engine), int(line.request), int(line.tokens)
        batch = self.running[e]
        assert batch is not None and line.time_s == batch.start_s
        assert r in self.queues[e], "not here: not arrived, finished, or another engine's"
        assert r not in batch.requests, "twice in a batch"
        assert not self.in_task(e, r), "in another batch, which is suspended"
        left = self.context(r) - self.computed[r]
        assert 1 <= tokens <= left
        decoding = self.emitted[r] > 0 and left == 1
        assert self.kept[r] == 0, "computed on while a part lies in host memory"
        loaded = self.loading.pop(r, 0)
        found = self.caches[e] is not None and r in self.caches[e].found
        was_running = r in self.blocks[e] and not loaded and not found
        self.admitted[r] = True
        batch.entries.append(Entry(r, tokens, self.computed[r], left, decoding, was_running, loaded))
        self.log.scheduled_tokens[r] += tokens
        self.blocks[e][r] = self.blocks_of(e, self.computed[r], tokens)

    def formed(self, batch: Batch) -> None:
        assert batch.entries, "an empty batch"
        total_blocks, cache = self.pools[batch.engine].total_blocks, self.caches[batch.engine]
        assert self.fewest_blocks(batch.engine) <= total_blocks, "more KV blocks than there are"
        if cache is not None:
            cache.check_batch([(entry.request, entry.computed + entry.tokens) for entry in batch.entries])
        batch.running = len(self.blocks[batch.engine])

    def token(self, line: np.record) -> None:
        self.ended[line.engine].append(("token", int(line.request)))
        self.log.gains[line.request].append(float(line.value))

    def finish(self, line: np.record) -> None:
        self.ended[line.engine].append(("finish", int(line.request)))

    def end(self, line: np.record) -> None:
        e, batch = int(line.engine), self.running[line.engine]
        assert batch is not None, "an end without a start"
        assert self.fewest_blocks(e) <= line.tokens <= min(self.blocks_in_use(e), self.pools[e].total_blocks)
        expected = []
        for entry in batch.entries:
            r = entry.request
            self.computed[r] += entry.tokens
            if self.caches[e] is not None:
                self.caches[e].fill(r, self.computed[r])
            if self.computed[r] < self.context(r):
                continue
            self.emitted[r] += 1
            self.log.emitted_at[e] += 1
            self.log.emission_s[r].append(float(line.time_s))
            expected.append(("token", r))
            if self.stores[e] is not None and self.emitted[r] == self.sent[r] + 1:
                self.stores[e].put(r)
            if self.emitted[r] == self.table["output_tokens"][r]:
                expected.append(("finish", r))
                self.log.finished[r] = True
                self.queues[e].remove(r)
                del self.blocks[e][r]
            elif self.roles[e] == "prefill":
                self.departing.append(r)
        assert self.ended[e] == expected, "other tokens than those the batch computed"
        self.ended[e] = []
        batch.end_s = float(line.time_s)
        assert line.value == batch.end_s - batch.resumed_s
        self.stop(e, batch.end_s)
        self.link.try_engine(e)

    def stop(self, e: int, now_s: float) -> Batch:
        """The running batch of engine e ends, is suspended, or is lost."""
        batch, self.running[e] = self.running[e], None
        batch.ran_s += now_s - batch.resumed_s
        self.log.busy_at[e] += now_s - batch.resumed_s
        return batch

    # Tasks

    def in_task(self, e: int, r: int) -> bool:
        return any(r in batch.requests for batch in self.suspended[e].values())

    def suspend(self, line: np.record) -> None:
        e, slot = int(line.engine), int(line.tokens)
        batch = self.stop(e, float(line.time_s))
        assert not any(entry.decoding for entry in batch.entries), "a batch that decodes is not suspended"
        assert line.request == batch.requests[0] and line.value == line.time_s - batch.resumed_s
        assert slot not in self.suspended[e]
        self.suspended[e][slot] = batch
        self.log.suspensions_at[e] += 1

    def resume(self, line: np.record) -> None:
        e = int(line.engine)
        assert self.running[e] is None and self.up[e]
        batch = self.suspended[e].pop(int(line.tokens))
        assert line.request == batch.requests[0]
        operators = self.pools[e].operators
        if operators is None or operators.jitter_s == 0.0:  # what a boundary is late is no progress
            assert abs(line.value - batch.ran_s) <= 1e-9
        assert line.value <= batch.ran_s + 1e-9
        batch.resumed_s = float(line.time_s)
        self.running[e] = batch

    # From prefill to decode
