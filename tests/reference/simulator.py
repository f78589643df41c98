"""The reference simulator, written from the rules in docs/ alone: slow, and easy to check against them.

Read it beside simulation.md, cluster_rules.md and feature_rules.md there: names are the same. simulation.py has what
happens in time, packer.py forms the batches, work.py suspends them, router.py is the router at work, incidents.py takes
requests back.
"""

import math
from copy import deepcopy
from dataclasses import dataclass, fields

from .adapters import Adapters
from .decisions import Scheduler
from .disturbances import Corrector, Drift
from .engines import Engine, HostMemory, Kind
from .front_end import FrontEnd
from .grouped_memory import GroupedMemory
from .incidents import Incident
from .kv_groups import KvGroup
from .latency import Latency
from .log import EngineLog, Iteration, Log, Move, StuckError
from .memory import Memory
from .requests import INF, Request
from .routers import Router
from .scalers import Scaler
from .simulation import Simulation
from .speculation import Speculating, Speculation
from .stores import PrefixStore, Store
from .transfers import Link
from .work import Operators


@dataclass
class Pool:
    """A pool of a cluster."""

    engines: int
    block_tokens: int
    total_blocks: int
    watermark: float
    scheduler: Scheduler  # of this pool alone: it may remember what it has seen
    device: Latency
    estimator: Latency
    role: str = "both"  # both, prefill, decode
    host: HostMemory | None = None  # of each engine
    tier: int | None = None  # None: the common pool
    operators: Operators | None = None
    prefix_store: PrefixStore | None = None
    prefix_caching: bool = False
    kv_events: bool = False
    asynchronous: bool = False
    startup: tuple[float, int] | None = None  # seconds, and how many serve from the beginning
    speculation: Speculation | None = None
    lockstep: int = 1  # engines that start and end iterations together
    most_batch_tokens: float = INF
    most_sequences: float = INF
    groups: list[KvGroup] | None = None  # of layers
    role_change_s: float | None = None  # None: its engines keep their roles
    adapters: Adapters | None = None  # of an engine, which is copied for each


def simulate(
    requests: list[dict],
    engines: int,
    block_tokens: int,
    total_blocks: int,  # of each engine
    watermark: float,
    scheduler: Scheduler,
    device: Latency,
    estimator: Latency,
    until_s: float = INF,  # events up to and at this instant are handled, later ones are not
    drift: Drift | None = None,
    correction: tuple[float, int, bool] | None = None,  # theta, window_iterations, compounding
    host: HostMemory | None = None,  # of each engine
    clients: int | None = None,
    max_concurrency: int | None = None,
    prefix_caching: bool = False,
    chunk_tokens: int = 1,  # of the chunks of prompts
    front_end: FrontEnd | None = None,
    speculation: Speculation | None = None,
    asynchronous: bool = False,
    most_batch_tokens: float = INF,
    most_sequences: float = INF,
    groups: list[KvGroup] | None = None,
    adapters: Adapters | None = None,  # of an engine, as it is at first
) -> Log:
    """Serve `requests` (dicts with the fields of `Request`, in order of arrival; other keys are ignored)."""
    pool = Pool(
        engines, block_tokens, total_blocks, watermark, scheduler, device, estimator, host=host,
        prefix_caching=prefix_caching, speculation=speculation, asynchronous=asynchronous,
        most_batch_tokens=most_batch_tokens, most_sequences=most_sequences, groups=groups, adapters=adapters,
    )  # fmt: skip
    return simulate_cluster(
        requests, [pool], until_s=until_s, drift=drift, correction=correction, clients=clients,
        max_concurrency=max_concurrency, chunk_tokens=chunk_tokens, front_end=front_end,
    )  # fmt: skip


def set_chunks_apart(everyone: list[Request]) -> None:
    """Renumber chunks by adapter and number, so that two adapters never share one."""
    pairs = sorted({(request.adapter, chunk) for request in everyone for chunk in request.chunks})
    number = {pair: i for i, pair in enumerate(pairs)}
    for request in everyone:
        request.chunks = [number[request.adapter, chunk] for chunk in request.chunks]


