"""Builds a scenario from a spec: its requests, engines and policies."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from servegym.errors import SpecError
from servegym.scenarios.demand import STEADY
from servegym.scenarios.fleets import deployment_of, incidents_of, policy_of, pools_of, profile_of
from servegym.scenarios.sampling import LENGTH_LIMITS, SLO_FIELDS, adapted, arrivals_s, draw_episode, no_prefixes
from servegym.scenarios.saturation import saturation_rate_per_s
from servegym.scenarios.values import LOADS, fixed, front_end_from, profiles_of, whole
from servegym.simulator.features.disturbances import Correction, Disturbance
from servegym.simulator.features.front_end import FrontEnd
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.predictors import Predictor, predictor_of
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.gains import Gain, gain_of
from servegym.traces.arrivals import needs_rate
from servegym.traces.distributions import Stream, generator
from servegym.traces.loading import requests_in
from servegym.traces.workloads import build_workload, load_trace

if TYPE_CHECKING:
    from servegym.scenarios.spec import ServingSpec


def build(
    spec: ServingSpec, seed: int, workload: Workload | None = None, deployment: Deployment | Cluster | None = None
) -> Scenario:
    """Build the scenario of a seed. Raises the errors of `workload_of`, `deployment_of` and `policy_of`."""
    if spec.demand.split is not None:
        return draw_scenario(spec, np.random.default_rng(seed))
    if spec.is_distribution:
        spec = spec.fixed(np.random.default_rng(seed))
    if deployment is None:
        deployment = deployment_of(spec)
    return scenario_of(spec, workload_of(spec, seed) if workload is None else workload, deployment, seed)


def draw_scenario(spec: ServingSpec, rng: np.random.Generator) -> Scenario:
    """Draw a scenario with a generator."""
    if spec.demand.split is None:
        return build(spec.fixed(rng), int(rng.integers(2**31)))
    episode = draw_episode(spec, rng)
    noise_seed, predictor_seed = rng.integers(2**31, size=2).tolist()
    deployment = deployment_of(episode.spec, episode.tiers_s if episode.spec.fleet.total > 1 else None)
    return scenario_of(episode.spec, episode.workload, deployment, noise_seed, predictor_seed)


def scenario_of(
    spec: ServingSpec,
    workload: Workload,
    deployment: Deployment | Cluster,
    noise_seed: int,
    predictor_seed: int | None = None,
) -> Scenario:
    """Make a scenario of requests, engines and the rest of a spec. predictor_seed: replaces the predictor's own."""
    imperfection = spec.imperfection
    scheduler, predictor = policy_of(spec, "scheduler"), predictor_in(spec)
    assert scheduler is not None
    if predictor is not None and predictor_seed is not None:
        predictor = dataclasses.replace(predictor, seed=predictor_seed)
    correction = imperfection.correction
    return Scenario(
        workload,
        deployment,
        scheduler,
        gain_in(spec),
        disturbance=disturbance_in(spec, noise_seed),
        correction=(Correction() if correction else None) if isinstance(correction, bool) else correction,
        predictor=predictor,
        router=policy_of(spec, "router"),
        scaler=policy_of(spec, "scaler"),
        incidents=incidents_of(spec.fleet),
        clients=whole_in(spec, "clients"),
        max_concurrency=whole_in(spec, "max_concurrency"),
        front_end=front_end_in(spec),
        draft_seed=0 if spec.fleet.speculation is None else _seed_of_noise(spec, noise_seed),
    )


def whole_in(spec: ServingSpec, name: str) -> int | None:
    return whole(name, spec[name])


def front_end_in(spec: ServingSpec) -> FrontEnd | None:
    """Return the spec's front end, else that of the first pool's profile; None: it takes no time."""
    given = spec.fleet.front_end
    found: FrontEnd | None = profile_of(spec).front_end if given is None else front_end_from(given)
    return found if found is not None and found.takes_time else None


def gain_in(spec: ServingSpec) -> Gain:
    return gain_of(spec.gain) if isinstance(spec.gain, str) else spec.gain


def predictor_in(spec: ServingSpec) -> Predictor | None:
    named = spec.imperfection.predictor
    return predictor_of(named) if isinstance(named, str) else named


def disturbance_in(spec: ServingSpec, seed: int) -> Disturbance:
    """Make noise and drift. seed: of the noise, if the spec has none."""
    one = spec.imperfection
    if not one.disturbs:
        return Disturbance()
    names = ("noise", "drift_per_s", "shift_s", "shift_ratio")
    return Disturbance(**{name: fixed(name, getattr(one, name)) for name in names}, seed=_seed_of_noise(spec, seed))


def _seed_of_noise(spec: ServingSpec, seed: int) -> int:
    """Return the seed of the noise: the spec's, else `seed`."""
    given = spec.imperfection.noise_seed
    return seed if given is None else given


