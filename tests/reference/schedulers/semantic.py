"""docs/systems/semantic.md."""

import math
from typing import Any

from ..decisions import LEFT_OUT, Decision, Limits, Rank
from ..engines import Engine
from ..latency import Latency
from ..requests import INF, Request
from .base import Scheduler


class Slots(Scheduler):
    """The base of all four; by itself slots-fcfs."""

    def __init__(self, slots: int = 16, batching: str = "stage-aware", candidates: str = "best", **limits: Any) -> None:
        super().__init__(**limits)
        assert batching in ("stage-aware", "prefill-first") and candidates in ("best", "decodes")
        self.slots, self.batching, self.candidates = slots, batching, candidates

    def prepare(self, requests: list[Request], estimator: Latency) -> None:
        super().prepare(requests, estimator)
        self.chosen: dict[int, dict[int, int]] = {}  # by engine: requests chosen there, with their last eviction then

    def forget(self, r: Request) -> None:
        for chosen in self.chosen.values():
            chosen.pop(r.index, None)

    def order(self, r: Request) -> Rank:
        """Return the order key."""
        return (0, r.arrival_s)

    def decide(self, engine: Engine, now_s: float) -> Decision:
        self.running = self.choose(engine)
        return super().decide(engine, now_s)

    def choose(self, engine: Engine) -> set[int]:
        """Choose the requests that run."""
        everybody = sorted(engine.queue, key=self.order)  # ties by place
        self.later: set[int] = set()  # decodes that come after the prefilling ones
        if self.batching == "stage-aware" and everybody[0].decoding:
            then = self.chosen.get(engine.index, {})
            ongoing = [r for r in everybody if then.get(r.index) == r.evicted]
            others = [r for r in everybody if r not in ongoing]
            if self.candidates == "decodes":
                others = [r for r in others if r.decoding]
            either = ongoing + others[: self.slots]
            chosen = running = [r for r in everybody if r in either and r.decoding][: self.slots]
        else:
            chosen = everybody[: self.slots]
            prefilling = [r for r in chosen if not r.decoding]
            running = prefilling or chosen
            if self.batching == "prefill-first" and prefilling:
                self.later = {r.index for r in chosen if r.decoding}
        self.chosen[engine.index] = {r.index: r.evicted for r in chosen}
        return {r.index for r in running}

    def rank(self, r: Request, now_s: float) -> Rank:
        level, key = self.order(r)
        if r.index in self.later:
            return (level + 2**32, key)
        return (level, key) if r.index in self.running else (LEFT_OUT, 0)

    def victim_ranks(self, queue: list[Request]) -> list[Rank]:
        return [self.order(r) for r in queue]

    def limits(self, queue: list[Request], now_s: float) -> Limits:
        first_decides = self.batching == "prefill-first"
        return Limits(sequence_budget=self.slots, whole_prompts=True, evict_for="all", first_decides=first_decides)


class Hpjf(Slots):
    def __init__(self, level: str = "priority", **more: Any) -> None:
        super().__init__(**more)
        assert level in ("priority", "urgency")
        self.level = level

    def order(self, r: Request) -> Rank:
        return (r.urgency if self.level == "urgency" else r.priority, r.arrival_s)


class SlotsSjf(Slots):
    def __init__(self, remaining_time: str = "at-eviction", **more: Any) -> None:
        super().__init__(**more)
        assert remaining_time in ("at-eviction", "current")
        self.remaining_time = remaining_time

    def prepare(self, requests: list[Request], estimator: Latency) -> None:
        super().prepare(requests, estimator)
        self.times: dict[int, tuple[tuple[int, ...], float]] = {}  # by request: when it was computed, and f_t

    def forget(self, r: Request) -> None:
        super().forget(r)
        self.times.pop(r.index, None)

    def decide(self, engine: Engine, now_s: float) -> Decision:
        for r in engine.queue:
            moment = (r.evicted, r.emitted) if self.remaining_time == "current" else (r.evicted,)
            if self.times.get(r.index, ((), 0.0))[0] != moment:
                self.times[r.index] = moment, self.remaining_s(r, engine)
        return super().decide(engine, now_s)

    def decode_s(self, cached: float) -> float:
        return self.estimator.batch([(1, cached, True)])

    def prefill_s(self, tokens: int, cached: int) -> float:
        return self.estimator.batch([(tokens, cached, False)])

    def remaining_s(self, r: Request, engine: Engine) -> float:
        if math.isnan(r.predicted_output_tokens):
            return INF
        to_come = max(r.predicted_output_tokens - r.emitted, 1)
        if r.decoding:
            steps, first, work = to_come, r.cached, 0.0
        else:
            steps, first, work = to_come - 1, r.cached + r.left, self.prefill_s(r.left, r.cached)
        decoding_s = steps * self.decode_s(first + (steps - 1) / 2) if steps > 0 else 0.0
        return engine.load_s_per_token * r.kept + work + decoding_s

    def order(self, r: Request) -> Rank:
        return (0, self.times[r.index][1])


class Semantic(SlotsSjf):
    def __init__(
        self, level: str = "urgency", accounting: str = "decode", transfer_cost: str = "save-and-load", **more: Any
    ) -> None:
        super().__init__(**more)
        assert level in ("urgency", "priority") and accounting in ("decode", "prefill", "as-printed")
        assert transfer_cost in ("save-and-load", "load")
        self.level, self.accounting, self.transfer_cost = level, accounting, transfer_cost

    def order(self, r: Request) -> Rank:
        return (r.urgency if self.level == "urgency" else r.priority, self.times[r.index][1])

    def keep_tokens(self, queue: list[Request]) -> list[int]:
        if self.engine.host.blocks == 0:
            return [0] * len(queue)
        return [self.keep(r) for r in queue]

    def keep(self, r: Request) -> int:
        host = self.engine.host
        n = min(r.computed, r.prompt_tokens)
        m = r.computed - n
        beta = self.engine.load_s_per_token + (host.save_s_per_token if self.transfer_cost == "save-and-load" else 0.0)
        if self.accounting == "decode":
            prompt = n > 0 and beta * n < self.prefill_s(n, 0)
            decoded = m > 0 and beta < self.decode_s(n + (m + 1) / 2)
            return n * prompt + m * decoded
        if self.accounting == "prefill":
            prompt = n > 0 and beta * (n + m) < self.prefill_s(n + m, 0)
            return (n + m) * prompt
        prompt = n > 0 and beta * n > self.prefill_s(n, 0)
        return n * prompt + (self.keep_as_printed(n, m, beta) if m > 0 else 0)

    def keep_as_printed(self, n: int, m: int, beta: float) -> int:
        slope = (self.decode_s(n + m) - self.decode_s(n)) / m
        gain = beta - self.decode_s(n + 0.5)
        if slope <= 0:
            return m if gain > 0 else 0
        return math.floor(min(m, max(0.0, gain / (2 * slope))))
