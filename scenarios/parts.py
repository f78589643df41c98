"""The other parts of a spec: fleet, policies and imperfection, each field with its help."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from servegym.scenarios import values
from servegym.scenarios.fields import (
    CHOICE,
    CORRECTION,
    FLAG,
    FRONT_END,
    INCIDENTS,
    NAME,
    NUMBER,
    POLICY,
    POLICY_METAVAR,
    POOLS,
    PREDICTOR,
    SPECULATION,
    WHOLE,
    option,
)
from servegym.scenarios.ranges import Names, Numbers
from servegym.scenarios.values import Pool

if TYPE_CHECKING:
    from servegym.latency_models.profile import Profile
    from servegym.simulator.features.disturbances import Correction
    from servegym.simulator.features.front_end import FrontEnd
    from servegym.simulator.features.speculation import Speculation
    from servegym.simulator.fleet.incidents import Incident
    from servegym.simulator.inputs.predictors import Predictor
    from servegym.simulator.policies.policy import Policy

    PolicyNames = str | Policy | tuple[str | Policy, ...]

DEVICE = "a100-llama3-8b"
LINK_GB_PER_S = HOST_GB_PER_S = 25.0


@dataclasses.dataclass(frozen=True)
class Fleet:
    """The engines: `engines`, or `prefill` and `decode`, of one device; or `pools` that differ."""

    device: Names | Profile = option(
        DEVICE, NAME,
        "A latency profile by name, or its .json file. Append :estimator=FORM for the form of the policies' "
        "estimator, :cpu_overhead_ms=NUMBER for the CPU time of an iteration, :kv_groups=mean to count tokens alike "
        "in all layers.",
        metavar="PROFILE", first=True,
    )  # fmt: skip
    engines: Numbers = option(
        1, WHOLE, "Number of engines that prefill and decode.", metavar="N", least=1, most=4096, first=True
    )
    prefill: Numbers = option(
        0, WHOLE,
        "Number of engines that only prefill; use it with --decode, instead of --engines.",
        metavar="P", least=0,
        most=4095, shown="none",
    )  # fmt: skip
    decode: Numbers = option(
        0, WHOLE, "Number of engines that only decode; use it with --prefill.", metavar="D", least=0, most=4095,
        shown="none",
    )  # fmt: skip
    pools: tuple[Pool, ...] = option(
        (), POOLS, "Pools of engines that differ in device, role or scheduler, instead of --engines. In a file only.",
        shown="one of --engines",
    )  # fmt: skip
    link_gb_per_s: Numbers = option(
        LINK_GB_PER_S, NUMBER,
        "Bandwidth of KV transfers to each decode engine.",
        unit="GB/s", metavar="GB_PER_S", above=0,
        most=float("inf"),
    )  # fmt: skip
    signal_delay_s: Numbers = option(
        0.0, NUMBER,
        "Delay with which a router learns of tokens and of engines' memory.",
        unit="s", name="signal-delay",
        metavar="SECONDS", least=0,
    )  # fmt: skip
    host_memory_gib: Numbers = option(
        0.0, NUMBER, "Host memory of an engine, for the KV that policies offload when they preempt.", unit="GiB",
        name="host-memory", metavar="GIB", least=0,
    )  # fmt: skip
    host_gb_per_s: Numbers = option(
        HOST_GB_PER_S, NUMBER, "Bandwidth between host memory and the device.", unit="GB/s", name="host-bandwidth",
        metavar="GB_PER_S", above=0, most=float("inf"),
    )  # fmt: skip
    prefix_store_tokens: Numbers = option(
        0, WHOLE,
        "Host memory of an engine, in tokens, for the KV of shared prefixes, loaded at --host-bandwidth. It needs a "
        "trace with prefix blocks. With --prefix-caching on it keeps the blocks that KV memory overwrites.",
        unit="tokens", metavar="N", least=0, shown="none",
    )  # fmt: skip
    prefix_caching: str = option(
        "auto", CHOICE,
        "Automatic prefix caching, as in vLLM V1: on, off, or auto (on where the trace has prefix blocks and engines "
        "have no prefix store, unless the model has states alone).",
        metavar="auto|on|off", choices=("auto", "on", "off"),
    )  # fmt: skip
    kv_events: bool = option(
        False, FLAG,
        "Engines publish KV events, as vLLM does: the blocks that each iteration stored and removed. Without them, "
        "routers estimate caches from what they sent.",
    )  # fmt: skip
    async_scheduling: bool = option(
        False, FLAG,
        "Engines form the next batch while one runs, as vLLM does by default, so decisions are one iteration ahead.",
    )  # fmt: skip
    lockstep: Numbers = option(
        1, WHOLE,
        "Engines form groups of this many data-parallel ranks with experts spread over them; a group starts and ends "
        "each iteration together.",
        metavar="RANKS", least=1, most=4096, shown="no groups",
    )  # fmt: skip
    max_num_batched_tokens: Numbers | None = option(
        None, WHOLE,
        "Most tokens in an engine's batch, whatever its scheduler allows; vLLM's setting of this name.",
        unit="tokens", metavar="N", least=1, shown="the scheduler's own limit",
    )  # fmt: skip
    max_num_seqs: Numbers | None = option(
        None, WHOLE,
        "Most running requests of an engine, whatever its scheduler allows; vLLM's setting of this name.",
        unit="requests", metavar="N", least=1, shown="the scheduler's own limit",
    )  # fmt: skip
    max_loras: Numbers | None = option(
        None, WHOLE,
        "Most LoRA adapters in an engine's batch and in its device memory; vLLM's setting of this name. Use it with "
        "--lora-load and --lora-activate, and a trace whose requests name adapters (--adapters).",
        unit="adapters", metavar="N", least=1, most=4096, shown="no adapters",
    )  # fmt: skip
    max_cpu_loras: Numbers | None = option(
        None, WHOLE, "Most LoRA adapters in an engine's host memory, those in device memory among them; vLLM's setting "
        "of this name.", unit="adapters", metavar="N", least=1, most=2**20, shown="--max-loras",
    )  # fmt: skip
    lora_load_s: Numbers | None = option(
        None, NUMBER, "Time to load a LoRA adapter that is not in host memory.", unit="s", name="lora-load",
        metavar="SECONDS", least=0, shown="none",
    )  # fmt: skip
    lora_activate_s: Numbers | None = option(
        None, NUMBER, "Time to copy a LoRA adapter from host memory to device memory.", unit="s",
        name="lora-activate", metavar="SECONDS", least=0, shown="none",
    )  # fmt: skip
    startup_s: Numbers | None = option(
        None, NUMBER,
        "Time an engine takes from its start by the scaler until it serves. Engines outside every tier are then off.",
        unit="s", name="startup", metavar="SECONDS", least=0, shown="engines are always up",
    )  # fmt: skip
    started: Numbers = option(
        0, WHOLE, "Number of engines, in each pool, that serve from the beginning; use it with --startup.",
        metavar="N", least=0, most=4096,
    )  # fmt: skip
    role_change_s: Numbers | None = option(
        None, NUMBER,
        "Time an engine takes to change from prefill to decode or back, once it has nothing left; a scaler such as "
        "pd-ratio decides.",
        unit="s", name="role-change", metavar="SECONDS", least=0, shown="roles are fixed",
    )  # fmt: skip
    price_per_hour: Numbers | None = option(
        None, NUMBER, "Price of an engine in service, in any currency; results then have costs.", unit="1/h",
        name="price", metavar="PER_HOUR", least=0, shown="not known",
    )  # fmt: skip
    idle_w: Numbers | None = option(
        None, NUMBER,
        "Power of an engine that is in service or loading and runs no iteration; use it with --busy-power.",
        unit="W", name="idle-power", metavar="WATTS", least=0, shown="not known",
    )  # fmt: skip
    busy_w: Numbers | None = option(
        None, NUMBER,
        "Power of an engine that runs an iteration; use it with --idle-power.",
        unit="W", name="busy-power",
        metavar="WATTS", least=0, shown="not known",
    )  # fmt: skip
    speculation: str | Speculation | None = option(
        None, SPECULATION,
        "Speculative decoding: k, acceptance (one rate, or one for each position, 0.8/0.6/0.4), draft_s, "
        "draft_s_per_request, free_verification=yes.",
        metavar="KEY=VALUE,...", shown="none",
    )  # fmt: skip
    front_end: str | FrontEnd | None = option(
        None, FRONT_END,
        "Time between clients and engines for HTTP, tokenising and streaming: request_s, prompt_s_per_token, "
        "streamed_s_per_token, back_s, one_process=yes; none takes no time.",
        metavar="KEY=VALUE,...", shown="that of the profile; shipped ones have none",
    )  # fmt: skip
    incidents: tuple[str | Incident, ...] = option(
        (), INCIDENTS,
        "An engine (numbered from 0) fails (fail:2@60), returns empty (return:2@90), or takes no new requests until it "
        "returns (drain:0@30). Repeatable.",
        name="incident", metavar="KIND:ENGINE@SECONDS", shown="none",
    )  # fmt: skip

    def __post_init__(self) -> None:
        values.paths_as_text(self, "device")

    @property
    def is_disaggregated(self) -> bool:
        """Whether prefill and decode engines are separate."""
        return any(pool.role != "both" for pool in self.pools) or bool(self.prefill)

    @property
    def total(self) -> int:
        """The number of engines in all. Raises SpecError if it is not fixed."""
        if self.pools:
            return sum(pool.engines for pool in self.pools)
        return int(sum(values.fixed("engines", number) for number in (self.prefill, self.decode))) or int(
            values.fixed("engines", self.engines)
        )


@dataclasses.dataclass(frozen=True)
class Policies:
    """The policies that decide."""

    scheduler: PolicyNames = option(
        "slide-batching",
        POLICY,
        "The scheduler, with parameters that differ from its defaults.",
        metavar=POLICY_METAVAR,
        first=True,
    )
    router: PolicyNames | None = option(
        None,
        POLICY,
        "The router: which engine gets a request.",
        metavar=POLICY_METAVAR,
        shown="round-robin",
        first=True,
    )
    scaler: PolicyNames | None = option(
        None, POLICY, "The scaler: it moves engines between tiers and the common pool.", metavar=POLICY_METAVAR,
        shown="none",
    )  # fmt: skip
    decode_scheduler: PolicyNames | None = option(
        None, POLICY, "The scheduler of the decode engines.", metavar=POLICY_METAVAR, shown="vllm-fcfs"
    )


@dataclasses.dataclass(frozen=True)
class Imperfection:
    """Deviations of devices from their model, and what policies know of the workload."""

    noise: Numbers = option(
        0.0, NUMBER, "Noise of the device: relative standard deviation of iteration times.", metavar="SHARE",
        least=0, most=10,
    )  # fmt: skip
    drift_per_s: Numbers = option(
        0.0, NUMBER, "Drift of the device: relative slowdown per second.", unit="1/s", name="drift", metavar="PER_S",
        least=0,
    )  # fmt: skip
    shift_s: Numbers = option(
        float("inf"), NUMBER, "When the device becomes slower, by --shift-ratio.", unit="s", name="shift",
        metavar="SECONDS", least=0, most=float("inf"), shown="never",
    )  # fmt: skip
    shift_ratio: Numbers = option(1.0, NUMBER, "Factor on iteration times from --shift on.", metavar="X", above=0)
    noise_seed: int | None = option(
        None, WHOLE, "Seed of the noise.", metavar="S", least=0, shown="that of the requests"
    )
    correction: bool | Correction = option(
        False, CORRECTION, "Correct the estimator online by measured iteration times.", name="correct"
    )
    predictor: str | Predictor | None = option(
        None, PREDICTOR,
        "Predict urgency and output lengths before requests are queued: urgency_error, length_error, length_buckets, "
        "latency_s, processing, batch_size, ...",
        metavar="KEY=VALUE,...", shown="the workload's own values, without delay",
    )  # fmt: skip

    @property
    def disturbs(self) -> bool:
        """Whether the device deviates from its model."""
        return (self.noise, self.drift_per_s, self.shift_ratio) != (0.0, 0.0, 1.0)
