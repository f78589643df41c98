"""The parts of a spec besides its demand: fleet, policies, imperfection. Each field with its help."""

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
from servegym.scenarios.pools import Pool
from servegym.scenarios.ranges import Names, Numbers

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
    """What serves. `engines`, or `prefill` and `decode`, of one device are the usual cases; `pools` are for others."""

    device: Names | Profile = option(
        DEVICE, NAME,
        "A latency profile, or the path of its .json file; with :estimator=FORM behind it, policies believe that.",
        metavar="PROFILE", first=True,
    )  # fmt: skip
    engines: Numbers = option(1, WHOLE, "Engines, each of which does all.", metavar="N", least=1, most=4096, first=True)
    prefill: Numbers = option(
        0, WHOLE, "Engines that prefill only, with decode engines; instead of --engines.", metavar="P", least=0,
        most=4095, shown="none",
    )  # fmt: skip
    decode: Numbers = option(
        0, WHOLE, "Engines that decode what the prefill engines have prefilled.", metavar="D", least=0, most=4095,
        shown="none",
    )  # fmt: skip
    pools: tuple[Pool, ...] = option(
        (), POOLS, "Pools of engines of several devices or schedulers, instead of --engines. Only in a file.",
        shown="one of --engines",
    )  # fmt: skip
    link_gb_per_s: Numbers = option(
        LINK_GB_PER_S, NUMBER, "How fast KV goes to each decode engine.", unit="GB/s", metavar="GB_PER_S", above=0,
        most=float("inf"),
    )  # fmt: skip
    signal_delay_s: Numbers = option(
        0.0, NUMBER, "How late a router hears of tokens, and of engines' memory.", unit="s", name="signal-delay",
        metavar="SECONDS", least=0,
    )  # fmt: skip
    host_memory_gib: Numbers = option(
        0.0, NUMBER, "Host memory of an engine, to which policies that keep the KV of victims move it.", unit="GiB",
        name="host-memory", metavar="GIB", least=0,
    )  # fmt: skip
    host_gb_per_s: Numbers = option(
        HOST_GB_PER_S, NUMBER, "How fast KV moves to host memory and back.", unit="GB/s", name="host-bandwidth",
        metavar="GB_PER_S", above=0, most=float("inf"),
    )  # fmt: skip
    prefix_store_tokens: Numbers = option(
        0, WHOLE,
        "Host memory of an engine, in tokens, for the KV of beginnings that prompts share; it is loaded at "
        "--host-bandwidth. The trace has prefix blocks then. With --prefix-caching on it keeps the blocks that KV "
        "memory overwrites.",
        unit="tokens", metavar="N", least=0, shown="none",
    )  # fmt: skip
    prefix_caching: str = option(
        "auto", CHOICE,
        "Whether requests that begin alike share KV memory, as in vLLM V1: on, off, or auto, which is on where the "
        "trace has prefix blocks and engines have no prefix stores.",
        metavar="auto|on|off", choices=("auto", "on", "off"),
    )  # fmt: skip
    kv_events: bool = option(
        False, FLAG,
        "Engines that cache prefixes tell routers at the end of each iteration which KV blocks they have stored and "
        "overwritten, as vLLM's KV events do, instead of routers' going by what they sent.",
    )  # fmt: skip
    async_scheduling: bool = option(
        False, FLAG,
        "Engines form the next batch while one runs, as vLLM does by default: decisions are one iteration old.",
    )  # fmt: skip
    lockstep: Numbers = option(
        1, WHOLE,
        "Engines of each pool are groups of so many, data-parallel ranks with experts spread over them: a group starts "
        "and ends every iteration together.",
        metavar="RANKS", least=1, most=4096, shown="each runs by itself",
    )  # fmt: skip
    max_num_batched_tokens: Numbers | None = option(
        None, WHOLE,
        "Most tokens in a batch of an engine, whatever its scheduler says, as vLLM's setting of this name.",
        unit="tokens", metavar="N", least=1, shown="no limit but the scheduler's",
    )  # fmt: skip
    max_num_seqs: Numbers | None = option(
        None, WHOLE,
        "Most requests that hold KV memory of an engine, whatever its scheduler says, as vLLM's setting of this name.",
        unit="requests", metavar="N", least=1, shown="no limit but the scheduler's",
    )  # fmt: skip
    startup_s: Numbers | None = option(
        None, NUMBER,
        "How long an engine takes from being started by the scaler until it serves. Engines that are in no tier are "
        "off then.",
        unit="s", name="startup", metavar="SECONDS", least=0, shown="they are up",
    )  # fmt: skip
    started: Numbers = option(
        0, WHOLE, "Engines (of each pool) that serve from the beginning, where engines have a start-up time.",
        metavar="N", least=0, most=4096,
    )  # fmt: skip
    price_per_hour: Numbers | None = option(
        None, NUMBER, "Price of an engine in service, in any currency: results have costs in it.", unit="1/h",
        name="price", metavar="PER_HOUR", least=0, shown="not known",
    )  # fmt: skip
    idle_w: Numbers | None = option(
        None, NUMBER, "Power of an engine in service, loading too, that runs no iteration; with --busy-power.",
        unit="W", name="idle-power", metavar="WATTS", least=0, shown="not known",
    )  # fmt: skip
    busy_w: Numbers | None = option(
        None, NUMBER, "Power of an engine that runs an iteration; with --idle-power.", unit="W", name="busy-power",
        metavar="WATTS", least=0, shown="not known",
    )  # fmt: skip
    speculation: str | Speculation | None = option(
        None, SPECULATION,
        "Speculative decoding: k, acceptance (one rate, or one for each position, 0.8/0.6/0.4), draft_s, "
        "draft_s_per_request, free_verification=yes.",
        metavar="KEY=VALUE,...", shown="no tokens are drafted",
    )  # fmt: skip
    front_end: str | FrontEnd | None = option(
        None, FRONT_END,
        "What lies between clients and engines, HTTP, tokenising and streaming: request_s, prompt_s_per_token, "
        "streamed_s_per_token, back_s, one_process=yes. none: nothing that takes time.",
        metavar="KEY=VALUE,...", shown="as the profile has it: none that ships has any",
    )  # fmt: skip
    incidents: tuple[str | Incident, ...] = option(
        (), INCIDENTS,
        "An engine, numbered from 0, fails (fail:2@60), returns empty (return:2@90), or takes no more requests until "
        "it returns (drain:0@30). Repeatable.",
        name="incident", metavar="KIND:ENGINE@SECONDS", shown="none",
    )  # fmt: skip

    @property
    def is_disaggregated(self) -> bool:
        """Whether some engines only prefill, and others only decode."""
        return any(pool.role != "both" for pool in self.pools) or bool(self.prefill)

    @property
    def total(self) -> int:
        """Engines in all. Raises SpecError where their number is not fixed."""
        if self.pools:
            return sum(pool.engines for pool in self.pools)
        return int(sum(values.fixed("engines", number) for number in (self.prefill, self.decode))) or int(
            values.fixed("engines", self.engines)
        )