def set_off(machine: Engine, startup_s: float, started: int, place_in_pool: int) -> None:
    """Set the engine's state at the start: in a tier, or off."""
    machine.startup_s = startup_s
    if place_in_pool < started:
        machine.tier = machine.tier or 0
    else:
        machine.tier, machine.is_off, machine.ready_s = None, True, INF


def simulate_cluster(
    requests: list[dict],
    pools: list[Pool],
    router: Router | None = None,
    link: Link | None = None,  # None: KV arrives at once
    signal_delay_s: float = 0.0,
    until_s: float = INF,
    drift: Drift | None = None,  # of every device
    correction: tuple[float, int, bool] | None = None,
    scaler: Scaler | None = None,
    incidents: list[Incident] | None = None,  # in order of time
    tiers: list[float] | None = None,  # TPOT SLOs; None: those of the requests
    chunk_tokens: int = 1,  # of the chunks of prompts
    clients: int | None = None,
    max_concurrency: int | None = None,
    front_end: FrontEnd | None = None,
) -> Log:
    """Simulate a cluster. Raises StuckError if the router holds requests forever."""
    known = {f.name for f in fields(Request)}
    everyone = [
        Request(index=i, **{key: value for key, value in row.items() if key in known}) for i, row in enumerate(requests)
    ]
    if any(request.adapter for request in everyone):  # KV of different adapters is different
        set_chunks_apart(everyone)
    for request, row in zip(everyone, requests, strict=True):
        if request.prompt_tokens >= chunk_tokens and request.chunks:
            request.beginning = request.chunks[0]
        if "after" in row:
            request.session = request.index
            while everyone[request.session].after >= 0:
                request.session = everyone[request.session].after
    machines: list[Engine] = []
    for place, pool in enumerate(pools):
        one = pool.speculation or Speculation()
        kind = Kind(pool.scheduler, Speculating(pool.device, one), Speculating(pool.estimator, one))
        for place_in_pool in range(pool.engines):
            machine = Engine(
                len(machines), pool.block_tokens, pool.total_blocks, math.floor(pool.watermark * pool.total_blocks)
            )
            machine.most_batch_tokens, machine.most_sequences = pool.most_batch_tokens, pool.most_sequences
            machine.speculation, machine.groups = one, pool.groups or []
            machine.role, machine.kind, machine.host = pool.role, kind, pool.host or HostMemory()
            machine.corrector = None if correction is None else Corrector(*correction)
            machine.pool, machine.tier, machine.operators = place, pool.tier, pool.operators
            machine.role_change_s = pool.role_change_s
            if pool.role_change_s is not None and scaler is not None:
                machine.tier = pool.tier or 0
            if pool.startup is not None and scaler is not None and sum(pool.engines for pool in pools) > 1:
                set_off(machine, *pool.startup, place_in_pool)
            machine.store = None if pool.prefix_store is None else Store(pool.prefix_store, chunk_tokens)
            if pool.prefix_caching and pool.role != "decode":
                below = 0 if machine.store is None else max(1, machine.store.size.tokens // pool.block_tokens)
                machine.memory = Memory(pool.total_blocks, pool.block_tokens, chunk_tokens, below)
                if pool.groups:
                    memory = GroupedMemory(pool.total_blocks, pool.groups, chunk_tokens)
                    machine.memory, machine.groups = memory, memory.groups
                machine.kv_events = pool.kv_events
            machine.asynchronous = pool.asynchronous
            machine.adapters = pool.adapters if place_in_pool == 0 else deepcopy(pool.adapters)
            machines.append(machine)
        ranks = machines[len(machines) - pool.engines :]
        for place_in_pool, machine in enumerate(ranks):
            begin = place_in_pool // pool.lockstep * pool.lockstep
            machine.group = ranks[begin : begin + pool.lockstep]
    simulation = Simulation(
        everyone, machines, drift=drift, router=router, link=link, signal_delay_s=signal_delay_s, scaler=scaler,
        incidents=incidents, tiers=tiers, clients=clients, max_concurrency=max_concurrency, front_end=front_end,
    )  # fmt: skip
    return simulation.run(until_s)


__all__ = [
    "EngineLog", "FrontEnd", "Iteration", "Log", "Move", "Pool", "Simulation", "StuckError", "simulate",
    "simulate_cluster",
]  # fmt: skip
