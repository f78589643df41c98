"""Forming a batch, from docs/simulation.md: comments give the number of its rules."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from .decisions import LEFT_OUT, Counts, Rank, Scheduler, within
from .engines import Batch, Engine
from .latency import Latency
from .requests import Request
from .work import Work


@dataclass
class Formation:
    """One batch being formed, in one or more attempts."""

    engine: Engine
    scheduler: Scheduler
    estimator: Latency
    now_s: float
    counts: Counts = field(default_factory=Counts)
    batch: Batch = field(default_factory=list)
    evicted: list[Request] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)  # tokens, of each of the evicted
    loaded: list[tuple[Request, int]] = field(default_factory=list)  # in order, with tokens
    adapters_s: float = 0.0  # for adapters that have to be loaded
    considered: Request | None = None  # for admission
    waits: bool = False  # for KV to arrive: there is no batch
    resumed: Work | None = None  # there is no batch either: a suspended task goes on
    cut_to_nothing: bool = False  # the chunk last asked for: no state would be kept at its end

    @property
    def saved_tokens(self) -> int:
        return sum(self.saved)

    @property
    def loaded_tokens(self) -> int:
        return sum(tokens for _, tokens in self.loaded)

    @property
    def moving_s(self) -> float:
        host = self.engine.host
        of_kv_s = self.loaded_tokens * self.engine.load_s_per_token + self.saved_tokens * host.save_s_per_token
        return of_kv_s + self.adapters_s

    @property
    def ahead(self) -> bool:
        """Return whether a batch runs while this one is formed."""
        return self.engine.asynchronous and self.engine.work is not None

    def form(self) -> None:
        while True:
            self.decision = self.scheduler.decide(self.engine, self.now_s)
            self.limits = self.decision.limits = within(self.engine, self.decision.limits)
            self.resumed = self.decision.first_of(self.engine.queue).task
            if self.resumed is not None:
                return
            gave_up_its_own = self.fill()
            self.lookup_prefix(None)
            if self.batch or self.ahead:
                return
            if not gave_up_its_own:
                self.progress()
                self.lookup_prefix(None)
                return

    def in_rank_order(self) -> list[Request]:
        """Return the requests in no task and not left out, lowest rank first; ties by place (sorted() is stable)."""
        pairs = zip(self.decision.ranks, self.engine.queue, strict=True)
        can_run = [(rank, r) for rank, r in pairs if r.task is None and rank[0] != LEFT_OUT]
        return [r for _, r in sorted(can_run, key=lambda pair: pair[0])]

    def lookup_prefix(self, r: Request | None) -> None:
        """Look up the prefix of r, which has no memory; the finding of another request is cancelled."""
        if self.considered is not None:
            self.considered.found, self.considered.found_tokens = [], 0
            self.considered.stored_blocks = self.considered.stored_tokens = 0
        self.considered = r
        if r is not None and self.engine.memory is not None and not r.running:
            self.engine.memory.look_up(r)
            stored = self.engine.memory.find_stored(r, len(r.found))
            if stored * self.engine.block_tokens > max(0, r.kept - r.found_tokens):
                r.stored_blocks, r.stored_tokens = stored, stored * self.engine.block_tokens

    def fill(self) -> bool:
        """Visit the requests in rank order. Returns whether one gave up its own memory."""
        engine, limits, batch = self.engine, self.limits, self.batch
        admission_closed, before = False, len(self.evicted)
        for r in self.in_rank_order():
            # 1. Full
            if len(batch) >= limits.sequence_budget or self.tokens >= self.limits.max_num_batched_tokens:
                break
            # 2. Skipped
            if admission_closed and not r.running:
                continue
            if self.ahead and r in self.evicted[before:] and not r.running:
                continue
            if engine.adapters is not None and not engine.adapters.has_room((o.adapter for o, _ in batch), r.adapter):
                continue
            self.lookup_prefix(r)
            if limits.first_decides and batch and r.decoding != batch[0][0].decoding:
                continue
            # 3. Chunk
            chunk = self.chunk(r)
            if chunk == 0:  # r does not fit
                if limits.misfit_ends_filling:
                    break
                admission_closed = admission_closed or (self.cut_to_nothing and not r.running)
                continue
            self.drop_unseen(r)
            # 4. Memory, r not running
            if not r.running:
                if engine.all_running >= limits.max_num_seqs:
                    admission_closed = True
                    continue
                if not self.room(r, chunk) and limits.evict_for == "all":
                    self.make_room(r, chunk)
                if not self.room(r, chunk):
                    admission_closed = True
                    continue
            # 5. Memory, r running
            elif self.lacks(r, chunk) > 0:
                if not r.decoding and limits.evict_for == "decodes":
                    continue
                admission_closed = True
                while r.running and self.lacks(r, chunk) > 0 and not self.waits_for_transfers(r):
                    self.evict(engine.running)
                if not r.running:  # the victim was r itself
                    return True
                if self.lacks(r, chunk) > 0:
                    continue
            # 6.
            self.join(r, chunk)
        return False

    @property
    def tokens(self) -> int:
        return sum(self.engine.speculation.counted(tokens, r.decoding) for r, tokens in self.batch)

    @property
    def prefill_tokens(self) -> int:
        return sum(tokens for r, tokens in self.batch if not r.decoding)

    def chunk(self, r: Request) -> int:
        """Return the tokens that r would compute in this batch (rule 3); 0: it does not fit."""
        limits = self.limits
        self.cut_to_nothing = False
        if r.decoding:
            want = 1 + self.drafts(r)
        elif limits.whole_prompts:
            want = r.left
            if self.batch and self.tokens + want > limits.max_num_batched_tokens:
                return 0
        else:
            most = int(min(r.left, limits.chunk_tokens, limits.max_num_batched_tokens - self.tokens))
            want = self.up_to_state(r, most)
            self.cut_to_nothing = most > want == 0
        chunk = self.largest_in_time(r, want)
        if limits.step_tokens > 0 and chunk > 0 and not (r.decoding or limits.whole_prompts):
            chunk = self.up_to_step(r, chunk)
        if not r.decoding:
            chunk = max(chunk, min(want, limits.untimed_prefill_tokens - self.prefill_tokens))
        if not r.decoding and chunk < want and chunk < limits.smallest_chunk_tokens:
            return 0
        if not r.decoding and limits.whole_prompts and chunk < r.left:
            return 0
        if 0 < chunk < want and not r.decoding and self.engine.memory is not None:
            return self.engine.memory.back(r, chunk)
        return chunk

    def up_to_state(self, r: Request, chunk: int) -> int:
        """Return the chunk, cut to where a state is kept."""
        if self.engine.memory is None or r.decoding:
            return chunk
        limits = self.limits
        return self.engine.memory.chunk(r, chunk, min(limits.max_num_batched_tokens, limits.chunk_tokens))

    def drafts(self, r: Request) -> int:
        """Return the drafts that a decode wants."""
        speculation, limits = self.engine.speculation, self.limits
        if not r.running:
            return 0
        most = min(speculation.drafts_of(r), limits.most_drafts)
        if not speculation.free_verification:
            most = min(most, limits.chunk_tokens - 1, limits.max_num_batched_tokens - self.tokens - 1)
        return int(max(0, most))

    def largest_in_time(self, r: Request, want: int) -> int:
        """Return the largest c <= want that the time budget allows; 0: none."""
        limits = self.limits
        if r.decoding and limits.untimed_decodes:
            return want
        moving_s = self.moving_s + r.to_load * self.engine.load_s_per_token
        return largest(want, lambda c: self.estimate_with(r, c) + moving_s <= limits.time_budget_s)

    def estimate_with(self, r: Request, tokens: int) -> float:
        return self.estimator.batch([*(request.shape(n) for request, n in self.batch), r.shape(tokens)])

    def up_to_step(self, r: Request, chunk: int) -> int:
        """Return the chunk, cut so that the batch is a multiple of step_tokens. The batch then ends there."""
        size, before = self.limits.step_tokens, self.tokens
        here = (before + chunk) - (before + chunk) % size
        following = here + size
        most = before + self.largest_in_time(r, following - before)
        if here == 0 or here < before or most >= following:
            return chunk
        if self.estimate_with(r, here - before) / here < self.estimate_with(r, following - before) / most:
            self.limits = replace(self.limits, max_num_batched_tokens=here)
            return here - before
        return chunk

    def room(self, r: Request, chunk: int, without: Sequence[Request] = ()) -> bool:
        """Return whether r finds room, or would if some running requests had been evicted."""
        engine, limits = self.engine, self.limits
        if engine.memory is not None and engine.memory.awaits_state(r, self.batch):
            return False
        if limits.reserve_context:
            need = engine.reserved_blocks(r, chunk, self.limits.max_num_batched_tokens)
        else:
            need = engine.blocks_to_compute(r, chunk)
        if engine.all_running > len(without):
            given = limits.watermark_blocks
            need += engine.watermark_blocks if given is None else given
            if self.decision.headroom_blocks is not None:
                need += self.decision.headroom_blocks[engine.queue.index(r)]
        return engine.free_blocks + r.shared_blocks + sum(other.blocks for other in without) >= need

    def make_room(self, r: Request, chunk: int) -> None:
        """Make room by rule 4 under EVICT_FOR_ALL; its evictions do not close admission."""
        if self.room(r, chunk, without=self.below(r)):
            while not self.room(r, chunk) and self.below(r):
                self.evict(self.below(r))
                self.lookup_prefix(r)

    def below(self, r: Request) -> list[Request]:
        return [other for other in self.engine.running if self.victim_rank(other) > self.victim_rank(r)]

    def victim_rank(self, r: Request) -> tuple[Rank, int]:
        """Return the victim rank: the highest gives up its memory first; ties: later place."""
        place, decision = self.engine.queue.index(r), self.decision
        if callable(decision.victim_ranks):
            decision.victim_ranks = decision.victim_ranks()
        ranks = decision.ranks if decision.victim_ranks is None else decision.victim_ranks
        return ranks[place], place

    def lacks(self, r: Request, chunk: int) -> int:
        """Return the blocks that r needs beyond its own, those found and the free ones; 0 or less: enough."""
        return self.engine.blocks_to_compute(r, chunk) - r.blocks - r.shared_blocks - self.engine.free_blocks

    def drop_unseen(self, r: Request) -> None:
        """Free blocks that have left windows of r, before its lacking blocks are counted."""
        if self.engine.memory is not None and r.running:
            r.blocks = self.engine.memory.drop(r, max(0, r.cached - r.in_flight))

    def waits_for_transfers(self, r: Request) -> bool:
        """Return whether r alone holds memory, and all other blocks are taken for KV on its way."""
        engine = self.engine
        alone = engine.all_running - len(engine.on_their_way) == 1
        return alone and sum(engine.on_their_way.values()) > 0 and not r.decoding

    def evict(self, running: list[Request]) -> None:
        """Evict the request of `running` with the highest victim rank: it gives up all its blocks."""
        engine, decision = self.engine, self.decision
        victim = max(running, key=self.victim_rank)
        self.evict_request(
            victim, 0 if decision.keep_tokens is None else decision.keep_tokens[engine.queue.index(victim)]
        )
        while engine.memory is not None:
            hollow = next((r for r, _ in self.batch if engine.memory.is_hollow(r)), None)
            if hollow is None or self.limits.preemptible is not None:
                break
            self.evict_request(hollow, 0)

    def evict_request(self, victim: Request, keep: int) -> None:
        engine = self.engine
        victim.kept = max(0, min(keep, victim.computed, engine.free_host_blocks * engine.block_tokens))
        victim.borrowed = False
        self.saved.append(victim.kept)
        engine.release(victim)
        victim.computed = 0
        self.counts.evictions += 1
        victim.evicted = self.counts.evictions
        self.evicted.append(victim)
        self.batch[:] = [(request, tokens) for request, tokens in self.batch if request is not victim]

    def join(self, r: Request, chunk: int) -> None:
        engine = self.engine
        if not r.running:
            memory, found_tokens = engine.memory, r.found_tokens
            if memory is not None and r.admitted == 0:
                memory.admitted_tokens += r.context
                memory.cached_tokens += r.cached
                r.cached_tokens += max(0, found_tokens + r.stored_tokens - r.kept)
            elif memory is not None:
                memory.regained_tokens += found_tokens
            if r.admitted == 0:
                for group in engine.groups_of(r):
                    group.admitted_prompt_tokens += r.prompt_tokens
            self.counts.admissions += 1
            r.admitted = self.counts.admissions
            if r.to_load > 0:
                self.loaded.append((r, r.to_load))
            if memory is not None:
                for i in reversed(range(len(r.found), len(r.found) + r.stored_blocks)):
                    memory.use_stored(memory.name_of(r, i))
                memory.hold(r, r.found)
            r.computed, r.kept, r.borrowed = r.cached, 0, False
            self.lookup_prefix(None)
        if engine.memory is not None:
            engine.memory.grow(r, r.computed + chunk)
            if self.limits.preemptible is None:
                engine.memory.name(r, min(r.computed + chunk, r.context - r.under_way))
        blocks = engine.blocks_to_compute(r, chunk)
        r.blocks = blocks if engine.groups else max(r.blocks, blocks)
        self.batch.append((r, chunk))

    def progress(self) -> None:
        """Run the first-ranked request that is in no task alone, with the tokens that fit.

        While tasks hold memory that it would need, one of them is resumed; for KV on its way the engine waits.
        """
        engine, limits = self.engine, self.limits
        r = self.decision.first_of(engine.queue, lambda r: r.task is None)
        self.lookup_prefix(r)
        self.drop_unseen(r)
        if engine.suspended and engine.blocks_to_compute(r, r.left) > self.most_blocks:
            self.resumed = self.decision.first_of(engine.queue, lambda r: r.task is not None).task
            return
        if limits.whole_prompts:
            chunk = must_hold = r.left
        else:
            most = int(min(r.left, limits.chunk_tokens, limits.max_num_batched_tokens))
            untimed = min(most, limits.untimed_prefill_tokens - self.prefill_tokens)
            chunk = max(self.largest_in_time(r, most), 0 if r.decoding else untimed, 1)
            must_hold = 1
        takes_memory = self.lacks(r, must_hold) > 0
        if takes_memory:
            chunk = r.left  # what takes memory for progress emits a token
            if engine.on_their_way and engine.blocks_to_compute(r, chunk) > self.most_blocks:
                self.waits = True
                return
            while self.lacks(r, chunk) + r.shared_blocks > 0:
                others = [other for other in engine.running if other is not r]
                if not others:
                    raise ValueError(f"request {r.index} does not fit into an empty engine")
                self.evict(others)
            self.lookup_prefix(r)
        room = r.blocks + r.shared_blocks + engine.free_blocks
        chunk = largest(chunk, lambda c: engine.blocks_to_compute(r, c) <= room)
        if not takes_memory and not limits.whole_prompts:
            chunk = self.up_to_state(r, chunk) or chunk
        self.join(r, chunk)

    @property
    def most_blocks(self) -> int:
        """Return all blocks but those on their way and in tasks."""
        engine = self.engine
        in_tasks = sum(r.blocks for r in engine.queue if r.task is not None)
        return engine.total_blocks - in_tasks - sum(engine.on_their_way.values())


def largest(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest c of 1 .. most with fits(c), 0 if there is none; fits must be monotone."""
    if most >= 1 and fits(most):
        return most
    low, high = 0, most  # low fits (or is 0), high does not
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
