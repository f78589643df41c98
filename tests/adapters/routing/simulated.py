"""A simulated cluster's events and routing decisions, and a live router that is told the same events.

What a live engine reports of itself (free blocks, when its iteration should end) is what the simulated one reports.
"""

import dataclasses
from typing import Any

import numpy as np

from servegym.adapters.routing.live import LiveEngine, LiveRouter
from servegym.adapters.routing.rows import RequestTerms
from servegym.baselines.registry import scheduler
from servegym.simulator.features.adapters import Adapters, prompts_by_adapter
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.prefixes import PrefixStore, Prompts
from servegym.simulator.policies.gains import Gain
from servegym.simulator.policies.policy import Policy
from servegym.simulator.records.signatures import Known
from servegym.simulator.records.statuses import AT_ROUTES, DECISION
from servegym.simulator.records.types import DRAINED, FAILED, FINISH, HOLD, RECALLED, REFUSE, RETURNED, TOKEN
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import linear

FIRST_WEIGHT = 4.0
EVENTS = (TOKEN, FINISH, FAILED, RETURNED, DRAINED, RECALLED)
MODELS = (linear(c_p=2**-12, b_d=2**-10, t_c=2**-7), linear(c_p=2**-11, b_d=2**-10, a_d=2**-18, t_c=2**-6))


@dataclasses.dataclass
class Decision:
    """What a router said of a request, and what it knew: VIEW[engines], queue records, requests with a token."""

    time_s: float
    request: int
    engine: int
    snapshots: np.ndarray
    records: list[list[int]]
    running: list[list[int]]
    adapters: list[list[int]]


def workload(
    seed: int, requests: int = 120, prefixes: bool = False, sessions: bool = False, adapters: bool = False
) -> Workload:
    """Bursts, three priorities, interactive and TTLT classes, one-token answers; three TPOT SLOs.

    sessions: most requests follow one of the three before. adapters: most requests name one of seven.
    """
    rng = np.random.default_rng(seed)
    made = Workload.from_columns(
        {
            "arrival_s": np.cumsum(rng.choice([0.0, 1 / 64, 0.5], requests, p=[0.5, 0.4, 0.1])),
            "prompt_tokens": rng.integers(16, 400, requests),
            "output_tokens": rng.integers(1, 30, requests),
            "priority": rng.integers(0, 3, requests),
            "weight": rng.choice([1.0, 2.0, 4.0], requests),
            "ttft_slo_s": rng.choice([0.125, 0.5, 2.0], requests),
            "tpot_slo_s": rng.choice([0.02, 0.05, 0.1], requests),
            "ttlt_slo_s": rng.choice([np.inf, np.inf, 5.0], requests),
        }
    )
    if sessions:
        after = np.where(rng.random(requests) < 0.7, np.arange(requests) - rng.integers(1, 4, requests), -1)
        turns = SessionDependencies(np.maximum(after, -1), rng.choice([0.0, 1 / 64, 1.0], requests))
        made = Workload.from_columns({name: made.table[name] for name in made.table.dtype.names}, turns=turns)
    if prefixes:
        counts = made.table["prompt_tokens"] // 16
        offsets = np.concatenate([[0], np.cumsum(counts)])
        same = rng.integers(0, 5, requests)  # of five beginnings
        chunks = np.concatenate([1000 * same[r] + np.arange(counts[r]) for r in range(requests)])
        made = dataclasses.replace(made, prefixes=Prompts(16, offsets, chunks))
    return made.replace(adapter=rng.integers(0, 8, requests)) if adapters else made


def scenario(router: Policy, served: Workload, incidents: tuple[Incident, ...] = (), stores: bool = True) -> Scenario:
    """Four engines of two kinds, short of memory. stores: for prompts that begin alike; else KV memory has them."""
    store = None if served.prefixes is None or not stores else PrefixStore(4096)
    loras = (
        [Adapters(2, 1 / 64, 1 / 128, 3), Adapters(1, 1 / 16, 1 / 128)] if served.table["adapter"].any() else [None] * 2
    )
    pools = tuple(
        Deployment(model, model, 60, engines=2, block_tokens=16, watermark=0.0, prefix_store=store, adapters=adapters)
        for model, adapters in zip(MODELS, loras, strict=True)
    )
    return Scenario(
        served, Cluster(pools), scheduler("sarathi-fcfs"), Gain(first_weight=FIRST_WEIGHT), router=router,
        incidents=incidents,
    )  # fmt: skip


def recorded(of: Scenario) -> tuple[list[Any], np.ndarray]:
    """What happened, in order: (time, kind, engine, request) lines and decisions; and REQUEST[requests] at the end."""
    simulation = Simulation(of, record_timeline=True, watched=True)
    items: list[Any] = []
    seen = 0

    def take_lines() -> None:
        nonlocal seen
        lines = simulation.arrays.timeline[seen : simulation.arrays.status[0].timeline_used]
        items.extend((float(x.time_s), int(x.kind), int(x.engine), int(x.request)) for x in lines if x.kind in EVENTS)
        seen += len(lines)

    while simulation._advance(AT_ROUTES) == DECISION:
        take_lines()
        known, status = simulation.router_state.known, simulation.arrays.status[0]
        items.append(
            Decision(
                float(status.now_s),
                int(status.deciding_request),
                int(simulation.router_state.route[0].engine),
                known.snapshots.copy(),
                [known.prefilling[e, : v.prefills].tolist() for e, v in enumerate(known.snapshots)],
                [known.decoding[e, : v.decodes].tolist() for e, v in enumerate(known.snapshots)],
                adapters_of(known),
            )
        )
    take_lines()
    return items, simulation.arrays.requests


