"""Samples episodes: cuts runs from a sample of requests that each process prepares once, so that drawing is quick."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from servegym.errors import SpecError
from servegym.latency_models.profile import Profile, load_profile
from servegym.scenarios.demand import STEADY, Part
from servegym.scenarios.fields import EARLY
from servegym.scenarios.saturation import known_saturation_rate_per_s
from servegym.scenarios.values import LOADS, Pool, fixed, profiles_of, whole
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.simulator.inputs.cluster import tiers_in
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.prefixes import Prompts
from servegym.simulator.records.types import WORKLOAD
from servegym.traces.arrivals import arrivals_of, needs_rate
from servegym.traces.families import FAMILIES
from servegym.traces.reading import Reading
from servegym.traces.session_families import SessionFamily
from servegym.traces.trace import Trace
from servegym.traces.workloads import NOTES, build_workload, with_adapters

if TYPE_CHECKING:
    from servegym.scenarios.spec import ServingSpec


class SessionRows:
    """The requests of a sample by session.

    turns: of the sample's requests, in the order of a workload: those that begin sessions first.
    """

    def __init__(self, turns: SessionDependencies) -> None:
        session = turns.session
        self.turns = turns
        self.by_session = np.argsort(session, kind="stable")  # rows session by session, each in order of turns
        self.sessions = int(np.count_nonzero(turns.after < 0))
        self.ends = np.cumsum(np.bincount(session, minlength=self.sessions))

    def part(self, first: int, end: int) -> np.ndarray:
        """int64[...]: the rows of sessions `first` to `end` - 1, in the order of a workload."""
        return np.sort(self.by_session[self._start(first) : self._start(end)])

    def _start(self, session: int) -> int:
        return int(self.ends[session - 1]) if session > 0 else 0

    def draw(self, rng: np.random.Generator, requests: int, shuffled: bool) -> np.ndarray:
        """int64[requests]: draw the rows of sessions with so many requests in all; the last session may be cut.

        shuffled: draw any sessions; else consecutive ones, from a first session that leaves enough requests.
        """
        if shuffled:
            order = rng.permutation(self.sessions)
        else:
            # The last session from which on there are enough requests.
            last = int(np.searchsorted(self.ends, self.ends[-1] - requests, side="right"))
            order = np.arange(int(rng.integers(last + 1)), self.sessions)
        rows = [self.by_session[self._start(session) : self.ends[session]] for session in order[:requests].tolist()]
        return np.concatenate(rows)[:requests]


def arranged(
    table: np.ndarray,
    turns: SessionDependencies,
    prefixes: Prompts | None,
    rows: np.ndarray,
    arrivals: Callable[[np.ndarray], np.ndarray],
) -> tuple[np.ndarray, SessionDependencies, Prompts | None]:
    """Arrange the requests of these rows as in a workload, with new arrivals, and with their turns and prompts.

    arrivals: maps the requests that begin sessions (WORKLOAD[sessions]) to their arrivals, s.
    """
    taken, follow = table[rows], turns.take(rows)
    begins = follow.after < 0
    times_s = arrivals(taken[begins])
    taken["arrival_s"] = np.nan
    taken["arrival_s"][begins] = times_s
    order = follow.order(taken["arrival_s"])
    return taken[order], follow.take(order), None if prefixes is None else prefixes.take(rows[order])


# Seeds of episodes and of families by split; no two splits share one.
FIRST_VALIDATION_SEED, FIRST_TEST_SEED = 900_000, 1_000_000
SPLITS = {
    "train": range(FIRST_VALIDATION_SEED),
    "validation": range(FIRST_VALIDATION_SEED, FIRST_TEST_SEED),
    "test": range(FIRST_TEST_SEED, 2**31),
}

SAMPLE_ROWS = 32_768  # requests of a family, of which an episode takes consecutive ones
SESSION_ROWS = 8_192  # requests of a family of sessions, of which an episode takes any sessions
SHARES = {"train": (0.0, 0.6), "validation": (0.6, 0.7), "test": (0.7, 1.0)}  # parts of a file, as shares of its length
LENGTH_LIMITS = ("max_total_tokens", "max_prompt_tokens")  # fields of a spec, in the order that functions take them
OWN = "own"  # arrivals at the trace's own times
SLO_FIELDS = ("ttft_slo_s", "tpot_slo_s", "ttlt_slo_s")


class Sample(NamedTuple):
    """The sample of a trace, a recipe, devices and a split."""

    table: np.ndarray  # WORKLOAD[rows], all at time 0 or at the trace's own times; read-only
    tiers_s: tuple[float, ...]  # TPOT SLOs of the tiers
    prefixes: Prompts | None = None  # of these rows, if the trace has prefix blocks
    sessions: SessionRows | None = None  # of these rows, if the trace has sessions
    notes: Mapping[str, Any] | None = None  # repairs to the trace, and changes by the recipe

    def rows(self, first: int, requests: int) -> np.ndarray:
        """WORKLOAD[requests]: copy consecutive requests with their padding, which NumPy's copy leaves out."""
        return self.table[first : first + requests].view("u1").copy().view(WORKLOAD)


