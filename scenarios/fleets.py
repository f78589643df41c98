"""Builds the engines of a fleet: pools with their profiles, host memory and prefix stores, and the link between
them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from servegym.baselines import registry
from servegym.errors import SpecError
from servegym.latency_models.profile import Profile, load_profile
from servegym.scenarios.parts import Fleet
from servegym.scenarios.values import Pool, fixed, incident_of, speculation_from, whole
from servegym.simulator.features.adapters import Adapters
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.fleet.startup import Startup
from servegym.simulator.inputs.cluster import AT_ONCE, Cluster, Link
from servegym.simulator.inputs.costs import Costs
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.memory.prefixes import PrefixStore
from servegym.simulator.policies.policy import Policy

if TYPE_CHECKING:
    from servegym.scenarios.spec import ServingSpec

DECODE_SCHEDULER = "vllm-fcfs"
CACHING = {"auto": None, "on": True, "off": False}
FIND = {
    "scheduler": registry.scheduler, "decode_scheduler": registry.decode_scheduler, "router": registry.router,
    "scaler": registry.scaler,
}  # fmt: skip


def policy_of(spec: ServingSpec, role: str) -> Policy | None:
    """Find the policy of a role, or None. Raises PolicyError for an unknown one."""
    named = fixed(role, spec[role])
    if role == "decode_scheduler" and named is None and spec.fleet.is_disaggregated:
        named = DECODE_SCHEDULER
    return _policy(spec, role, named)


def _policy(spec: ServingSpec, role: str, named: str | Policy | None) -> Policy | None:
    if not isinstance(named, str):
        return named
    if (role, named) not in spec.cache:
        spec.cache[role, named] = FIND[role](named)
    return spec.cache[role, named]


def profile_of(spec: ServingSpec, device: str | Profile | None = None) -> Profile:
    """Load the profile of a device; None: of the first pool's device. Raises ProfileError."""
    named = device or (spec.fleet.pools[0].device if spec.fleet.pools else None) or fixed("device", spec.fleet.device)
    if isinstance(named, Profile):
        return named
    if named not in spec.cache:
        spec.cache[named] = load_profile(named)
    return spec.cache[named]


def profiles_of(spec: ServingSpec) -> list[Profile]:
    """Load the profiles of all devices of a fleet, each once, in the order of its pools. Raises ProfileError."""
    profiles = (profile_of(spec, pool.device) for pool in pools_of(spec.fleet))
    return list({profile.name: profile for profile in profiles}.values())


def pools_of(fleet: Fleet) -> tuple[Pool, ...]:
    """Make the pools of a fleet, also those given as numbers of engines."""
    if fleet.pools:
        return fleet.pools
    engines, prefill, decode = (int(fixed(name, getattr(fleet, name))) for name in ("engines", "prefill", "decode"))
    if prefill:
        return Pool(engines=prefill, role="prefill"), Pool(engines=decode, role="decode")
    return (Pool(engines=engines),)


def title_of(spec: ServingSpec) -> str:
    """Describe the engines: "2 prefill + 2 decode x a100-llama3-8b"; for one engine only its device."""
    pools = pools_of(spec.fleet)
    names = [profile_of(spec, pool.device).name for pool in pools]
    if len(pools) == 1:
        return f"{pools[0].engines} x {names[0]}" if pools[0].engines > 1 else names[0]
    counts = [f"{pool.engines}" + (f" {pool.role}" if pool.role != "both" else "") for pool in pools]
    if len(set(names)) == 1:
        return f"{' + '.join(counts)} x {names[0]}"
    return " + ".join(f"{count} x {name}" for count, name in zip(counts, names, strict=True))


def deployment_of(spec: ServingSpec, tiers: tuple[float, ...] | None = None) -> Deployment | Cluster:
    """Build the engines of a spec. tiers: TPOT SLOs of a cluster, in s (None: those of the workload).

    Raises SpecError for prefill and decode pools with different KV, ProfileError, PolicyError, DeploymentError.
    """
    varied = [name for name in spec.cache["varied"] if hasattr(spec.fleet, name)]
    decoding = spec.policies.decode_scheduler  # a Policy is kept in the deployment, so its id stays unique
    named = decoding if isinstance(decoding, str) else id(decoding)
    key = ("deployment", tiers, named, *(spec[name] for name in varied))
    if key not in spec.cache:
        spec.cache[key] = _deployment(spec, tiers)
    return spec.cache[key]


