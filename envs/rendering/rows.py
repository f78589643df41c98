"""Requests as pictures show them, one a row: what a scheduler knows of them, so never how long the answer will be."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from servegym.simulator.features.front import has_arrived
from servegym.simulator.runs.simulation import Simulation

IN_BATCH, IN_MEMORY, SUSPENDED, WAITING = "in batch", "in memory", "suspended", "waiting"


@dataclasses.dataclass(frozen=True)
class Requests:
    """Requests in the order in which they are shown; arrays of equal length.

    context_tokens: prompt and emitted tokens, of which computed_tokens have their KV in the engine and offloaded_tokens
    in host memory. batch_tokens: in the running (else the last) batch. remain_s: to the deadline of the next token; at
    0 or below it is late. state: IN_BATCH (of one that runs), SUSPENDED, else IN_MEMORY or WAITING. slot: of the next
    action; -1: in none.
    """

    index: np.ndarray
    priority: np.ndarray
    prompt_tokens: np.ndarray
    context_tokens: np.ndarray
    computed_tokens: np.ndarray
    offloaded_tokens: np.ndarray
    num_output_tokens: np.ndarray
    batch_tokens: np.ndarray
    remain_s: np.ndarray
    state: np.ndarray
    slot: np.ndarray

    def __len__(self) -> int:
        return len(self.index)

    @property
    def late(self) -> np.ndarray:
        """bool[...]"""
        return self.remain_s <= 0

    @property
    def decoding(self) -> np.ndarray:
        """bool[...]: all that is left is the token emitted last (docs/simulation.md, "Words")."""
        return (self.num_output_tokens > 0) & (self.context_tokens - self.computed_tokens - self.offloaded_tokens == 1)

    def at(self, chosen: np.ndarray | slice) -> Requests:
        """The requests at some places."""
        return Requests(*(getattr(self, field.name)[chosen] for field in dataclasses.fields(self)))

    def in_slots(self, slots: Sequence[int]) -> Requests:
        """With the slot of each request; those in slots come first."""
        places = {request: slot for slot, request in enumerate(slots)}
        slot = np.array([places.get(request, -1) for request in self.index.tolist()], "i8")
        order = np.argsort(np.where(slot < 0, len(slots), slot), kind="stable")
        return dataclasses.replace(self, slot=slot).at(order)

    def waiting(self, yes: bool) -> Requests:
        """Those without memory, or the others."""
        return self.at((self.state == WAITING) == yes)


def rows_of(simulation: Simulation, index: np.ndarray) -> Requests:
    """Requests of the workload, as WAITING as if they had just come."""
    requests = simulation.arrays.requests[index]
    deadline_s = requests["first_deadline_s"] + requests["num_output_tokens"] * requests["token_interval_s"]
    return Requests(
        index=np.asarray(index),
        priority=requests["priority"],
        prompt_tokens=requests["prompt_tokens"],
        context_tokens=requests["prompt_tokens"] + requests["num_output_tokens"],
        computed_tokens=requests["computed_tokens"],
        offloaded_tokens=requests["offloaded_tokens"],
        num_output_tokens=requests["num_output_tokens"],
        batch_tokens=np.zeros(len(index), "i8"),
        remain_s=deadline_s - simulation.arrays.status[0].now_s,
        state=np.full(len(index), WAITING, "U9"),
        slot=np.full(len(index), -1),
    )


def rows_of_engine(simulation: Simulation, e: int) -> Requests:
    """The queue of an engine, in order of arrival."""
    engine = simulation.arrays.engines[e]
    queue = simulation.arrays.queues[e][: engine.queue_length]
    requests, entries = simulation.arrays.requests[queue], entries_of(simulation, e)
    tokens = dict(zip(entries["request"].tolist(), entries["tokens"].tolist(), strict=True))
    batch_tokens = np.array([tokens.get(r, 0) for r in queue.tolist()], "i8")
    state = np.where(requests["blocks"] > 0, IN_MEMORY, WAITING)
    if engine.batch_length > 0:
        state[batch_tokens > 0] = IN_BATCH
    state[(requests["task"] >= 0) & (requests["task"] != engine.running_task)] = SUSPENDED
    return dataclasses.replace(rows_of(simulation, queue), batch_tokens=batch_tokens, state=state)


def entries_of(simulation: Simulation, e: int) -> np.ndarray:
    """ENTRY[...]: the running batch of an engine, or the last; empty if it has failed."""
    engine = simulation.arrays.engines[e]
    length = (engine.batch_length or engine.last_batch_length) if engine.up else 0
    batches = simulation.router_state.running if engine.ahead.on else simulation.arrays.entries
    return batches[e][:length]


def longest_prompt(simulation: Simulation) -> int:
    """Tokens of the longest prompt that has come so far: the scale of prompts in pictures."""
    arrays = simulation.arrays
    come = has_arrived(arrays)
    if arrays.status[0].deciding_request >= 0:
        come[arrays.status[0].deciding_request] = True
    return int(arrays.requests["prompt_tokens"][come].max(initial=1))