class Episode(NamedTuple):
    """A drawn episode: the spec with one value of each field, the requests, and the TPOT SLOs of the tiers."""

    spec: ServingSpec
    workload: Workload
    tiers_s: tuple[float, ...]


def draw_episode(spec: ServingSpec, rng: np.random.Generator) -> Episode:
    """Draw an episode of a spec with a split. Results for a seed depend on the order of draws.

    Raises SpecError if the sample has fewer requests than an episode, and the errors of `sample_of`.
    """
    early = {name: spec.one(rng, name) for name in spec.varied if name in EARLY}
    one = spec.with_values(early)
    demand = one.demand
    trace, slo = (fixed(name, one[name]) for name in ("trace", "slo"))
    engines = engines_by_device(one)
    split = str(demand.split)
    limits = tuple(whole(name, one[name]) for name in LENGTH_LIMITS)
    timed = demand.arrivals is not None and OWN in demand.arrivals
    sample = sample_of(trace, slo, tuple(engines), split, *limits, timed=timed, reading=demand.reading)
    requests = len(sample.table) if demand.requests is None else max(1, round(fixed("requests", demand.requests)))
    if requests > len(sample.table):
        raise SpecError(f"trace {trace}: an episode of {requests} requests; its {split} part has {len(sample.table)}")
    if sample.sessions is None:
        first = int(rng.integers(len(sample.table) - requests + 1))
        rows, table = np.arange(first, first + requests), sample.rows(first, requests)
    else:
        rows = sample.sessions.draw(rng, requests, shuffled=trace in FAMILIES)
        first, table = int(rows[0]), sample.table[rows]
    one = one.with_values({name: spec.one(rng, name) for name in spec.varied if name not in EARLY})
    demand = one.demand
    scale, cv, rate_per_s = (float(fixed(name, one[name]) or 0.0) for name in ("slo_scale", "cv", "rate_per_s"))
    process, load = fixed("arrivals", demand.arrivals), None
    if not rate_per_s and (demand.load is not None or process is None or needs_rate(process)):
        load = LOADS["medium"] if demand.load is None else float(fixed("load", demand.load))
        rate_per_s = load * sum(
            count * known_saturation_rate_per_s(trace, device, slo, *limits, demand.reading)
            for device, count in engines.items()
        )

    def arrivals(begin: np.ndarray) -> np.ndarray:
        """Draw the arrivals of requests that follow no other, float64[...], s."""
        rate = rate_per_s * (len(begin) / requests)
        if process is not None:
            since_first_s = begin["arrival_s"] - begin["arrival_s"][0]
            window = Trace(trace, begin["prompt_tokens"], begin["output_tokens"], since_first_s)
            return arrivals_of(process, window, rate or None, rng)
        if demand.clients is not None:
            return begin["arrival_s"]
        return arrivals_s(rng, len(begin), rate, profiles_of(demand.load_profile)[0], cv)

    if sample.sessions is None:
        table["arrival_s"] = arrivals(table)
        turns, prefixes = None, None if sample.prefixes is None else sample.prefixes.take(rows)
    else:
        table, turns, prefixes = arranged(sample.table, sample.sessions.turns, sample.prefixes, rows, arrivals)
    if scale != 1.0:
        for field in SLO_FIELDS:
            table[field] *= scale
    drawn = {"slo": slo, "split": split, "first_request": first, "load": load, "slo_scale": scale, "cv": cv}
    drawn |= sample.notes or {}
    if one.fleet.prefix_store_tokens and prefixes is None:
        raise SpecError(no_prefixes(trace))
    workload = adapted(one, Workload(table, trace, drawn, prefixes, turns), rng)
    return Episode(one, workload, tuple(tier_s * scale for tier_s in sample.tiers_s))


