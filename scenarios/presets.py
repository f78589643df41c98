"""Presets, scenarios by name: `gym.make("servegym:EngineBatching-v0", preset="overload")`, `--spec session-fleet`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from servegym.errors import SpecError
from servegym.scenarios.demand import BURST, STEADY, Demand
from servegym.scenarios.ranges import Range
from servegym.scenarios.spec import ServingSpec, overridden
from servegym.scenarios.values import Pool
from servegym.traces.arrivals import needs_rate


class Preset(NamedTuple):
    """A preset. doc: its purpose. overrides: fields of a `ServingSpec` and their values.

    environment: the only one for which it is; empty: all. unfit: environments for which it is not. arguments: replace
    the defaults of that environment. gain_alone: whether TDG alone scores an episode, without costs.
    """

    doc: str
    overrides: dict[str, Any]
    environment: str = ""
    unfit: tuple[str, ...] = ()
    arguments: dict[str, Any] = {}  # noqa: RUF012 (never written)
    gain_alone: bool = True


FLEET = (Pool("h100-llama3-8b", 1), Pool("a100-llama3-8b", 2), Pool("a6000-llama3.1-8b", 1))
TURNING_MIX: dict[str, Any] = {
    "trace": "code-and-writing",
    "slo": "ttft_s=2,tpot_s=0.06",
    "rate_per_s": 18.0,  # more than any fixed ratio serves in time
    "load_profile": (STEADY,),
    "requests": 12000,
    "device": "a100-llama3-8b",
    "prefill": 2,
    "decode": 2,
    "role_change_s": 1.0,
    "scheduler": "vllm-v1",
    "router": "min-load",
    "scaler": "pd-ratio:interval_s=1,window_s=2,prefill_high=0.35,prefill_low=0.35,decode_high=0.65,"
    "decode_low=0.65,rest_checks=0,outlast=0",
}
PRESETS = {
    "light": Preset(
        "less than engines can serve, with SLOs of half the length: what matters is the wait of each request",
        {"load": Range(0.2, 0.6), "load_profile": (STEADY,), "slo_scale": 0.5},
        unfit=("DisaggregatedRouting-v0", "PrefillPreemption-v0"),  # no action changes the gain there
    ),
    "overload": Preset(
        "more than engines can serve: what matters is which requests to serve in time",
        {"load": Range(1.2, 1.8), "load_profile": (STEADY,)},
    ),
    "burst": Preset(
        "a burst between calm parts: queues build up and drain",
        {"load": Range(1.2, 2.0), "load_profile": (BURST,)},
    ),
    "mixed-devices": Preset(
        "each episode on another device: a policy must not depend on one device",
        {
            "device": (
                "a100-llama3-8b", "a100-llama3-70b-tp8", "a100-qwen3-30b-a3b", "a6000-llama3.1-8b", "h100-llama3-8b",
                "ascend910b-qwen3-8b",
            ),
            "load": Range(0.8, 1.8),
        },
        unfit=("TierScaling-v0",),  # on some devices the recipe has fewer distinct tiers
    ),
    "mixed-fleet": Preset(
        "of `ClusterRouting-v0`: an H100, two A100s and an A6000 at overload, where the choice of the engine matters",
        {
            "pools": FLEET,
            "load": Range(1.2, 1.8),
            "load_profile": (STEADY,),
        },
        environment="ClusterRouting-v0",
    ),
    "session-fleet": Preset(
        "of `ClusterRouting-v0`: agents' sessions on the mixed fleet with prefix caching; a router weighs a session's "
        "engine, load and speed",
        {
            "trace": "agent-sessions",
            "max_prompt_tokens": 32768,
            "requests": 1500,
            "rate_per_s": 12.0,  # more than the engines could serve without their caches
            "load_profile": (STEADY,),
            "pools": FLEET,
            "prefix_caching": "on",
            "scheduler": "vllm-v1",
            "router": "prefix-affinity",
        },
        environment="ClusterRouting-v0",
    ),
    "scaler-day": Preset(
        "of `TierScaling-v0`: two working days, a minute for an hour, on eight engines that take a second (a minute of "
        "a real day) to start; what matters is the cost of attainment",
        {
            "trace": "azure-conv",
            "slo": "ttft_s=2,tpot_s=0.1",
            "arrivals": "industrial-day:duration_s=1440",
            "rate_per_s": 6.0,  # at the peaks seven engines are busy, at night one is
            "load_profile": (STEADY,),
            "requests": 17280,
            "device": "a100-llama3-70b-tp4",
            "engines": 8,
            "startup_s": 1.0,
            "started": 8,
            "scheduler": "vllm-v1",
            "router": "min-load",
            "scaler": "target-utilisation:interval_s=1,window_s=10,most_requests=32",
        },
        environment="TierScaling-v0",
        arguments={"engines": 8, "tiers": 1},
        gain_alone=False,
    ),
    "turning-mix": Preset(
        "of `ClusterRouting-v0`: two prefill and two decode engines that change their roles, as long prompts and long "
        "answers come by turns; what matters is attainment",
        TURNING_MIX,
        environment="ClusterRouting-v0",
        gain_alone=False,
    ),
    "turning-roles": Preset(
        "of `TierScaling-v0`: the scenarios of `turning-mix`, where the action gives each engine its role too; what "
        "matters is attainment",
        TURNING_MIX,
        environment="TierScaling-v0",
        arguments={"engines": 4, "tiers": 1, "sees": "roles"},
        gain_alone=False,
    ),
    "long-prompts": Preset(
        "code completion and long documents: prefills decide how long others wait",
        {"trace": ("azure-code", "mooncake-conversation")},
    ),
}  # fmt: skip


def presets_of(environment: str) -> dict[str, Preset]:
    """List the presets that are for an environment."""
    return {
        name: preset
        for name, preset in PRESETS.items()
        if preset.environment in ("", environment) and environment not in preset.unfit
    }


def check_preset(preset: str, environment: str) -> None:
    """Raise SpecError for an unknown preset, and for one that is of another environment."""
    overrides_of(preset)
    if PRESETS[preset].environment not in ("", environment):
        raise SpecError(
            f"preset {preset!r} is of {PRESETS[preset].environment}; those of {environment} are "
            f"{', '.join(presets_of(environment))}"
        )


def spelled_out(overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace a preset among overrides by its fields, and add the fields that arrivals replace.

    Other overrides replace the preset's fields. Arrivals replace the source's load profile and cv; arrivals that set
    their own rate replace its load too. Raises SpecError for an unknown preset.
    """
    rest = {name: value for name, value in overrides.items() if name != "preset"}
    fields = overridden(overrides_of(overrides["preset"]), rest) if "preset" in overrides else rest
    arrivals = fields.get("arrivals")
    if arrivals is None:
        return fields
    several = arrivals if isinstance(arrivals, list | tuple) else [arrivals]
    if other := [one for one in several if not isinstance(one, str)]:
        raise SpecError(f"arrivals is {other[0]!r}; it should be a name, or several")
    rates = {} if any(map(needs_rate, several)) else {"load": None, "rate_per_s": None}
    if fields.keys() & rates.keys():
        rates = {}
    return {"load_profile": STEADY, "cv": 1.0} | rates | fields


def overrides_of(preset: str) -> dict[str, Any]:
    """Return the overrides of a preset. Raises SpecError for an unknown one."""
    if not isinstance(preset, str) or preset not in PRESETS:
        raise SpecError(f"unknown preset {preset!r}; there are {', '.join(PRESETS)}")
    return PRESETS[preset].overrides


# Half of the episodes have a steady load; the others are calm, a burst, and calm again, so that overload builds up and
# drains.
EPISODES = ServingSpec(
    Demand(
        trace=("azure-conv", "sharegpt"),
        load=Range(1.0, 1.8),  # below 1, nearly all tokens are in time under any policy
        requests=Range(200, 400),
        load_profile=(STEADY, BURST),
        split="train",
    )
)