def adapters_of(known: Known) -> list[list[int]]:
    """The adapters that a router holds to be in each engine's memories, the latest first."""
    return [sent[: v.max_cpu_loras][sent[: v.max_cpu_loras] > 0].tolist()
            for sent, v in zip(known.adapters, known.snapshots, strict=True)]  # fmt: skip


class LiveReplay:
    """A live router that is told what was recorded. `asked` notes what it says, and knew, each time it is asked."""

    def __init__(self, of: Scenario, rows: int, requests: np.ndarray):
        deployment, self.table = of.deployment, requests
        self.prefixes = prompts_by_adapter(of.workload.prefixes, of.workload.table["adapter"])
        engines = [
            LiveEngine(
                f"{e}", pool.estimator, pool.total_blocks, pool.block_tokens, None,
                pool.prefix_capacity_tokens(of.workload),
                adapters=pool.adapters,
            )
            for pool in deployment.pools
            for e in range(pool.engines)
        ]  # fmt: skip
        assert of.router is not None and isinstance(deployment, Cluster)
        tiers = tuple(deployment.tiers_for(of.workload))
        chunk_tokens = 512 if self.prefixes is None else self.prefixes.chunk_tokens
        self.router = LiveRouter(of.router, engines, tiers, of.fact, chunk_tokens, rows)
        self.row: dict[int, int] = {}
        self.number: dict[int, int] = {}  # the request of a row
        self.asked: list[Decision] = []
        ask = self.router._ask

        def noting(now_s: float, r: int, line: int | None) -> int:
            known = self.router.known
            before = [
                [[self.number[k] for k in rows[e, : snapshot[name]]] for e, snapshot in enumerate(known.snapshots)]
                for rows, name in ((known.prefilling, "prefills"), (known.decoding, "decodes"))
            ]
            snapshots, adapters = known.snapshots.copy(), adapters_of(known)
            engine = ask(now_s, r, line)
            if any(map(self.router.is_open, range(len(snapshots)))):  # else there was nothing to ask
                self.asked.append(Decision(now_s, self.number[r], engine, snapshots, *before, adapters))
            return engine

        self.router._ask = noting  # type: ignore[method-assign]

    def play(self, items: list[Any]) -> None:
        """All of it, instant by instant: what engines did, then those taken back, those held, those that come."""
        times = sorted({item.time_s if isinstance(item, Decision) else item[0] for item in items})
        at = {now_s: ([], []) for now_s in times}  # type: dict[float, tuple[list[Any], list[Decision]]]
        for item in items:
            if isinstance(item, Decision):
                at[item.time_s][1].append(item)
            else:
                at[item[0]][0].append(item)
        arrivals = {float(t) for t in self.table["arrival_s"] if np.isfinite(t)}
        for now_s in sorted({*times, *arrivals}):
            events, decisions = at.get(now_s, ([], []))
            recalled: list[int] = []
            for _, kind, e, r in events:
                self.event(now_s, kind, e, r, recalled)
            if decisions:
                for e, snapshot in enumerate(decisions[0].snapshots):
                    self.router.report(e, int(snapshot.free_blocks), float(snapshot.busy_until_s))
            for r in recalled:
                self.router.route(now_s, self.row[r])
            self.router.ask_again(now_s)
            for r in np.flatnonzero(self.table["arrival_s"] == now_s):
                self.arrive(now_s, int(r))

    def arrive(self, now_s: float, r: int) -> None:
        one = self.table[r]
        asked = RequestTerms(
            int(one.prompt_tokens), float(one.ttft_slo_s), float(one.tpot_slo_s), float(one.ttlt_slo_s),
            int(one.priority), float(one.weight), FIRST_WEIGHT, session=int(one.session),
            adapter=int(one.adapter),
        )  # fmt: skip
        chunks = []
        if self.prefixes is not None:
            offsets, all_chunks = self.prefixes.of_prompts(self.table["prompt_tokens"])
            chunks = all_chunks[offsets[r] : offsets[r + 1]]
        row = self.router.arrive(now_s, asked, chunks)
        assert row not in self.row.values(), "a row that is in use"
        self.row[r], self.number[row] = row, r
        if self.router.route(now_s, row) == REFUSE:
            self.router.leave(now_s, self.row.pop(r), finished=False)

    def event(self, now_s: float, kind: int, e: int, r: int, recalled: list[int]) -> None:
        if kind == TOKEN:
            self.router.token(now_s, self.row[r])
        elif kind == FINISH:
            self.router.leave(now_s, self.row.pop(r), finished=True)
        elif kind == FAILED:
            lost = [self.number[row] for row in self.router.lose(now_s, e)]
            recalled.extend(lost)
        elif kind == RETURNED:
            self.router.set_open(e, up=True)
        elif kind == DRAINED:  # perhaps one that is down
            self.router.set_open(e, up=bool(self.router.snapshots["up"][e]), closed=True)


HELD = HOLD