def adapted(spec: ServingSpec, workload: Workload, rng: np.random.Generator) -> Workload:
    """Draw the LoRA adapters that a spec asks for."""
    adapters = whole("adapters", spec.demand.adapters)
    if adapters is None:
        return workload
    return with_adapters(workload, adapters, float(fixed("adapter_skew", spec.demand.adapter_skew)), rng)


def engines_by_device(spec: ServingSpec) -> dict[str, int]:
    """Count the engines of a spec by device. Raises SpecError for a profile in place of a name."""
    engines: dict[str, int] = {}
    for pool in spec.fleet.pools or (Pool(engines=spec.fleet.total),):
        device = pool.device or fixed("device", spec.fleet.device)
        if isinstance(device, Profile):
            raise SpecError(f"device {device.name} is a profile; with a split it should be a name or a file")
        engines[device] = engines.get(device, 0) + pool.engines
    return engines


def no_prefixes(trace: str) -> str:
    """Compose the error for a trace that engines with prefix stores cannot serve."""
    return (
        f"engines have prefix stores, and the trace of workload '{trace}' has no prefix blocks; it should have them, "
        "as Mooncake's and Qwen-Bailian's files do"
    )


@functools.cache
def sample_of(
    trace: str,
    slo: str,
    devices: tuple[str, ...],
    split: str,
    max_total_tokens: int | None = None,
    max_prompt_tokens: int | None = None,
    timed: bool = False,
    reading: Reading | None = None,
) -> Sample:
    """Prepare requests of a trace with a recipe's SLOs, without those that an engine of one of the devices cannot hold.

    The splits of a family have requests of different seeds; those of a file have different parts of it (`SHARES`), with
    whole sessions. timed: at the trace's own times, which a family does not have; else all at time 0. Raises SpecError
    if a split has no request, and the errors of `build_workload` and `load_profile`.
    """
    profiles, is_family = [load_profile(device) for device in devices], trace in FAMILIES
    capacity = min(profile.kv.total_blocks * profile.kv.block_tokens for profile in profiles)
    wanted = SESSION_ROWS if is_family and isinstance(FAMILIES[trace], SessionFamily) else SAMPLE_ROWS
    workload = build_workload(
        trace,
        requests=wanted if is_family else None,
        slo=slo,
        arrivals=OWN if timed else "at-once",
        seed=SPLITS[split].start,
        max_total_tokens=capacity if max_total_tokens is None else min(max_total_tokens, capacity),
        max_prompt_tokens=max_prompt_tokens,
        idle_tpot_s=profiles[0].idle_tpot_s,
        reading=reading,
    )
    table, prefixes, turns = workload.table, workload.prefixes, workload.turns
    sessions = None if turns is None else SessionRows(turns)
    if not is_family:
        count = len(table) if sessions is None else sessions.sessions
        first, end = (int(share * count) for share in SHARES[split])
        rows = np.arange(first, end) if sessions is None else sessions.part(first, end)
        table, prefixes = table[rows], None if prefixes is None else prefixes.take(rows)
        if turns is not None and len(rows):
            sessions = SessionRows(turns.take(rows))
    if len(table) == 0:
        raise SpecError(f"trace {trace}: its {split} part has no request; the file should be longer")
    tiers = tiers_in(table)
    notes = {name: workload.provenance[name] for name in NOTES if workload.provenance.get(name)}
    return Sample(table, tuple(tiers.tolist()), prefixes, sessions, notes)


def arrivals_s(
    rng: np.random.Generator, requests: int, rate_per_s: float, profile: tuple[Part, ...] = STEADY, cv: float = 1.0
) -> np.ndarray:
    """Draw arrivals with Gamma gaps of mean 1 / (rate x factor of the request's part): float64[requests], s."""
    gaps = rng.standard_exponential(requests) if cv == 1 else rng.gamma(cv**-2, cv**2, requests)
    first, share = 0, 0.0
    whole = sum(part[0] for part in profile)
    for part, factor in profile:
        share += part / whole
        end = round(share * requests)
        gaps[first:end] /= rate_per_s * factor
        first = end
    return np.cumsum(gaps)
