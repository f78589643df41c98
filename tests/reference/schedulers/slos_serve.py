"""docs/systems/slos_serve.md."""

import dataclasses
import math
from typing import Any

from ..decisions import Decision, Limits, Rank
from ..engines import Engine
from ..latency import Latency
from ..packer import largest
from ..requests import INF, Request
from .proserve import SlideBatching

MOST_NEW = 60


@dataclasses.dataclass(frozen=True)
class State:
    """A partial plan of the dynamic program."""

    spare: float = 0.0
    decodes: tuple[Request, ...] = ()  # in the order in which they joined
    blocks: int = 0
    chosen: frozenset[int] = frozenset()

    @property
    def tpot_s(self) -> float:
        return min((r.tpot_slo_s for r in self.decodes if r.interactive), default=INF)

    def due(self, seconds: float) -> list[tuple[int, int, bool]]:
        """Return the decode tokens that are due in a batch of this duration."""
        per_s = 0.0
        for r in self.decodes:
            per_s += 1.0 / r.tpot_slo_s if r.interactive else 0.0
        count = math.ceil(per_s * seconds - 1e-6) if self.decodes else 0
        mean = sum(r.prompt_tokens for r in self.decodes) // len(self.decodes) if self.decodes else 0
        return [(1, mean, True)] * count


class SlosServe(SlideBatching):
    def __init__(
        self,
        max_num_batched_tokens: int = 2048,
        output_tokens: float = 200.0,
        deadlines: str = "early-first-token",
        max_num_seqs: int = 256,
        **limits: Any,
    ) -> None:
        super().__init__(deadlines=deadlines, **limits)
        self.most_tokens, self.output_tokens, self.most_seqs = max_num_batched_tokens, output_tokens, max_num_seqs

    def prepare(self, requests: list[Request], estimator: Latency) -> None:
        super().prepare(requests, estimator)
        self.decided: dict[int, bool] = {}  # by request: accepted

    def forget(self, r: Request) -> None:
        self.decided.pop(r.index, None)

    def decide(self, engine: Engine, now_s: float) -> Decision:
        self.engine = engine
        if any(r.index not in self.decided for r in engine.queue):
            self.plan(engine.queue, now_s)
        return super().decide(engine, now_s)

    def accepted(self, r: Request) -> bool:
        return self.decided.get(r.index, False)

    def blocks_of(self, r: Request) -> int:
        group = self.engine.by_application[r.application]
        mean = group.mean_output_tokens if group.outputs else self.output_tokens
        return self.engine.blocks_for(r.prompt_tokens + math.ceil(max(r.emitted, mean) - 1e-6))

    def joined(self, state: State, r: Request, tokens: int) -> State:
        return State(state.spare - tokens, (*state.decodes, r), state.blocks + self.blocks_of(r), state.chosen)

    def later(self, state: State, seconds: float) -> State:
        if not seconds > 0:
            return state
        batch_s = min(seconds, state.tpot_s)
        due = state.due(batch_s) if state.tpot_s < INF else []
        most = self.most_tokens - len(due)
        if most < 1:
            return state
        chunk = largest(most, lambda c: self.estimator.batch([*due, (c, 0, False)]) <= batch_s)
        if chunk == 0:
            return state
        if state.tpot_s == INF:
            batch_s = self.estimator.batch([(chunk, 0, False)])
        return dataclasses.replace(state, spare=state.spare + math.floor(seconds / batch_s) * chunk)

    def paced(self, state: State) -> bool:
        return state.tpot_s == INF or self.estimator.batch(state.due(state.tpot_s)) <= state.tpot_s

    def plan(self, queue: list[Request], now_s: float) -> None:
        states: list[State | None] = [State()]  # by how many new ones are accepted
        for r in queue:
            if self.accepted(r) and r.decoding:
                states[0] = self.joined(states[0], r, 0)
        rest = [r for r in queue if r.index not in self.decided or (self.accepted(r) and not r.decoding)]
        rest.sort(key=lambda r: r.deadline(r.emitted + 1))
        new: list[Request] = []
        at_s = now_s
        for r in rest:
            undecided = r.index not in self.decided
            if undecided and len(new) == MOST_NEW:
                continue
            deadline_s = max(at_s, r.deadline(r.emitted + 1))
            states = [state and self.later(state, deadline_s - at_s) for state in states]
            at_s = deadline_s
            if undecided:
                new.append(r)
                states = self.offered(states, r)
            elif states[0].spare < r.left:
                self.decided[r.index] = False
            else:
                states = [state and self.joined(state, r, r.left) for state in states]
                states = [state if state and state.spare >= 0 else None for state in states]
        best = next(state for state in reversed(states) if state)
        for r in new:
            self.decided[r.index] = r.index in best.chosen

    def offered(self, states: list[State | None], r: Request) -> list[State | None]:
        found = [*states, None]
        for count, state in enumerate(states):
            if state is None or (count == MOST_NEW):
                continue
            more = self.joined(state, r, r.left)
            more = dataclasses.replace(more, chosen=state.chosen | {r.index})
            if more.spare < 0 or more.blocks > self.engine.total_blocks or not self.paced(more):
                continue
            there = found[count + 1]
            if there is None or more.spare > there.spare:
                found[count + 1] = more
        return found if found[-1] else found[:-1]

    def budget_s(self, queue: list[Request], now_s: float) -> float:
        decodes = [r for r in queue if self.accepted(r) and r.decoding and r.interactive]
        return min((max(self.remain(r, now_s), r.tpot_slo_s) for r in decodes), default=INF)

    def ranks(self, queue: list[Request], now_s: float) -> list[Rank]:
        budget_s = self.budget_s(queue, now_s)

        def rank(r: Request) -> Rank:
            if not self.accepted(r):
                return (3, r.arrival_s)
            deadline_s = now_s + self.remain(r, now_s)
            if not r.decoding:
                return (1, deadline_s)
            interval_s = r.tpot_slo_s if r.interactive else 0.0
            return (0 if self.remain(r, now_s) - interval_s < budget_s else 2, deadline_s)

        return [rank(r) for r in queue]

    def limits(self, queue: list[Request], now_s: float) -> Limits:
        return Limits(
            time_budget_s=self.budget_s(queue, now_s), max_num_batched_tokens=self.most_tokens,
            max_num_seqs=self.most_seqs, evict_for="all",
        )  # fmt: skip