@dataclasses.dataclass(frozen=True)
class Policies:
    """The policies that decide."""

    scheduler: PolicyNames = option(
        "slide-batching", POLICY, "The scheduler and parameters other than its own.", metavar=POLICY_METAVAR, first=True
    )
    router: PolicyNames | None = option(
        None, POLICY, "Which of several engines gets a request.", metavar=POLICY_METAVAR, shown="in turn", first=True
    )
    scaler: PolicyNames | None = option(
        None, POLICY, "Moves engines between tiers and the common pool.", metavar=POLICY_METAVAR,
        shown="none: all stay in service",
    )  # fmt: skip
    decode_scheduler: PolicyNames | None = option(
        None, POLICY, "The scheduler of the decode engines.", metavar=POLICY_METAVAR, shown="vllm-fcfs"
    )


@dataclasses.dataclass(frozen=True)
class Imperfection:
    """What policies believe and do not know, and what devices do besides their model."""

    noise: Numbers = option(
        0.0, NUMBER, "Noise of the device: relative standard deviation of an iteration's time.", metavar="SHARE",
        least=0, most=10,
    )  # fmt: skip
    drift_per_s: Numbers = option(
        0.0, NUMBER, "Drift of the device: relative slowdown a second.", unit="1/s", name="drift", metavar="PER_S",
        least=0,
    )  # fmt: skip
    shift_s: Numbers = option(
        float("inf"), NUMBER, "From when on the device is slower by --shift-ratio.", unit="s", name="shift",
        metavar="SECONDS", least=0, most=float("inf"), shown="never",
    )  # fmt: skip
    shift_ratio: Numbers = option(1.0, NUMBER, "Factor on times from --shift on.", metavar="X", above=0)
    noise_seed: int | None = option(
        None, WHOLE, "Seed of the noise.", metavar="S", least=0, shown="that of the requests"
    )
    correction: bool | Correction = option(
        False, CORRECTION, "Correct the estimator by what iterations took.", name="correct"
    )
    predictor: str | Predictor | None = option(
        None, PREDICTOR,
        "Predict urgency and output lengths before requests are queued: urgency_error, length_error, length_buckets, "
        "latency_s, processing, batch_size, ...",
        metavar="KEY=VALUE,...", shown="what the workload says, at once",
    )  # fmt: skip

    @property
    def disturbs(self) -> bool:
        """Whether the device is not as its model says."""
        return (self.noise, self.drift_per_s, self.shift_ratio) != (0.0, 0.0, 1.0)
