"""The environments, as `gym.make` and `gym.make_vec` know them, and what there is to win in each: headroom.json."""

import functools
import json
from pathlib import Path
from typing import Any

from gymnasium.envs.registration import register, registry

# (id, module, class of the single environment; the class of the vector has VectorEnv in the place of Env)
ENVIRONMENTS = (
    ("EngineBatching-v0", "engine_batching", "EngineBatchingEnv"),
    ("RequestRanking-v0", "request_ranking", "RequestRankingEnv"),
    ("Scheduling-v0", "scheduling", "SchedulingEnv"),
    ("ClusterRouting-v0", "cluster_routing", "ClusterRoutingEnv"),
    ("DisaggregatedRouting-v0", "disaggregated_routing", "DisaggregatedRoutingEnv"),
    ("PrefillPreemption-v0", "prefill_preemption", "PrefillPreemptionEnv"),
    ("TierScaling-v0", "tier_scaling", "TierScalingEnv"),
)
# Later versions: id -> the id of the first, and the arguments that make it the later one.
VERSIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "ClusterRouting-v1": ("ClusterRouting-v0", {"sees": "caching"}),
    "TierScaling-v1": ("TierScaling-v0", {"sees": "day"}),
}
FILE = Path(__file__).with_name("headroom.json")
DEFAULT = "default"  # what is drawn where no preset is named
NAMES = (*(name for name, _, _ in ENVIRONMENTS), *VERSIONS)


def registered_name(kind: type) -> str:
    """The name under which an environment's class is registered; empty: under none."""
    names = {(f"servegym.envs.{module}", env): name for name, module, env in ENVIRONMENTS}
    return names.get((kind.__module__, kind.__qualname__), "")


def register_all() -> None:
    """Make the environments known to Gymnasium; nothing of them is imported before one is made."""
    first = {name: (module, env) for name, module, env in ENVIRONMENTS}
    versions: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in first} | VERSIONS
    for name, (of, arguments) in versions.items():
        module, env = first[of]
        if name not in registry:
            home = f"servegym.envs.{module}"
            vector = f"{home}:{env.removesuffix('Env')}VectorEnv"
            register(name, f"{home}:{env}", vector_entry_point=vector, kwargs=arguments)


@functools.cache
def measured() -> dict[str, Any]:
    """By environment and preset; and how it was measured."""
    found: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return found


def headroom_of(name: str) -> dict[str, dict[str, Any]]:
    """Mean TDG ratios in an environment, by preset: of random actions, of its base, of the best rule that ships, and of
    the best run that was found in each episode; empty for one that was not measured."""
    rooms: dict[str, dict[str, Any]] = measured()["environments"].get(name, {})
    return rooms
