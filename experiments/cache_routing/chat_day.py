"""A working day of chat on eight engines: what prefix caching is worth, and what the router is, hour by hour.

    python -m experiments.cache_routing.chat_day docs/results/chat-day.md

Hypotheses, and what came before them: chat_day.md.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track

from experiments.arguments import parse
from experiments.cache_routing.chat_day_picture import draw
from experiments.cache_routing.claims import Claim, routers_table, table_of
from experiments.cache_routing.setups import BASE, ENGINES, ROUTERS, SCHEDULER, Family, Setup, limited, row_of, spec_of
from servegym.scenarios.building import workload_of
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation

WORDS = Path(__file__).with_name("chat_day.md")
PICTURE = Path("images") / "chat-day.png"
FIRST_SEED = 32_000
DAY_S = 7200.0  # a day at twelve times its speed; sessions last as long as they do
HOURS = 24
RATE_PER_S = 20.0  # mean; at its peaks the day has twice as many
DAY = Family("chat-sessions", "a100-llama3-70b-tp4", RATE_PER_S, round(RATE_PER_S * DAY_S))
SHOWN = ("hit", "ttft_p50_s", "ttft_p99_s", "tdg", "attainment", "starved")


def cached(router: str) -> Setup:
    return Setup(DAY.name, router)


def uncached(router: str) -> Setup:
    return Setup(DAY.name, router, cached=False)


SETUPS = tuple(of(name) for of in (uncached, cached) for name in ROUTERS)
CLAIMS = (
    *(Claim(1, cached(name), uncached(name), "tdg", "above", 0.3) for name in ROUTERS),
    *(Claim(2, cached(name), cached(BASE), "hit", "above") for name in ("kv-aware", "prefix-affinity", "session-hash")),
    *(Claim(3, cached(name), cached(BASE), "tdg", "above") for name in ("kv-aware", "session-hash")),
    Claim(3, cached(BASE), cached("round-robin"), "tdg", "above"),
    Claim(4, cached("prefix-affinity"), cached(BASE), "tdg", "below"),
    *(Claim(5, uncached(name), uncached(BASE), "tdg", "within") for name in ROUTERS if name != BASE),
)


def by_hour(setup: Setup, seed: int, result: Result, day_s: float) -> list[dict[str, Any]]:
    """Of the requests that came in each hour of the day: how many a second, and their TDG ratio."""
    requests = result.requests
    hour = np.minimum((requests["arrival_s"] / day_s * HOURS).astype(int), HOURS - 1)
    rows = []
    for at, of_hour in requests.groupby(hour):
        rows.append(
            {
                **setup._asdict(),
                "seed": seed,
                "hour": int(at),
                "rate_per_s": len(of_hour) / (day_s / HOURS),
                "tdg": of_hour["gain"].sum() / of_hour["ideal_gain"].sum(),
            }
        )
    return rows


def page(rows: pd.DataFrame, family: Family, words: str) -> str:
    """The page in Markdown. words: what stands before and after what is measured."""
    seeds = sorted(rows["seed"].unique())
    hypotheses, _, reading = words.partition("## Reading\n")
    lines = [
        hypotheses,
        "Measured by `python -m experiments.cache_routing.chat_day docs/results/chat-day.md`: seeds "
        f"{seeds[0]} to {seeds[-1]}, {ENGINES} engines `{family.device}`, scheduler `{SCHEDULER}`, SLOs of ProServe, "
        f"{family.rate_per_s:g} requests/s on average over {family.lasting_s:.0f} s. Means and 95 % intervals over "
        "seeds; differences are paired by seed.\n",
        f"![TDG ratio by the hour of the day, of each router cached and not](../{PICTURE.as_posix()})\n",
        *routers_table(rows, SETUPS, SHOWN),
    ]
    lines += ["", "## The hypotheses\n", *table_of(rows, CLAIMS)]
    return "\n".join([*lines, "", "## Reading", reading]).rstrip() + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    asked = parse(__doc__, arguments, seeds=5, first_seed=FIRST_SEED, share=1.0)
    family = DAY._replace(requests=round(DAY.requests * asked.share))
    arrivals = f"industrial-day:duration_s={family.lasting_s:g}"
    rows: list[dict[str, Any]] = []
    hours: list[dict[str, Any]] = []
    for seed in track(range(asked.first_seed, asked.first_seed + asked.seeds), "days", console=Console(stderr=True)):
        workload = workload_of(spec_of(family, SETUPS[0], arrivals=arrivals), seed)
        for setup in SETUPS:
            scenario = spec_of(family, setup, arrivals=arrivals).build(seed, workload=workload)
            result = Simulation(limited(scenario, setup.memory, family.lasting_s)).run()
            rows.append(row_of(setup, seed, result))
            hours += by_hour(setup, seed, result, family.lasting_s)
    images = asked.page.parent.parent
    draw(pd.DataFrame(hours), SETUPS, images / PICTURE)
    asked.page.parent.mkdir(parents=True, exist_ok=True)
    words = WORDS.read_text(encoding="utf-8")
    asked.page.write_text(page(pd.DataFrame(rows), family, words), encoding="utf-8")


if __name__ == "__main__":
    main()
