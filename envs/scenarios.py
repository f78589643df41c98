"""Sources of scenarios: what the episodes of an environment are about, drawn anew for each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from servegym.envs.ranges import Numbers, Range, ScenarioError, check_numbers, choose, draw, numbers_from_json
from servegym.envs.served import FIRST_TEST_SEED, SPLITS, Served, policy_of, pool_of, profile_of, served
from servegym.simulator.cluster import AT_ONCE, Cluster, Link
from servegym.simulator.deployment import Deployment
from servegym.simulator.disturbances import Correction, Disturbance
from servegym.simulator.gains import Gain
from servegym.simulator.incidents import Incident
from servegym.simulator.policies import Policy
from servegym.simulator.predictors import Predictor
from servegym.simulator.simulation import Scenario
from servegym.simulator.workload import Workload

__all__ = ["BURST", "FIRST_TEST_SEED", "SPLITS", "STEADY", "OneOf", "RandomScenarios", "Range", "ScenarioError"]

Part = tuple[float, float]  # share of the requests, load relative to the one drawn
STEADY: tuple[Part, ...] = ((1.0, 1.0),)
BURST: tuple[Part, ...] = ((0.25, 0.4), (0.45, 1.0), (0.3, 0.4))  # calm, a burst, calm again

LOADS, REQUESTS = Range(0.3, 1.6), Range(200, 400)
NUMBERS = ("loads", "requests", "cv", "slo_scale")
SLO_FIELDS = ("ttft_slo_s", "tpot_slo_s", "ttlt_slo_s")


@dataclasses.dataclass(frozen=True)
class RandomScenarios:
    """A source of scenarios: called with a random generator it draws one. The same state of it gives the same bytes.

    Drawn are: a trace, a recipe, a device; a window of the trace; a load and how it goes over the episode; a scale of
    the SLOs; burstiness; arrivals. `Numbers` are one number, a tuple of them, or a `Range`.

    traces, slos, devices: as `build_workload` and `load_profile` take them; times and prefixes of a file are not used.
    loads: rate / saturation; saturation is that of the trace, the recipe and the device, times the engines.
    requests: of an episode. profiles: of the load over an episode, as parts: a share of the requests and a factor on
        the load. By default half of the episodes are steady, and the others calm, a burst and calm again, so that
        overload builds up and drains.
    cv: coefficient of variation of the gaps between arrivals, Gamma distributed; 1: Poisson.
    slo_scale: on the SLOs of the recipe (saturation is that of the recipe as it is).
    engines: co-located; or prefill and decode engines instead, over a link of link_gb_per_s GB/s to each decode engine.
    signal_delay_s: as of a `Cluster`. Its tiers are the recipe's TPOT SLOs, scaled.
    scheduler, decode_scheduler, router, scaler: "name:key=value,...", or a Policy.
    disturbance, predictor: with a seed of each episode's own.
    max_total_tokens: requests with more prompt and output tokens are left out, as are those that fit no engine.
    split: "train" or "test", whose requests are not the same (`served.served`). `SPLITS` has the seeds for the
        generators of either; this is for whoever makes them to see to.

    Raises ScenarioError for values out of range; when called, as `served.served` for names that are not known.
    """

    traces: tuple[str, ...] = ("azure-conv", "sharegpt")
    loads: Numbers = LOADS
    devices: tuple[str, ...] = ("a100-llama3-8b",)
    slos: tuple[str, ...] = ("proserve",)
    slo_scale: Numbers = 1.0
    cv: Numbers = 1.0
    requests: Numbers = REQUESTS
    profiles: tuple[tuple[Part, ...], ...] = (STEADY, BURST)
    engines: int = 1
    prefill: int = 0
    decode: int = 0
    link_gb_per_s: float = 25.0
    signal_delay_s: float = 0.0
    gain: Gain = dataclasses.field(default_factory=Gain)
    scheduler: str | Policy = "slide-batching"
    decode_scheduler: str | Policy = "vllm-fcfs"
    router: str | Policy | None = None
    scaler: str | Policy | None = None
    disturbance: Disturbance | None = None
    correction: Correction | None = None
    predictor: Predictor | None = None
    incidents: tuple[Incident, ...] = ()
    max_total_tokens: int | None = None
    split: str = "train"

    def __post_init__(self) -> None:
        for name in ("traces", "slos", "devices"):
            value = getattr(self, name)
            if not (value and _is_tuple_of(str, value)):
                raise ScenarioError(f"{name} is {value!r}; it should be a tuple of at least one name")
        for name in NUMBERS:
            check_numbers(name, getattr(self, name))
        for name, least in (("engines", 1), ("prefill", 0), ("decode", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ScenarioError(f"{name} is {value!r}; it should be a whole number of {least} or more")
        if (self.prefill > 0) != (self.decode > 0) or (self.prefill > 0 and self.engines > 1):
            raise ScenarioError(
                f"{self.engines} engines, {self.prefill} prefill and {self.decode} decode engines; it should be "
                "co-located ones, or at least one of either of the others"
            )
        if not 0 < self.link_gb_per_s <= math.inf:
            raise ScenarioError(f"link_gb_per_s is {self.link_gb_per_s}; it should be above 0")
        if not _is_tuple_of(Incident, self.incidents):
            raise ScenarioError(f"incidents is {self.incidents!r}; it should be a tuple of incidents")
        if self.split not in SPLITS:
            raise ScenarioError(f"split is {self.split!r}; it should be one of {', '.join(SPLITS)}")
        if not (self.profiles and _is_tuple_of(tuple, self.profiles)):
            raise ScenarioError(f"profiles is {self.profiles!r}; it should be a tuple of at least one load profile")
        for profile in self.profiles:
            check_profile(profile)

    def __call__(self, rng: np.random.Generator) -> Scenario:
        trace, slo, device = choose(rng, self.traces), choose(rng, self.slos), choose(rng, self.devices)
        source = served(trace, slo, device, self.split, self.max_total_tokens)
        requests = max(1, round(draw(rng, self.requests)))
        if requests > len(source.table):
            raise ScenarioError(
                f"trace {trace}: an episode of {requests} requests; its {self.split} part has {len(source.table)}"
            )
        first = int(rng.integers(len(source.table) - requests + 1))
        table = source.rows(first, requests)
        load, scale, cv = draw(rng, self.loads), draw(rng, self.slo_scale), draw(rng, self.cv)
        rate_per_s = load * source.saturation_rate_per_s * self.total_engines
        table["arrival_s"] = arrivals_s(rng, requests, rate_per_s, choose(rng, self.profiles), cv)
        if scale != 1.0:
            for field in SLO_FIELDS:
                table[field] *= scale
        noise_seed, predictor_seed = rng.integers(2**31, size=2).tolist()
        noise, predictor = self.disturbance, self.predictor
        drawn = {"slo": slo, "split": self.split, "first_request": first, "load": load, "slo_scale": scale, "cv": cv}
        return Scenario(
            Workload(table, trace, drawn),
            self._deployment(source, device, scale),
            policy_of("scheduler", self.scheduler),
            self.gain,
            disturbance=Disturbance() if noise is None else dataclasses.replace(noise, seed=noise_seed),
            correction=self.correction,
            predictor=None if predictor is None else dataclasses.replace(predictor, seed=predictor_seed),
            router=None if self.router is None else policy_of("router", self.router),
            scaler=None if self.scaler is None else policy_of("scaler", self.scaler),
            incidents=self.incidents,
        )

    @property
    def total_engines(self) -> int:
        """Engines of all kinds."""
        return self.prefill + self.decode or self.engines

    def _deployment(self, source: Served, device: str, scale: float) -> Deployment | Cluster:
        if self.total_engines == 1:
            return pool_of(device, 1)
        tiers = tuple(tpot_slo_s * scale for tpot_slo_s in source.tiers_s)
        if not self.prefill:
            pool = pool_of(device, self.engines)
            return Cluster((pool,), AT_ONCE, self.signal_delay_s, pool.name, tiers)
        decoding = policy_of("scheduler", self.decode_scheduler)
        pools = (
            dataclasses.replace(pool_of(device, self.prefill), role="prefill"),
            dataclasses.replace(pool_of(device, self.decode), role="decode", scheduler=decoding),
        )
        link = Link(profile_of(device).kv.bytes_per_token, self.link_gb_per_s * 1e9)
        name = f"{self.prefill} prefill + {self.decode} decode x {device}"
        return Cluster(pools, link, self.signal_delay_s, name, tiers)

    def replaced(self, **changes: Any) -> RandomScenarios:
        """This source with other values. Raises ScenarioError."""
        unknown = sorted(set(changes) - {field.name for field in dataclasses.fields(self)})
        if unknown:
            raise ScenarioError(f"unknown {unknown[0]!r}; random scenarios have {', '.join(_fields())}")
        return dataclasses.replace(self, **changes)

    def with_words(self, words: Mapping[str, Any]) -> RandomScenarios:
        """This source with other values, said as in a call or a document (JSON or YAML).

        A list stands for a tuple, a mapping for a Range or a part; what there may be several of can be said in the
        singular (trace="azure-code" for traces=("azure-code",)). Raises ScenarioError for an unknown word, one said
        twice or a value out of range, and as the parts do.
        """
        values: dict[str, Any] = {}
        for word, value in words.items():
            name = _field_of(word)
            if name in values:
                raise ScenarioError(f"{name}: given twice ({', '.join(w for w in words if _field_of(w) == name)})")
            if name in NUMBERS:
                values[name] = numbers_from_json(name, value)
            elif word != name:
                values[name] = (_item_from_json(name, value),)
            elif name in PARTS and not (value is None or isinstance(value, PARTS[name])):
                values[name] = _part(name, PARTS[name], value)
            elif isinstance(value, list):
                values[name] = tuple(_item_from_json(name, item) for item in value)
            else:
                values[name] = value
        return self.replaced(**values)

    def to_json(self) -> dict[str, Any]:
        """What describes this source, policies by their labels; `from_json` gives it back."""
        return {name: _as_json(getattr(self, name)) for name in _fields()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RandomScenarios:
        """The source that a document describes (JSON or YAML); what it does not say is as by default.

        Raises ScenarioError for an unknown key or a value out of range, and as the parts do.
        """
        return cls().with_words(document)


PARTS: dict[str, type] = {
    "gain": Gain, "disturbance": Disturbance, "correction": Correction, "predictor": Predictor,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class OneOf:
    """A source that draws one of some scenarios, each as likely."""

    scenarios: tuple[Scenario, ...]

    def __post_init__(self) -> None:
        if not self.scenarios:
            raise ScenarioError("there are no scenarios to draw one of; there should be at least one")

    def __call__(self, rng: np.random.Generator) -> Scenario:
        return choose(rng, self.scenarios)


def arrivals_s(
    rng: np.random.Generator, requests: int, rate_per_s: float, profile: tuple[Part, ...] = STEADY, cv: float = 1.0
) -> np.ndarray:
    """float64[requests]: arrivals with Gamma gaps of mean 1 / (rate x factor of the part that the request is in)."""
    gaps = rng.standard_exponential(requests) if cv == 1 else rng.gamma(cv**-2, cv**2, requests)
    first, share = 0, 0.0
    whole = sum(part[0] for part in profile)
    for part, factor in profile:
        share += part / whole
        end = round(share * requests)
        gaps[first:end] /= rate_per_s * factor
        first = end
    return np.cumsum(gaps)


def check_profile(profile: Any) -> None:
    """Raise ScenarioError unless this is a profile of the load."""
    try:
        parts = [(float(share), float(factor)) for share, factor in profile]
    except (TypeError, ValueError):
        parts = []
    if not parts or not all(0 < number < math.inf for part in parts for number in part):
        raise ScenarioError(
            f"a load profile of {profile!r}; it should be parts, each a share of the requests and a factor, above 0"
        )


def _is_tuple_of(kind: type, value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, kind) for item in value)


def _fields() -> list[str]:
    return [field.name for field in dataclasses.fields(RandomScenarios)]


def _field_of(word: str) -> str:
    """The field that a word names: itself, or in the singular one that has several."""
    several = [field.name for field in dataclasses.fields(RandomScenarios) if isinstance(field.default, tuple)]
    return f"{word}s" if f"{word}s" in (*several, *NUMBERS) else word


def _item_from_json(name: str, item: Any) -> Any:
    """One of the several that a field has."""
    if name == "incidents" and not isinstance(item, Incident):
        return _part("an incident", Incident, item)
    return _as_tuples(item)


def _part(name: str, kind: Callable[..., Any], document: Any) -> Any:
    if not isinstance(document, Mapping):
        raise ScenarioError(f"{name} is {document!r}; it should be an object with keys of its own")
    try:
        return kind(**document)
    except TypeError as error:
        raise ScenarioError(f"{name}: {str(error).partition(' ')[2]}") from None


def _as_json(value: Any) -> Any:
    if isinstance(value, Policy):
        return value.label
    if isinstance(value, tuple):
        return [_as_json(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        entries = {key: getattr(value, key) for key in (field.name for field in dataclasses.fields(value))}
        # JSON has no infinity: what is infinite is so by default.
        return {key: entry for key, entry in entries.items() if entry != math.inf}
    return None if value == math.inf else value


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(item) for item in value) if isinstance(value, list) else value
