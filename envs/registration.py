"""The environments under their Gymnasium ids, and the measured room between base and best in each (headroom.json)."""

import functools
import importlib
import json
import warnings
from pathlib import Path
from typing import Any

from gymnasium.envs.registration import register, registry

from servegym.simulator.compilation.locks import no_garbage_collection

# (id, module, class of the single environment); the vector's class has VectorEnv in place of Env.
ENVIRONMENTS = (
    ("EngineBatching-v0", "engine_batching", "EngineBatchingEnv"),
    ("RequestRanking-v0", "request_ranking", "RequestRankingEnv"),
    ("Scheduling-v0", "scheduling", "SchedulingEnv"),
    ("ClusterRouting-v0", "cluster_routing", "ClusterRoutingEnv"),
    ("DisaggregatedRouting-v0", "disaggregated_routing", "DisaggregatedRoutingEnv"),
    ("PrefillPreemption-v0", "prefill_preemption", "PrefillPreemptionEnv"),
    ("TierScaling-v0", "tier_scaling", "TierScalingEnv"),
)
# Later versions: id -> id of the first version, and the arguments in which it differs.
VERSIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "ClusterRouting-v1": ("ClusterRouting-v0", {"sees": "caching"}),
    "TierScaling-v1": ("TierScaling-v0", {"sees": "day"}),
}
FILE = Path(__file__).with_name("headroom.json")
DEFAULT = "default"  # the key for scenarios drawn without a preset
NAMES = (*(name for name, _, _ in ENVIRONMENTS), *VERSIONS)


def registered_name(kind: type) -> str:
    """The id under which an environment's class is registered; empty if it is not."""
    names = {(f"servegym.envs.{module}", env): name for name, module, env in ENVIRONMENTS}
    return names.get((kind.__module__, kind.__qualname__), "")


def register_all() -> None:
    """Register all environments with Gymnasium; their modules are imported when one is made."""
    first = {name: env for name, _, env in ENVIRONMENTS}
    versions: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in first} | VERSIONS
    for name, (of, arguments) in versions.items():
        if name not in registry:
            single, vector = (f"servegym.envs:{kind}" for kind in (first[of], vector_of(first[of])))
            register(name, single, vector_entry_point=vector, kwargs=arguments)
    # Gymnasium warns of a version that has a later one; of ours both are kept, as they differ in what agents see.
    kept = "|".join(of for of, _ in VERSIONS.values())
    warnings.filterwarnings("ignore", f".*The environment ({kept}) is out of date", DeprecationWarning)


def vector_of(env: str) -> str:
    """The name of the class of a vector, from that of its environment."""
    return f"{env.removesuffix('Env')}VectorEnv"


def class_named(name: str) -> Any:
    """The class of an environment or a vector; its module is imported. Raises AttributeError for another name."""
    for _, module, env in ENVIRONMENTS:
        if name in (env, vector_of(env)):
            with no_garbage_collection():
                return getattr(importlib.import_module(f"servegym.envs.{module}"), name)
    raise AttributeError(f"module 'servegym.envs' has no attribute {name!r}")


@functools.cache
def measured_headroom() -> dict[str, Any]:
    """Contents of headroom.json: ratios by environment and preset, and how they were measured."""
    found: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return found


def headroom_of(name: str) -> dict[str, dict[str, Any]]:
    """Mean TDG ratios in an environment, by preset: of random actions, of its base, of the best shipped heuristic, and
    of the best run found for each episode. Empty for an environment that was not measured."""
    by_preset: dict[str, dict[str, Any]] = measured_headroom()["environments"].get(name, {})
    return by_preset
