"""Settings of the cases worked by hand.

Unless a case says otherwise a batch takes 1 s + 1 s a token, a KV block holds one token, SLOs are far off.
"""

from collections.abc import Callable
from typing import Any

from .engines import Engine, HostMemory
from .latency import Linear
from .packer import Formation
from .requests import INF, Request
from .schedulers import Custom, Scheduler
from .simulator import Log, Simulation, simulate

SECONDS = Linear(a_p=0, b_p=0, c_p=1, a_d=0, b_d=1, t_c=1)
FAR = {"ttft_slo_s": 1000.0, "tpot_slo_s": 1000.0, "first_token_gain": 1.0, "decode_token_gain": 1.0}


def row(prompt: int, output: int, arrival_s: float = 0.0, **more: Any) -> dict:
    return {**FAR, "arrival_s": arrival_s, "prompt_tokens": prompt, "output_tokens": output, **more}


def served(
    rows: list[dict],
    scheduler: Scheduler,
    blocks: int = 1000,
    engines: int = 1,
    watermark: float = 0.0,
    until_s: float = INF,
    host: HostMemory | None = None,
) -> Log:
    return simulate(rows, engines, 1, blocks, watermark, scheduler, SECONDS, SECONDS, until_s, host=host)


def steps(log: Log) -> list[tuple]:
    return [(i.start_s, i.end_s, i.batch, i.evicted, i.free_blocks) for i in log.iterations]


def state(
    prompt: int, emitted: int = 0, computed: int = 0, admitted: int = 0, evicted: int = 0, **more: Any
) -> Request:
    """Make a request in the middle of a run, with blocks of one token each."""
    request = Request(index=0, **row(prompt, 100, **more))
    request.emitted, request.computed, request.blocks = emitted, computed, computed
    request.admitted, request.evicted = admitted, evicted
    return request


def forming(
    scheduler: Scheduler,
    *queue: Request,
    blocks: int = 1000,
    watermark_blocks: int = 0,
    now_s: float = 0.0,
    host: HostMemory | None = None,
    block_tokens: int = 1,
    estimator: Linear = SECONDS,
    before: Callable[[Engine], None] = lambda engine: None,
) -> Formation:
    """Form one batch from a queue, with requests numbered by place. before: the engine's log so far."""
    for place, request in enumerate(queue):
        request.index = place
    machine = Engine(0, block_tokens, blocks, watermark_blocks, list(queue), host or HostMemory())
    before(machine)
    return Simulation(list(queue), [machine], scheduler, SECONDS, estimator).form_batch(machine, now_s)


def formed(scheduler: Scheduler, *queue: Request, **more: Any) -> tuple[list[tuple[int, int]], list[int], int]:
    """Return of a formed batch: (place, tokens) in batch order, evicted places, free blocks."""
    formation = forming(scheduler, *queue, **more)
    batch = [(r.index, tokens) for r, tokens in formation.batch]
    return batch, [r.index for r in formation.evicted], formation.engine.free_blocks


def by_place(**limits: Any) -> Custom:
    """Rank requests by their place in the queue."""
    return Custom(lambda r, now_s: (r.index,), **limits)
