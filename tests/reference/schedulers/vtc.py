"""docs/systems/vtc.md."""

from dataclasses import dataclass, field
from typing import Any

from ..decisions import Decision, Rank
from ..engines import Engine
from ..latency import Latency
from ..requests import Request
from .sarathi import SarathiFcfs


@dataclass
class Client:
    counter: float = 0.0
    charged: float = 0.0
    weight: float = 0.0


@dataclass
class Memory:
    """The counters of one engine."""

    clients: dict[int, Client] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)  # requests that waited
    last: int | None = None  # a client


class WeightedVtc(SarathiFcfs):
    def __init__(self, input_weight: float = 1.0, output_weight: float = 2.0, **more: Any) -> None:
        super().__init__(**more)
        self.input_weight, self.output_weight = input_weight, output_weight

    def prepare(self, requests: list[Request], estimator: Latency) -> None:
        super().prepare(requests, estimator)
        self.memories: dict[int, Memory] = {}  # by engine

    def decide(self, engine: Engine, now_s: float) -> Decision:
        memory = self.memories.setdefault(engine.index, Memory())
        queue = engine.queue
        here = {r.client for r in queue}
        for name in here:  # 1
            client = memory.clients.setdefault(name, Client())
            client.weight = next(r.weight for r in queue if r.client == name)
        for name in here:  # 2
            self.charge(engine, memory, name)
        waiting = [r for r in queue if not r.running]
        self.lift(engine, memory, waiting)  # 3
        self.tags = self.tags_of(memory, waiting)  # 4
        memory.seen |= {r.index for r in waiting}  # 5
        if waiting:
            memory.last = max(waiting, key=lambda r: (self.tags[r.index], queue.index(r))).client
        return super().decide(engine, now_s)

    def forget(self, r: Request) -> None:
        for memory in self.memories.values():
            memory.seen.discard(r.index)

    def charge(self, engine: Engine, memory: Memory, name: int) -> None:
        client, group = memory.clients[name], engine.by_client[name]
        served = self.input_weight * group.admitted_prompt_tokens + self.output_weight * group.num_output_tokens
        client.counter += (served - client.charged) / client.weight
        client.charged = served

    def lift(self, engine: Engine, memory: Memory, waiting: list[Request]) -> None:
        left_waiting = {r.client for r in waiting if r.index in memory.seen}
        returning = {r.client for r in waiting} - left_waiting
        if left_waiting:
            level = min(memory.clients[name].counter for name in left_waiting)
        elif memory.last is not None:
            self.charge(engine, memory, memory.last)
            level = memory.clients[memory.last].counter
        else:
            return
        for name in returning:
            memory.clients[name].counter = max(memory.clients[name].counter, level)

    def tags_of(self, memory: Memory, waiting: list[Request]) -> dict[int, float]:
        """Return the tags of requests, by request."""
        running = {r.client: memory.clients[r.client].counter for r in waiting}
        tags = {}
        for r in waiting:
            tags[r.index] = running[r.client]
            if r.admitted == 0:
                running[r.client] += self.input_weight * r.prompt_tokens / memory.clients[r.client].weight
        return tags

    def rank(self, r: Request, now_s: float) -> Rank:
        if r.decoding and r.running:
            return (0, r.arrival_s)
        return (1, r.arrival_s) if r.running else (2, self.tags[r.index])
