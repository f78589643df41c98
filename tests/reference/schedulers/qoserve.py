"""docs/systems/qoserve.md."""

import dataclasses
import math
from typing import Any

from ..decisions import Decision, Limits, Rank
from ..engines import Engine
from ..latency import Latency, Shape
from ..packer import largest
from ..requests import INF, Request
from .base import Scheduler

SIZES = (128, 256, 512, 1024, 2048, 2552)


class Medha(Scheduler):
    def __init__(
        self,
        tbt_s: float | None = None,  # None: the smallest TPOT SLO of the workload
        safety: float = 1.2,
        largest_chunk_tokens: int = 2500,
        max_num_seqs: int = 128,
        **limits: Any,
    ) -> None:
        super().__init__(**limits)
        self.tbt_s, self.safety, self.max_num_seqs = tbt_s, safety, max_num_seqs
        self.largest_chunk_tokens = largest_chunk_tokens

    def prepare(self, requests: list[Request], estimator: Latency) -> None:
        super().prepare(requests, estimator)
        if self.tbt_s is None:
            self.tbt_s = min(r.tpot_slo_s for r in requests)

    def rank(self, r: Request, now_s: float) -> Rank:
        return (0 if r.decoding else 1, r.arrival_s)

    def limits(self, queue: list[Request], now_s: float) -> Limits:
        return Limits(
            time_budget_s=self.tbt_s / self.safety,
            untimed_decodes=True,
            max_num_batched_tokens=sum(r.decoding for r in queue) * self.engine.decode_tokens
            + self.largest_chunk_tokens,
            misfit_ends_filling=True,
            max_num_seqs=self.max_num_seqs,
        )


@dataclasses.dataclass
class Call:
    """The inputs of one call of the scheduler."""

    engine: Engine
    now_s: float
    limits: Limits
    decodes: list[Request]
    prefills: list[Request]
    room: int
    longest_s: float  # T
    alpha: float

    @property
    def decode_shapes(self) -> list[Shape]:
        return [r.shape(1) for r in self.decodes]


