"""Makes live routers of an artifact's router and of what is assumed of engines and requests."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from servegym.adapters.routing.live import LiveEngine, LiveRouter
from servegym.adapters.routing.request_terms import defaults_of
from servegym.adapters.vllm.terms import Defaults
from servegym.errors import RoutingError
from servegym.latency_models.model import LatencyModel
from servegym.latency_models.profile import Profile, load_profile
from servegym.simulator.features.adapters import Adapters
from servegym.simulator.inputs.settings import names_adapters, names_prefixes
from servegym.simulator.memory.kv_groups import KvCacheGroup
from servegym.simulator.policies.policy import Policy

DEFAULT_BLOCKS = 4096  # of KV memory, if neither an engine nor a profile gives the number
BLOCK_TOKENS = 16


@dataclasses.dataclass(frozen=True)
class Assumptions:
    """A router, and what it assumes of its engines and requests.

    prefix_cache_tokens: tokens of shared prefixes that each engine can cache, for routers that use it; None: all of its
    KV memory. kv_groups: KV cache groups of the profile's model. kv_events: whether engines publish KV events.
    adapters: memory of each engine for LoRA adapters; None: it serves none. profiles: latency profiles of single
    engines, by name, in place of all this.
    """

    router: Policy
    estimator: LatencyModel
    defaults: Defaults
    total_blocks: int = DEFAULT_BLOCKS
    block_tokens: int = BLOCK_TOKENS
    prefix_cache_tokens: int | None = None
    kv_groups: tuple[KvCacheGroup, ...] = ()
    kv_events: bool = False
    adapters: Adapters | None = None
    profiles: Mapping[str, Profile] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_artifact(cls, path: str | Path, device: str | None = None) -> Assumptions:
        """Take an artifact's router, and the latency profile `device` if it is named or the artifact has no estimator.

        Raises ArtifactError, RoutingError, ProfileError.
        """
        from servegym.baselines.artifact import load_artifact

        artifact = load_artifact(path)
        if artifact.router is None:
            raise RoutingError(f"{path} has {artifact.label}; it should have a router")
        if device is None and artifact.estimator is None:
            raise RoutingError(f"{path} has no times of batches; name a latency profile with --device")
        return cls.of(artifact.router, device, artifact.estimator, artifact.workload)

    @classmethod
    def of(
        cls,
        router: Policy,
        device: str | None,
        estimator: Mapping[str, Any] | None = None,
        workload: Mapping[str, Any] | None = None,
    ) -> Assumptions:
        """Take a router and a latency profile, or the estimator and workload of an artifact. Raises ProfileError,
        RoutingError."""
        defaults = defaults_of(workload)
        name = device or (estimator or {}).get("profile")
        memory: dict[str, Any] = {}
        profile = None
        if name is not None:
            try:
                profile = load_profile(name)
            except ValueError:
                if device is not None or estimator is None:
                    raise  # else the coefficients are enough
        if profile is not None:
            memory = {"total_blocks": profile.kv.total_blocks, "block_tokens": profile.kv.block_tokens}
            memory["kv_groups"] = profile.kv.groups
        if device is None and estimator is not None:
            model = LatencyModel(estimator["form"], estimator["coefficients"])
        elif profile is not None:
            model = profile.estimator
        else:
            raise RoutingError(f"{router.label}: the time of batches is not known; name a latency profile")
        return cls(router, model, defaults, **memory)

    def live(self, engines: Sequence[str]) -> LiveRouter:
        """Make the live router of engines with these names. Raises RoutingError."""
        if self.adapters is None and names_adapters(self.router.function):
            raise RoutingError(
                f"{self.router.label} goes by LoRA adapters; give max_loras, lora_load_s and lora_activate_s "
                "(--max-loras, --lora-load, --lora-activate)"
            )
        kept = self.prefix_cache_tokens if names_prefixes(self.router.function) else 0

        def engine_of(name: str) -> LiveEngine:
            own = self.profiles.get(name)
            groups = self.kv_groups if own is None else own.kv.groups
            more = (None, kept, groups if self.kv_events else (), self.adapters)
            if own is None:
                return LiveEngine(name, self.estimator, self.total_blocks, self.block_tokens, *more)
            return LiveEngine(name, own.estimator, own.kv.total_blocks, own.kv.block_tokens, *more)

        found = [engine_of(name) for name in engines]
        sizes = [group.block_tokens for engine in found for group in engine.kv_groups]
        chunk_tokens = math.gcd(*sizes) if sizes else self.block_tokens
        return LiveRouter(self.router, found, (self.defaults.tpot_slo_s,), chunk_tokens=chunk_tokens)