def workload_of(
    spec: ServingSpec,
    seed: int,
    rate_per_s: float | None = None,
    requests: int | None = None,
    window: int | None = None,
) -> Workload:
    """Build the requests of a seed, for a spec without a split. rate_per_s, requests, window: replace the spec's.

    Raises SpecError for a spec whose demand is not fixed, and for prefix stores with a trace without prefixes;
    WorkloadError as `build_workload`.
    """
    demand = spec.demand
    if rate_per_s is None:
        rate_per_s = rate_of(spec)
    if requests is None:
        requests = whole_in(spec, "requests")
    workload = build_workload(
        fixed("trace", demand.trace),
        requests=requests,
        rate_per_s=rate_per_s,
        slo=fixed("slo", demand.slo),
        arrivals="at-once" if demand.clients is not None else fixed("arrivals", demand.arrivals),
        seed=seed,
        max_prompt_tokens=whole_in(spec, "max_prompt_tokens"),
        max_total_tokens=whole_in(spec, "max_total_tokens"),
        window=demand.window if window is None else window,
        resample=demand.resample,
        idle_tpot_s=None if demand.keep_slos else profile_of(spec).idle_tpot_s,
        reading=demand.reading,
    )
    if spec.fleet.prefix_store_tokens and workload.prefixes is None:
        raise SpecError(no_prefixes(workload.name))
    return adapted(spec, _scaled(spec, workload, seed, rate_per_s), generator(seed, Stream.ADAPTERS))


def _scaled(spec: ServingSpec, workload: Workload, seed: int, rate_per_s: float | None) -> Workload:
    """Apply the spec's load profile to arrivals, and its factor to SLOs, if it has them."""
    demand = spec.demand
    changes: dict[str, Any] = {}
    profile, cv, scale = profiles_of(demand.load_profile)[0], fixed("cv", demand.cv), fixed("scale", demand.slo_scale)
    if profile != STEADY or cv != 1:
        if rate_per_s is None:
            raise SpecError(
                f"a load profile or cv of trace '{workload.name}' at its own times; give load or rate_per_s too"
            )
        rng = generator(seed, Stream.ARRIVALS)
        sessions = workload.known
        times_s = arrivals_s(rng, sessions, rate_per_s * (sessions / len(workload)), profile, cv)
        changes["arrival_s"] = np.r_[times_s, np.full(len(workload) - sessions, np.nan)]
    if scale != 1:
        changes |= {field: workload.table[field] * scale for field in SLO_FIELDS}
    return workload.replace(**changes) if changes else workload


def rate_of(spec: ServingSpec) -> float | None:
    """Return the requests per second; None: the trace's own times, or the own rate of the arrivals.

    Without load and rate: None if the trace has times, the arrivals set their own rate, or there are clients; else load
    medium.
    """
    demand = spec.demand
    if demand.clients is not None:
        return None
    if demand.rate_per_s is not None:
        return float(fixed("rate_per_s", demand.rate_per_s))
    load = fixed("load", demand.load)
    if load is None:
        trace, arrivals = fixed("trace", demand.trace), fixed("arrivals", demand.arrivals)
        timed = None
        if arrivals is None:
            timed = load_trace(trace, default_requests=1, reading=demand.reading).arrival_s is not None
        if timed or (timed is None and not needs_rate(arrivals)):
            return None
        load = LOADS["medium"]
    return float(load) * saturation_of(spec)


def file_requests(spec: ServingSpec) -> int | None:
    """Count the requests of a file within the limits of a spec; None for a family. Raises WorkloadError."""
    total, prompt = (whole_in(spec, name) for name in LENGTH_LIMITS)
    return requests_in(
        fixed("trace", spec.demand.trace), max_total_tokens=total, max_prompt_tokens=prompt, reading=spec.demand.reading
    )


def own_rate_per_s(spec: ServingSpec) -> float | None:
    """Return the mean rate of a trace's own times; None if it has none, or if all requests arrive at once. Raises
    WorkloadError."""
    total, prompt = (whole_in(spec, name) for name in LENGTH_LIMITS)
    trace, reading = fixed("trace", spec.demand.trace), spec.demand.reading
    return load_trace(trace, max_total_tokens=total, max_prompt_tokens=prompt, reading=reading).rate_per_s


def saturation_of(spec: ServingSpec) -> float:
    """Return the requests per second at load 1: of all engines as if co-located, summed over devices."""
    engines: dict[str, int] = {}
    profiles = {}
    for pool in pools_of(spec.fleet):
        profile = profile_of(spec, pool.device)
        profiles[profile.name] = profile
        engines[profile.name] = engines.get(profile.name, 0) + pool.engines
    demand = spec.demand
    return sum(
        saturation_rate_per_s(
            fixed("trace", demand.trace),
            profile,
            engines[name],
            fixed("slo", demand.slo),
            whole_in(spec, "max_total_tokens"),
            whole_in(spec, "max_prompt_tokens"),
            demand.reading,
        )
        for name, profile in profiles.items()
    )
