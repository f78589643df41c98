"""The part of a spec that says which requests come. Each field with its help."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from servegym.scenarios.fields import (
    CHOICE,
    COLUMNS,
    FLAG,
    LOAD,
    LOAD_PROFILE,
    NAME,
    NUMBER,
    POLICY_METAVAR,
    WHOLE,
    WINDOW,
    option,
)
from servegym.scenarios.ranges import Names, Numbers

if TYPE_CHECKING:
    from servegym.traces.reading import Reading

Part = tuple[float, float]  # share of the requests, factor on the load
STEADY: tuple[Part, ...] = ((1.0, 1.0),)
BURST: tuple[Part, ...] = ((0.25, 0.4), (0.45, 1.0), (0.3, 0.4))  # calm, a burst, calm again
LoadProfiles = tuple[Part, ...] | tuple[tuple[Part, ...], ...]


@dataclasses.dataclass(frozen=True)
class Demand:
    """Requests: what they are, when they come, and by when they want their tokens."""

    trace: Names = option(
        "azure-conv", NAME,
        "A family of generated requests, or a trace file (.csv, .jsonl, .parquet). Here as for every name: an unknown "
        "one is answered with those there are.",
        metavar="NAME|FILE", first=True,
    )  # fmt: skip
    load: Numbers | None = option(
        None, LOAD,
        "Arrival rate relative to saturation: a number, or light (0.3), medium (0.7), high (1), overload (1.4).",
        metavar="X", above=0, shown="the trace's own times, else medium", first=True,
    )  # fmt: skip
    rate_per_s: Numbers | None = option(
        None, NUMBER, "Mean arrival rate, requests per second, instead of a load.", unit="requests/s", name="rate",
        metavar="REQ_PER_S", above=0, shown="by the load",
    )  # fmt: skip
    requests: Numbers | None = option(
        None, WHOLE, "How many requests a run serves; of a file, consecutive ones.", metavar="N", least=1,
        most=10**8, shown="all of a file, 1000 of a family", first=True,
    )  # fmt: skip
    slo: Names = option(
        "proserve", NAME,
        "How requests get priorities, weights and SLOs: a paper's recipe, such as qoserve:shares=70-15-15; SLOs of "
        "your own, ttft_s=2,tpot_s=0.06; classes:chat=0.8:ttft_s=2:tpot_s=0.06,batch=0.2:ttlt_s=1800; or given. "
        "Columns of the file itself win.",
        metavar="RECIPE[:key=value,...]", first=True,
    )  # fmt: skip
    slo_scale: Numbers = option(
        1.0, NUMBER, "Factor on the SLOs of the recipe; loads are relative to those as they are.", metavar="X", above=0
    )
    keep_slos: bool = option(
        False, FLAG, "Keep SLOs as the recipe has them, also those that an engine with nothing else to do cannot meet."
    )
    arrivals: Names | None = option(
        None, NAME,
        "How requests arrive: poisson, gamma:cv=3, bursts:n=10, waves, square-wave, industrial-day, at-once, own.",
        metavar=POLICY_METAVAR, shown="own where the trace has times, else poisson",
    )  # fmt: skip
    clients: Numbers | None = option(
        None, WHOLE,
        "A closed loop: so many clients, each of which sends its next request, or begins its next session, when the "
        "last has ended. Instead of a load, a rate or arrivals.",
        metavar="C", least=1, shown="requests come by themselves",
    )  # fmt: skip
    max_concurrency: Numbers | None = option(
        None, WHOLE,
        "A request that has come is sent only when fewer than so many are under way; its latency counts from then.",
        metavar="C", least=1, shown="no limit",
    )  # fmt: skip
    load_profile: LoadProfiles = option(
        STEADY, LOAD_PROFILE,
        "How the load goes over a run: parts, each a share of the requests and a factor on the load. Arrivals have "
        "Gamma distributed gaps then.",
        metavar="SHARE:FACTOR,...", shown="steady",
    )  # fmt: skip
    cv: Numbers = option(
        1.0, NUMBER, "Coefficient of variation of the gaps between arrivals, Gamma distributed; 1: Poisson.",
        metavar="X", least=0.001, most=100,
    )  # fmt: skip
    max_total_tokens: Numbers | None = option(
        None, WHOLE, "Requests with more prompt and output tokens are left out.", unit="tokens", metavar="N", least=2,
        shown="none are",
    )  # fmt: skip
    max_prompt_tokens: Numbers | None = option(
        None, WHOLE, "Requests with a longer prompt are left out.", unit="tokens", metavar="N", least=1,
        shown="none are",
    )  # fmt: skip
    window: str | int = option(
        "seed", WINDOW,
        "Which requests of a file: seed (each seed others, in a row), first, or the number of the first one.",
        metavar="seed|first|N",
    )  # fmt: skip
    resample: bool = option(
        False, FLAG,
        "Draw the requests of a file anew, by the seed and as many as are asked for: blocks of a 20th of its own time, "
        "with replacement, sessions whole.",
    )  # fmt: skip
    split: str | None = option(
        None, CHOICE,
        "Cut runs from a sample that is prepared once: train, validation or test, which have no request in common, nor "
        "a session. Episodes of environments do.",
        metavar="train|validation|test", choices=("train", "validation", "test"),
        shown="no: requests are drawn by the seed",
    )  # fmt: skip
    seed: int = option(
        0, WHOLE, "Seed of lengths, arrivals and priorities; of a file, which requests (0: the first).", metavar="S",
        least=0, first=True,
    )  # fmt: skip
    columns: tuple[tuple[str, str], ...] | None = option(
        None, COLUMNS,
        "Which columns of a file are what, where they have other names: "
        "arrival=timestamp,prompt=input_tokens,output=completion_tokens; also id, client, priority and all others of a "
        "trace of one's own. A dot reaches into nested fields, usage.prompt_tokens; arrival=none: there are no times.",
        metavar="NAME=COLUMN,...", shown="as the names are",
    )  # fmt: skip
    time_unit: str | None = option(
        None, CHOICE, "Unit of a file's times, which may count from any origin; dates need none.", metavar="s|ms|us|ns",
        choices=("s", "ms", "us", "ns"), shown="as its format has it",
    )  # fmt: skip
    drop_empty: bool = option(
        False, FLAG, "Leave out requests of a file without prompt or output tokens (and say how many)."
    )
    sort: bool = option(False, FLAG, "Sort requests of a file by their times.")

    @property
    def reading(self) -> Reading:
        """How the trace's file is read. (A spec is there before what builds scenarios is loaded.)"""
        from servegym.traces.reading import Reading

        return Reading(self.columns or (), self.time_unit, self.drop_empty, self.sort)
