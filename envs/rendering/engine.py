"""The scene of one engine: its KV memory, its batch and its queue."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from servegym.envs.rendering import scene as s
from servegym.envs.rendering.requests import WAITING, entries_of, longest_prompt, requests_table, rows_of_engine
from servegym.envs.rendering.words import duration, policy_name, share
from servegym.errors import EnvError
from servegym.simulator.runs.simulation import Simulation

LEGEND = [
    (s.DECODES, "of decodes; in time"),
    (s.PREFILLS, "of prefills"),
    (s.MOVING, "on its way, or in host memory"),
    (s.LATE, "late"),
    (s.FREE, "free; left to compute"),
]
REMARK = "▶ in the running batch. [k] slot of the action. Deadline: of the next token, log scale. Priority: 0 highest."


def engine_scene(simulation: Simulation, e: int, action: str = "", slots: Sequence[int] = ()) -> s.Scene:
    """Describe engine e. action: the last action in words. slots: the request in each slot of the next action.

    Raises EnvError for an unknown engine.
    """
    engines = simulation.arrays.engines
    if not 0 <= e < len(engines):
        raise EnvError(f"engine {e}: it should be 0 to {len(engines) - 1}")
    engine, requests, longest = engines[e], rows_of_engine(simulation, e, slots), longest_prompt(simulation)
    scheduler = simulation.scenario.deployment.pools[engine.pool].scheduler or simulation.scenario.scheduler
    waits, late = requests["state"] == WAITING, int(requests["late"].sum())
    running, waiting = requests[~waits], requests[waits]
    return s.scene(
        simulation,
        f"engine {e}{'' if engine.up else ' (failed)'}, {policy_name(scheduler)}",
        action,
        [
            ("requests in memory", f"{len(running):,}", False),
            ("requests waiting", f"{len(waiting):,}", False),
            ("next token late", f"{late:,} of {len(requests):,}", late > 0),
        ],
        meters=[memory_of(simulation, e, requests), batch_of(simulation, e)],
        deadlines=("Time to the next deadline, all requests", requests["remain_s"]),
        bands=[
            [
                requests_table(f"In memory ({len(running):,})", running, longest, 22, 16),
                requests_table(f"Waiting ({len(waiting):,})", waiting, longest, 22, 12),
            ]
        ],
        legend=LEGEND,
        remark=REMARK,
    )


def memory_of(simulation: Simulation, e: int, queue: np.ndarray) -> tuple[str, str, int, s.Bar]:
    """Meter of KV blocks: those of decodes, of prefills, and of requests with KV in transfer to or from the engine."""
    engine, blocks = simulation.arrays.engines[e], simulation.arrays.requests["blocks"][queue["index"]]
    total, used = int(engine.total_blocks), int(engine.total_blocks - engine.free_blocks)
    decodes, prefills = int(blocks[queue["decoding"]].sum()), int(blocks[~queue["decoding"]].sum())
    counts = (decodes, s.DECODES), (prefills, s.PREFILLS), (used - decodes - prefills, s.MOVING)
    bar = s.Bar([(count / total, kind) for count, kind in counts], tick=1 - engine.watermark_blocks / total)
    remark = f"of {engine.block_tokens} tokens each; tick: kept free of newcomers"
    return f"KV memory: {share(used / total)} of {total:,} blocks in use", remark, 760, bar


def batch_of(simulation: Simulation, e: int) -> tuple[str, str, int, s.Bar]:
    """Meter of the running batch, else the last one: requests, tokens, estimated time, and time so far."""
    engine, entries = simulation.arrays.engines[e], entries_of(simulation, e)
    name = "Running batch" if engine.batch_length > 0 else "Last batch"
    if not len(entries):
        return f"{name}: none", "", 450, s.Bar([])
    estimate = f"estimated {duration(engine.batch_estimate_s)}"
    words = f"{name}: {len(entries):,} requests, {entries['tokens'].sum():,} tokens, {estimate}"
    if engine.batch_length == 0:
        return words, "", 450, s.Bar([], words="ended")
    ran_s = s.ran_s(simulation, e)
    done = min(1.0, ran_s / engine.batch_estimate_s) if engine.batch_estimate_s > 0 else 0.0
    return words, "", 450, s.Bar([(done, s.DECODES)], words=f"{duration(ran_s)} so far")