def _deployment(spec: ServingSpec, tiers: tuple[float, ...] | None) -> Deployment | Cluster:
    fleet = spec.fleet
    pools = tuple(_pool(spec, pool) for pool in pools_of(fleet))
    delay_s = float(fixed("signal_delay_s", fleet.signal_delay_s))
    if sum(pool.engines for pool in pools) == 1:
        return pools[0]
    if len(pools) == 1 and delay_s == 0 and tiers is None:
        return pools[0]
    if not fleet.is_disaggregated:
        return Cluster(pools, AT_ONCE, delay_s, title_of(spec), tiers)
    bytes_per_token = {profile_of(spec, pool.device).kv.bytes_per_token for pool in pools_of(fleet)}
    if len(bytes_per_token) > 1:
        raise SpecError(
            f"KV of {' and '.join(map(str, sorted(bytes_per_token)))} bytes a token: prefill and decode engines should "
            "have the same model"
        )
    link = Link(bytes_per_token.pop(), fixed("link_gb_per_s", fleet.link_gb_per_s) * 1e9)
    return Cluster(pools, link, delay_s, title_of(spec), tiers)


def _pool(spec: ServingSpec, pool: Pool) -> Deployment:
    fleet, profile = spec.fleet, profile_of(spec, pool.device)
    gib, gb_per_s, store_tokens = (
        fixed(name, getattr(fleet, name)) for name in ("host_memory_gib", "host_gb_per_s", "prefix_store_tokens")
    )
    decodes, seconds = pool.role == "decode", fixed("role_change_s", fleet.role_change_s)
    store = PrefixStore(int(store_tokens), profile.kv.bytes_per_token / (gb_per_s * 1e9)) if store_tokens else None
    if decodes and pool.scheduler is None:
        scheduler = policy_of(spec, "decode_scheduler")
    else:
        scheduler = _policy(spec, "decode_scheduler" if decodes else "scheduler", pool.scheduler)
    deployment = profile.deployment(pool.engines, host=profile.host_memory(gib, gb_per_s) if gib else None)
    return dataclasses.replace(
        deployment,
        startup=startup_of(fleet),
        costs=Costs(*(fixed(name, getattr(fleet, name)) for name in ("price_per_hour", "idle_w", "busy_w"))).over(
            deployment.costs or Costs()
        ),
        role=pool.role,
        prefix_store=None if decodes else store,
        prefix_caching=CACHING[fleet.prefix_caching],
        scheduler=scheduler,
        tier=pool.tier,
        speculation=speculation_from(fleet.speculation),
        kv_events=fleet.kv_events,
        async_scheduling=fleet.async_scheduling,
        lockstep=int(fixed("lockstep", fleet.lockstep)),
        max_num_batched_tokens=whole("max_num_batched_tokens", fleet.max_num_batched_tokens),
        max_num_seqs=whole("max_num_seqs", fleet.max_num_seqs),
        role_change_s=None if seconds is None or pool.role == "both" else float(seconds),
        adapters=adapters_of(fleet),
    )


def adapters_of(fleet: Fleet) -> Adapters | None:
    """Make the LoRA adapters of each engine. Raises SpecError if some of their numbers are missing, DeploymentError."""
    most = {name: whole(name, getattr(fleet, name)) for name in ("max_loras", "max_cpu_loras")}
    times = {name: fixed(name, getattr(fleet, name)) for name in ("lora_load_s", "lora_activate_s")}
    numbers = most | times
    if all(number is None for number in numbers.values()):
        return None
    missing = [name for name, number in numbers.items() if number is None and name != "max_cpu_loras"]
    if missing:
        raise SpecError(
            "LoRA adapters need max_loras, lora_load_s and lora_activate_s (--max-loras, --lora-load, --lora-activate);"
            f" {' and '.join(missing)} missing"
        )
    load_s, activate_s = (float(time_s) for time_s in times.values())
    return Adapters(most["max_loras"] or 0, load_s, activate_s, most["max_cpu_loras"])


def startup_of(fleet: Fleet) -> Startup | None:
    seconds = fixed("startup_s", fleet.startup_s)
    return None if seconds is None else Startup(float(seconds), int(fixed("started", fleet.started)))


def incidents_of(fleet: Fleet) -> tuple[Incident, ...]:
    """Make the incidents of the engines. Raises SpecError."""
    return tuple(map(incident_of, fleet.incidents))
