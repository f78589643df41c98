"""One engine, as pictures show it: its queue, its KV memory and its batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from servegym.envs.rendering.head import Head, head_of
from servegym.envs.rendering.rows import Requests, entries_of, longest_prompt, rows_of_engine
from servegym.errors import EnvError
from servegym.simulator.runs.simulation import Simulation


@dataclasses.dataclass(frozen=True)
class Memory:
    """KV blocks of an engine. moving: of requests whose KV is on its way here or from here."""

    total: int
    decodes: int
    prefills: int
    moving: int
    watermark: int  # kept free when a request is admitted beside others
    block_tokens: int

    @property
    def used(self) -> int:
        return self.decodes + self.prefills + self.moving


@dataclasses.dataclass(frozen=True)
class Batch:
    """The running batch, or the last. estimate_s: by the estimator. ran_s: so far; nan: it has ended."""

    requests: int
    tokens: int
    estimate_s: float
    ran_s: float

    @property
    def runs(self) -> bool:
        return not np.isnan(self.ran_s)


@dataclasses.dataclass(frozen=True)
class EngineScene:
    head: Head
    name: str
    memory: Memory
    batch: Batch
    requests: Requests
    longest_prompt: int


def engine_scene(simulation: Simulation, e: int, action: str = "", slots: Sequence[int] = ()) -> EngineScene:
    """action: the last, in words. slots: the request in each slot of the next one.

    Raises EnvError for an engine that there is not.
    """
    engines = simulation.arrays.engines
    if not 0 <= e < len(engines):
        raise EnvError(f"engine {e}: it should be 0 to {len(engines) - 1}")
    engine, requests = engines[e], rows_of_engine(simulation, e).in_slots(slots)
    pool = simulation.scenario.deployment.pools[engine.pool]
    scheduler = pool.scheduler or simulation.scenario.scheduler
    return EngineScene(
        head=head_of(simulation, action),
        name=f"engine {e}{'' if engine.up else ' (failed)'}, {scheduler.name}",
        memory=memory_of(simulation, e, requests),
        batch=batch_of(simulation, e),
        requests=requests,
        longest_prompt=longest_prompt(simulation),
    )


def memory_of(simulation: Simulation, e: int, queue: Requests) -> Memory:
    engine = simulation.arrays.engines[e]
    blocks = simulation.arrays.requests["blocks"][queue.index]
    decodes, prefills = int(blocks[queue.decoding].sum()), int(blocks[~queue.decoding].sum())
    return Memory(
        total=int(engine.total_blocks),
        decodes=decodes,
        prefills=prefills,
        moving=int(engine.total_blocks - engine.free_blocks) - decodes - prefills,
        watermark=int(engine.watermark_blocks),
        block_tokens=int(engine.block_tokens),
    )


def batch_of(simulation: Simulation, e: int) -> Batch:
    arrays, engine, entries = simulation.arrays, simulation.arrays.engines[e], entries_of(simulation, e)
    ran_s = np.nan
    if engine.batch_length > 0:
        ran_s = float(arrays.status[0].now_s - engine.batch_start_s)
        if engine.running_task >= 0:  # it may have run before it was suspended
            ran_s += float(arrays.state.tasks[e, engine.running_task].executed_s)
    return Batch(len(entries), int(entries["tokens"].sum()), float(engine.batch_estimate_s), ran_s)
