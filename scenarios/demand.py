"""Demand: the fields of a spec about its requests, each with its help."""

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
from servegym.scenarios.values import paths_as_text

if TYPE_CHECKING:
    from servegym.traces.reading import Reading

Part = tuple[float, float]  # share of the requests, factor on the load
STEADY: tuple[Part, ...] = ((1.0, 1.0),)
BURST: tuple[Part, ...] = ((0.25, 0.4), (0.45, 1.0), (0.3, 0.4))  # calm, a burst, calm again
LoadProfiles = tuple[Part, ...] | tuple[tuple[Part, ...], ...]


@dataclasses.dataclass(frozen=True)
class Demand:
    """The requests: their lengths, arrivals and SLOs."""

    trace: Names = option(
        "azure-conv", NAME,
        "A family of generated requests, or a trace file (.csv, .jsonl, .parquet). An unknown name, here and in every "
        "option, is an error that lists the known ones.",
        metavar="NAME|FILE", first=True,
    )  # fmt: skip
    load: Numbers | None = option(
        None, LOAD,
        "Arrival rate relative to saturation: a number, or light (0.3), medium (0.7), high (1), overload (1.4).",
        metavar="X", above=0, shown="the trace's own times, else medium", first=True,
    )  # fmt: skip
    rate_per_s: Numbers | None = option(
        None, NUMBER,
        "Mean arrival rate, in requests a second; use it instead of a load.",
        unit="requests/s", name="rate",
        metavar="REQ_PER_S", above=0, shown="by the load",
    )  # fmt: skip
    requests: Numbers | None = option(
        None, WHOLE, "How many requests a run serves. From a file they are consecutive.", metavar="N", least=1,
        most=10**8, shown="all of a file, 1000 of a family", first=True,
    )  # fmt: skip
    slo: Names = option(
        "proserve", NAME,
        "SLOs, weights and priorities of requests: your own (ttft_s=2,tpot_s=0.06), classes with shares "
        "(classes:chat=0.8:ttft_s=2:tpot_s=0.06,batch=0.2:ttlt_s=1800), a paper's recipe (qoserve:shares=70-15-15), or "
        "given, as the file has them. Columns of a file take precedence.",
        metavar="RECIPE[:key=value,...]", first=True,
    )  # fmt: skip
    slo_scale: Numbers = option(
        1.0,
        NUMBER,
        "Multiply the recipe's SLOs by this factor. Loads stay relative to the unscaled SLOs.",
        metavar="X",
        above=0,
    )
    keep_slos: bool = option(False, FLAG, "Keep the recipe's SLOs even where an idle engine could not meet them.")
    arrivals: Names | None = option(
        None, NAME,
        "How requests arrive: poisson, gamma:cv=3, bursts:n=10, waves, square-wave, industrial-day, at-once, own.",
        metavar=POLICY_METAVAR, shown="own where the trace has times, else poisson",
    )  # fmt: skip
    clients: Numbers | None = option(
        None, WHOLE,
        "A closed loop of this many clients: each sends its next request, or begins its next session, when its last "
        "one has ended. Use it instead of a load, a rate or arrivals.",
        metavar="C", least=1, shown="an open loop",
    )  # fmt: skip
    max_concurrency: Numbers | None = option(
        None, WHOLE,
        "Hold a request back while this many are under way, and count its latency from when it is sent.",
        metavar="C", least=1, shown="no limit",
    )  # fmt: skip
    load_profile: LoadProfiles = option(
        STEADY, LOAD_PROFILE,
        "How the load changes over a run, in parts: each is a share of the requests and a factor on the load. Gaps "
        "between arrivals are then Gamma distributed.",
        metavar="SHARE:FACTOR,...", shown="steady",
    )  # fmt: skip
    cv: Numbers = option(
        1.0, NUMBER,
        "Coefficient of variation of the gaps between arrivals, which are Gamma distributed; 1 is Poisson.",
        metavar="X", least=0.001, most=100,
    )  # fmt: skip
    max_total_tokens: Numbers | None = option(
        None, WHOLE,
        "Leave out requests with more prompt and output tokens than this.",
        unit="tokens", metavar="N", least=2,
        shown="no limit",
    )  # fmt: skip
    max_prompt_tokens: Numbers | None = option(
        None, WHOLE, "Leave out requests with a longer prompt than this.", unit="tokens", metavar="N", least=1,
        shown="no limit",
    )  # fmt: skip
    adapters: Numbers | None = option(
        None, WHOLE,
        "Draw a LoRA adapter for each request, or session, of this many; use it with --max-loras. Requests of a file "
        "that names adapters keep theirs without it.",
        unit="adapters", metavar="N", least=1, most=65536, shown="those of the trace, if any",
    )  # fmt: skip
    adapter_skew: Numbers = option(
        1.0, NUMBER, "Exponent of Zipf's law by which adapters are drawn: the k-th has a share that is proportional to "
        "k^-X. 0: equal shares.", metavar="X", least=0, most=10,
    )  # fmt: skip
    window: str | int = option(
        "seed", WINDOW,
        "Window of consecutive requests of a file: another for each seed (seed), the first, or from this row on.",
        metavar="seed|first|N",
    )  # fmt: skip
    resample: bool = option(
        False, FLAG,
        "Resample a file's requests by block bootstrap: blocks of a 20th of its time span, with replacement, sessions "
        "kept whole, as many requests as asked for.",
    )  # fmt: skip
    split: str | None = option(
        None, CHOICE,
        "Draw runs from one part of the trace, as environments draw episodes. The parts share no request and no "
        "session.",
        metavar="train|validation|test", choices=("train", "validation", "test"),
        shown="the whole trace",
    )  # fmt: skip
    seed: int = option(
        0, WHOLE,
        "Seed of lengths, arrivals and priorities; for a file, it chooses the window of requests (0: the first ones).",
        metavar="S",
        least=0, first=True,
    )  # fmt: skip
    columns: tuple[tuple[str, str], ...] | None = option(
        None, COLUMNS,
        "Name a file's columns: arrival=timestamp,prompt=input_tokens,output=completion_tokens, and likewise id, "
        "client, priority and the other columns of a trace. A dot reaches into nested fields (usage.prompt_tokens); "
        "arrival=none: the file has no times.",
        metavar="NAME=COLUMN,...", shown="the columns' own names",
    )  # fmt: skip
    time_unit: str | None = option(
        None, CHOICE, "Unit of a file's times, which may count from any origin. Dates need none.", metavar="s|ms|us|ns",
        choices=("s", "ms", "us", "ns"), shown="that of its format",
    )  # fmt: skip
    drop_empty: bool = option(
        False, FLAG, "Leave out a file's requests without prompt or output tokens, and say how many."
    )
    sort: bool = option(False, FLAG, "Sort a file's requests by time.")

    def __post_init__(self) -> None:
        paths_as_text(self, "trace")

    @property
    def reading(self) -> Reading:
        """Options for reading the trace's file. (Imported here, as a spec is made before `traces` is loaded.)"""
        from servegym.traces.reading import Reading

        return Reading(self.columns or (), self.time_unit, self.drop_empty, self.sort)
