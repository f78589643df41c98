"""Which router finds what engines have cached, and what is it worth? Sessions on eight engines, cached and not.

    python -m experiments.cache_routing docs/results/cache-routing.md

Hypotheses, and what came before them: cache_routing.md.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.progress import track

from experiments.cache_routing.claims import Claim
from experiments.cache_routing.families_page import EVENTS_PICTURE, PICTURE, draw, draw_events, page
from experiments.cache_routing.setups import BASE, ROUTERS, Family, Setup, limited, row_of, spec_of
from servegym.scenarios.building import workload_of
from servegym.simulator.runs.simulation import Simulation

WORDS = Path(__file__).with_name("cache_routing.md")
FIRST_SEED = 31_000
# Chat and retrieval on the larger model: as many seconds of it are fewer requests.
FAMILIES = (
    Family("chat-sessions", "a100-llama3-70b-tp4", 34.5, 8000),
    Family("agent-sessions", "h100-llama3-8b", 0.9, 1500),
    Family("retrieval-sessions", "a100-llama3-70b-tp4", 11.6, 4000),
)
TOLD = ("kv-aware", "prefix-affinity")  # routers that go by an index, their own or what events say
DELAYS_S = (0.0, 0.1, 1.0)
CRAMPED = 0.625  # of the KV memory: the longest context of agent-sessions just fits
MEMORIES = {"chat-sessions": (1.0,), "agent-sessions": (1.0, CRAMPED), "retrieval-sessions": (1.0,)}
FAR = 0.3


def setups_of(family: str) -> list[Setup]:
    """Each router cached and not; those that go by an index also by events, with both at each delay."""
    setups = [Setup(family, router, cached) for cached in (False, True) for router in ROUTERS]
    setups += [
        Setup(family, router, events=events, delay_s=delay_s, memory=memory)
        for memory in MEMORIES[family]
        for delay_s in DELAYS_S
        for events in (False, True)
        for router in TOLD
    ]
    return list(dict.fromkeys(setups))


def _told(
    number: int, family: str, router: str, figure: str, expected: str, delay_s: float = 0.0, memory: float = 1.0
) -> Claim:
    """By events less by the router's own index, all else alike."""
    one = Setup(family, router, events=True, delay_s=delay_s, memory=memory)
    return Claim(number, one, one._replace(events=False), figure, expected)


def _against(number: int, family: str, one: str, other: str, figure: str, expected: str, bound: float = 0.0) -> Claim:
    return Claim(number, Setup(family, one), Setup(family, other), figure, expected, bound)


AGENTS, CHAT, RETRIEVAL = "agent-sessions", "chat-sessions", "retrieval-sessions"
CLAIMS = (
    *(
        _against(1, family.name, name, BASE, "hit", "above")
        for family in FAMILIES
        for name in ("kv-aware", "prefix-affinity", "session-hash")
    ),
    _against(2, AGENTS, "kv-aware", BASE, "tdg", "above"),
    _against(2, CHAT, "kv-aware", BASE, "tdg", "within"),
    _against(2, RETRIEVAL, "kv-aware", BASE, "tdg", "within"),
    *(
        _against(3, AGENTS, "session-hash", name, "hit", "above")
        for name in ("kv-aware", "prefix-affinity", BASE, "round-robin")
    ),
    _against(3, AGENTS, "session-hash", "prefix-affinity", "tdg", "below"),
    _against(4, CHAT, "prefix-affinity", BASE, "tdg", "below", -FAR),
    *(
        Claim(5, Setup(family.name, "kv-aware", False), Setup(family.name, BASE, False), "tdg", "within")
        for family in FAMILIES
    ),
    *(
        _told(6, AGENTS, router, "hit", "above", delay_s, memory)
        for memory in (1.0, CRAMPED)
        for router in TOLD
        for delay_s in DELAYS_S
    ),
    *(_told(7, family, "kv-aware", "hit", "within") for family in (CHAT, RETRIEVAL)),
    _told(8, CHAT, "prefix-affinity", "tdg", "above"),
    _against(8, CHAT, "prefix-affinity", BASE, "busiest", "above"),
    *(
        Claim(9, late, late._replace(delay_s=0.0), "hit", "above", -0.02)
        for router in TOLD
        for late in [Setup(AGENTS, router, events=True, delay_s=1.0)]
    ),
    *(
        Claim(10, late, late._replace(delay_s=0.0), "tdg", "below", -0.1)
        for events in (False, True)
        for late in [Setup(RETRIEVAL, "kv-aware", events=events, delay_s=1.0)]
    ),
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("page", type=Path, help="where the page is written; its pictures: ../images")
    parser.add_argument("--families", nargs="+", choices=[family.name for family in FAMILIES])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--share", type=float, default=1.0, help="of the requests of each run")
    asked = parser.parse_args(arguments)
    families = [
        family._replace(requests=int(family.requests * asked.share))
        for family in FAMILIES
        if asked.families is None or family.name in asked.families
    ]
    rows = []
    cases = [(family, seed) for family in families for seed in range(asked.first_seed, asked.first_seed + asked.seeds)]
    for family, seed in track(cases, "families and seeds", console=Console(stderr=True)):
        setups = setups_of(family.name)
        workload = workload_of(spec_of(family, setups[0]), seed)
        for setup in setups:
            scenario = spec_of(family, setup).build(seed, workload=workload)
            rows.append(row_of(setup, seed, Simulation(limited(scenario, setup.memory, family.lasting_s)).run()))
    table = pd.DataFrame(rows)
    images = asked.page.parent.parent
    draw(table, families, images / PICTURE)
    draw_events(table, images / EVENTS_PICTURE)
    asked.page.parent.mkdir(parents=True, exist_ok=True)
    claims = [claim for claim in CLAIMS if claim.one.family in {family.name for family in families}]
    asked.page.write_text(page(table, families, claims, WORDS.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