class Qoserve(Scheduler):
    def __init__(
        self,
        dynamic_chunking: str = "paper",
        largest_chunk_tokens: int = 2500,
        max_num_batched_tokens: int = 256,
        safety: float = 1.2,
        late_limit: float = 1.0,
        ttlt_slack: str = "unbounded",
        alpha_s_per_token: float = 0.008,
        low_load_alpha_s_per_token: float = 0.001,
        low_load_tokens: int = 0,
        relegation: str = "paper",
        importance: str = "low-first",
        relegated_order: str = "hybrid",
        selective_preemption: str = "on",
        max_num_seqs: int = 128,
        least_chunk_tokens: int = 0,
        step_tokens: int = 0,
        **limits: Any,
    ) -> None:
        super().__init__(**limits)
        assert dynamic_chunking in ("paper", "code", "off") and ttlt_slack in ("unbounded", "paced")
        assert relegation in ("paper", "code", "off") and importance in ("low-first", "spare", "ignore")
        assert relegated_order in ("hybrid", "low-first") and selective_preemption in ("on", "off")
        self.dynamic_chunking, self.largest_chunk_tokens = dynamic_chunking, largest_chunk_tokens
        self.max_num_batched_tokens, self.safety, self.late_limit = max_num_batched_tokens, safety, late_limit
        self.ttlt_slack, self.alpha, self.low_load_alpha = ttlt_slack, alpha_s_per_token, low_load_alpha_s_per_token
        self.low_load_tokens, self.relegation, self.importance = low_load_tokens, relegation, importance
        self.relegated_order, self.selective_preemption = relegated_order, selective_preemption == "on"
        self.max_num_seqs, self.least_chunk_tokens = max_num_seqs, least_chunk_tokens
        self.step_tokens = step_tokens

    def prepare(self, requests: list[Request], estimator: Latency) -> None:
        super().prepare(requests, estimator)
        self.relegated: set[int] = set()  # requests of mark 1

    def forget(self, r: Request) -> None:
        self.relegated.discard(r.index)

    def decide(self, engine: Engine, now_s: float) -> Decision:
        self.engine = engine
        decodes = [r for r in engine.queue if r.decoding]
        prefills = [r for r in engine.queue if not r.decoding]
        limits = dataclasses.replace(self.limits_for(decodes, now_s), **self.overrides)
        room = max(0, int(limits.max_num_batched_tokens) - len(decodes) * engine.decode_tokens)
        call = Call(engine, now_s, limits, decodes, prefills, room, INF, self.alpha_for(prefills))
        call.longest_s = self.decodes_and_prefill_s(call.decode_shapes, room)
        if self.dynamic_chunking == "paper":
            least_s = self.decodes_and_prefill_s(call.decode_shapes, min(room, self.least_chunk_tokens))
            call.longest_s = min(call.longest_s, max(limits.time_budget_s, least_s))
        if self.relegation != "off":
            self.relegate(call)
        ranks = [(0, r.arrival_s) if r.decoding else self.prefill_rank(r, call) for r in engine.queue]
        return Decision(ranks, limits)

    # Words

    def expected_tokens(self, r: Request) -> float:
        """Return mu + 2 sigma - g."""
        group = self.engine.by_application[r.application]
        sigma = math.sqrt(group.squared_deviations / group.finished) if group.finished else 0.0
        return group.mean_output_tokens + 2 * sigma - r.emitted

    def work(self, r: Request) -> float:
        """Return the remaining tokens; of a TTLT request also those still to be generated."""
        return r.left if r.interactive else r.left + max(0.0, self.expected_tokens(r))

    def decodes_and_prefill_s(self, decodes: list[Shape], tokens: int) -> float:
        return self.estimator.batch([*decodes, (tokens, 0, False)] if tokens > 0 else decodes)

    # 2 and 3

    def slack(self, r: Request, now_s: float) -> float:
        if r.interactive:
            slack_s = r.remain(now_s)
            if self.dynamic_chunking != "code" and slack_s < -self.late_limit * r.tpot_slo_s:
                return r.tpot_slo_s
            return slack_s
        if self.ttlt_slack == "paced" and r.remain(now_s) > 0:
            return r.remain(now_s) / max(1.0, self.expected_tokens(r))
        return INF

    def limits_for(self, decodes: list[Request], now_s: float) -> Limits:
        slack_s = min([self.slack(r, now_s) for r in decodes], default=INF)
        if self.dynamic_chunking == "off":
            return Limits(max_num_seqs=self.max_num_seqs, max_num_batched_tokens=self.max_num_batched_tokens)
        if self.dynamic_chunking == "code":
            shapes, taken = [r.shape(1) for r in decodes], len(decodes) * self.engine.decode_tokens
            fitting = [s for s in SIZES if 1.2 * self.decodes_and_prefill_s(shapes, s - taken) <= slack_s]
            size = max(fitting) if fitting and slack_s > 0 else 128
            if self.engine.free_blocks < 1000:
                size = min(size, 512)
            return Limits(max_num_seqs=self.max_num_seqs, max_num_batched_tokens=max(size, taken))
        return Limits(
            step_tokens=self.step_tokens,
            max_num_seqs=self.max_num_seqs,
            time_budget_s=slack_s / self.safety,
            untimed_decodes=True,
            max_num_batched_tokens=len(decodes) * self.engine.decode_tokens + self.largest_chunk_tokens,
            untimed_prefill_tokens=self.least_chunk_tokens,
            misfit_ends_filling=True,
        )

    # 4

    def alpha_for(self, prefills: list[Request]) -> float:
        waiting = sum(r.left for r in prefills if r.index not in self.relegated)
        return self.low_load_alpha if waiting < self.low_load_tokens else self.alpha

    def prefill_rank(self, r: Request, call: Call) -> Rank:
        hybrid = r.deadline(1) + call.alpha * self.work(r)
        if r.index in self.relegated:
            return (3, -r.priority, hybrid) if self.relegated_order == "low-first" else (3, hybrid)
        if self.selective_preemption and r.running:
            need_s = self.estimator.batch([r.shape(r.left)])
            if call.now_s + need_s < r.deadline(r.emitted + 1) <= call.now_s + call.longest_s + need_s:
                return (1, hybrid)
        return (2, hybrid)

    # 5

    def relegate(self, call: Call) -> None:
        batch, room = call.decode_shapes, call.room
        in_order = sorted(call.prefills, key=lambda r: self.prefill_rank(r, call))  # ties by place
        in_order = [r for r in in_order if r.index not in self.relegated]
        for place, r in enumerate(in_order):
            if room <= 0:
                break
            if r.index in self.relegated:  # as a lower one
                continue
            c = self.chunk(r, batch, room, call.limits)
            if self.late(r, call.now_s + self.estimator.batch([*batch, r.shape(c)] if c > 0 else batch), call):
                after = [other for other in in_order[place + 1 :] if other.index not in self.relegated]
                lower = [other.index for other in after if other.priority > r.priority]
                if self.importance == "low-first":
                    self.relegated |= {r.index, *lower}
                elif self.importance == "ignore" or not lower:
                    self.relegated.add(r.index)
            if r.index in self.relegated:
                continue
            if c == 0:
                break
            batch = [*batch, r.shape(c)]
            room -= c

    def chunk(self, r: Request, batch: list[Shape], room: int, limits: Limits) -> int:
        most = min(r.left, room)
        if self.dynamic_chunking != "paper":
            return most
        timed = largest(most, lambda c: self.estimator.batch([*batch, r.shape(c)]) <= limits.time_budget_s)
        before = sum(tokens for tokens, _, decoding in batch if not decoding)
        return max(timed, min(most, self.least_chunk_tokens - before))

    def late(self, r: Request, end_s: float, call: Call) -> bool:
        deadline_s = r.deadline(r.emitted + 1)
        if self.relegation == "paper":
            return deadline_s <= end_s
        if r.running:
            return False
        engine = call.engine
        needed_s = self.work(r) * engine.busy_s / engine.computed_tokens if engine.computed_tokens else 0.0
        return call.now_s + needed_s > deadline_s
