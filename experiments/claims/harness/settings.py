"""Where claims are tested: settings (a trace family on a device) and sizes (how many of them, how long, how often)."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from typing import Any, NamedTuple

import numpy as np

from servegym.errors import ExperimentError
from servegym.latency_models.profile import Profile, load_profile
from servegym.scenarios.building import workload_of
from servegym.scenarios.saturation import saturation_rate_per_s
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records import types as layout
from servegym.traces.recipes import RECIPES

FAMILIES = ("azure-conv", "azure-code", "sharegpt", "mooncake-conversation")
LONG_FAMILIES = ("mooncake-conversation",)
# ProServe measured on Ascend 910B. Of the profiles of that device this one rests on serving points of the model itself.
DEVICES = ("a100-llama3-8b", "ascend910b-qwen3-8b")
# The families of a claim that is about devices, and has the same answer whatever they serve.
NO_FAMILY = ("",)
# Of 32B and more: the SLOs of that class (ProServe has them, see traces.recipes).
LARGE_DEVICES = ("a100-llama3-70b-tp4", "a100-llama3-70b-tp8", "ascend910b-qwen3-32b-tp4")
# Families whose papers set SLOs of their own; all others have ProServe's.
FAMILY_RECIPES = {
    "qoserve-conv": "qoserve", "qoserve-code": "qoserve", "qoserve-long": "qoserve", "semantic": "semantic",
    "flowprefill": "flowprefill",
}  # fmt: skip
# Whose TTFT SLOs a device's model has in recipe flowprefill. The paper's for the last are not known: those of the model
# that is nearest in the time of a prompt.
FLOWPREFILL_MODELS = {
    "a100-qwen2.5-14b-tp2": "qwen2.5-14b", "a100-llama3-70b-tp4": "llama3-70b", "a100-qwen3-30b-a3b": "llama3-8b",
}  # fmt: skip
FULL_SEED, QUICK_SEED = 3000, 500
# From a seed to the one that says what is compared where a claim is about the best of many; seeds of a size lie closer
# together than that.
SHIFT = 1000
# Seeds that have been looked at, and so can show nothing new: `servegym compare` and tunings begin at 0, the quick
# size, which one looks at while a claim is being written, at 500; on the others examinations were found.
LOOKED_AT = (range(1000), range(2000, 2005), range(7000, 7005))
# Requests of a run that has no length of its own, over those of size (1000). At load 1, where queues are longest-lived,
# the 95 % intervals of differences between two schedulers shrink about as with independent requests: standard deviation
# over ten seeds on a100-llama3-8b with 1000 / 2000 / 4000 requests, of slide-batching less sarathi-fcfs in TDG ratio
# .225 / .162 / .119 on azure-conv and .120 / .098 / .076 on sharegpt, of edf less sjf .170 / .103 / .073 and
# .090 / .065 / .048; of slide-batching's own TDG ratio on sharegpt .047 / .028 / .013. The means still move there
# (+.48 / +.52 / +.60): at load 1 nothing is stationary, and the longer the run the deeper the queue under a bad
# policy. Three times as many is what a run of all claims has time for.
LONGER = 3
FACTS_REQUESTS = 1000
POISSON = "poisson"
# Between the two names of a device that runs a claim's settings instead of one of its own.
INSTEAD_OF = " instead of "


class Setting(NamedTuple):
    """A trace family on one engine of a device; without a family (""), the device itself, whatever it serves.

    device: a profile's name or file; or "ONE instead of OTHER" (`stand_in`).
    """

    family: str
    device: str

    @property
    def name(self) -> str:
        return f"{self.family} on {self.device}" if self.family else self.device


@dataclasses.dataclass(frozen=True)
class Size:
    """How much is run.

    seeds: of lengths, arrivals and priorities (`seed_of`). requests: 1000 in full size; claims whose runs have
    lengths of their own scale these by it. longer: the runs of all others have so many times as many (`requests_of`).
    """

    name: str
    families: tuple[str, ...]
    devices: tuple[str, ...]
    seeds: tuple[int, ...]
    requests: int
    longer: int = 1

    @property
    def settings(self) -> list[Setting]:
        return [Setting(family, device) for device in self.devices for family in self.families]

    def requests_of(self, setting: Setting, times: int | None = None) -> int:
        """Requests of a run: `longer` times `requests`, or as many times as a claim says; a third as many where one is
        ten times the work of others."""
        return (times or self.longer) * self.requests // (3 if setting.family in LONG_FAMILIES else 1)

    def of(self, families: tuple[str, ...], devices: tuple[str, ...]) -> Size:
        """This size for a claim with families or devices of its own (none: as they are): in full size all of them,
        in a smaller one the first."""
        many = None if self.name == "full" else 1
        return dataclasses.replace(
            self, families=families[:many] or self.families, devices=devices[:many] or self.devices
        )

    def seeded(self, first: int) -> Size:
        """This size with as many seeds from another one on. Raises ExperimentError for seeds that are none, or that
        have been looked at already."""
        if first < 0:
            raise ExperimentError(f"seeds from {first} on; a seed is 0 or more")
        seeds = range(first, first + len(self.seeds))
        for used, purpose in (
            (seeds, ""),
            (range(seeds.start + SHIFT, seeds.stop + SHIFT), ", which choose the best baseline,"),
        ):
            for seen in LOOKED_AT:
                if max(used.start, seen.start) < min(used.stop, seen.stop):
                    raise ExperimentError(
                        f"seeds {first} to {seeds[-1]}: seeds {used.start} to {used.stop - 1}{purpose} have some in "
                        f"common with {seen.start} to {seen.stop - 1}, which were looked at while claims and defaults "
                        "were chosen; fresh ones are those from 10000 on, for one"
                    )
        return dataclasses.replace(self, seeds=tuple(seeds))


FULL = Size("full", FAMILIES, DEVICES, tuple(range(FULL_SEED, FULL_SEED + 5)), 1000, LONGER)
QUICK = Size("quick", FAMILIES[:1], DEVICES[:1], tuple(range(QUICK_SEED, QUICK_SEED + 3)), 300)


def stand_in(device: str, other: str) -> str:
    """The device of a setting that runs on one device by the rules of another: SLOs, chunks, what is judged."""
    return f"{device}{INSTEAD_OF}{other}"


def served_by(device: str) -> str:
    """The profile, by name or file, that a setting's device is served by."""
    return device.partition(INSTEAD_OF)[0]


def rules_of(device: str) -> str:
    """The device whose rules a setting has: its own, or those of the one it stands in for."""
    return device.rpartition(INSTEAD_OF)[2]


@functools.cache
def profile(device: str) -> Profile:
    return load_profile(served_by(device))


@functools.cache
def idle_tpot_s(device: str) -> float:
    """Time between tokens of a request alone on the device."""
    return profile(device).idle_tpot_s


@functools.cache
def slo_recipe(device: str, family: str = "") -> str:
    """The recipe of the paper that a family is from, ProServe's for most (TTFT 1 s, TPOT 50 ms; 2 s, 100 ms for large
    models), its TPOT raised to twice what an idle engine takes if below."""
    name = FAMILY_RECIPES.get(family) or ("proserve-32b" if rules_of(device) in LARGE_DEVICES else "proserve")
    parameters = []
    if name == "flowprefill":
        parameters.append(f"model={FLOWPREFILL_MODELS.get(rules_of(device), 'llama3-8b')}")
    if "idle_tpot_s" in RECIPES.parameters(name):
        parameters.append(f"idle_tpot_s={idle_tpot_s(device)!r}")
    return f"{name}:{','.join(parameters)}" if parameters else name


@functools.cache
def saturation_per_s(setting: Setting, engines: int = 1) -> float:
    """Requests per second at load 1 of as many co-located engines."""
    recipe = slo_recipe(setting.device, setting.family)
    return saturation_rate_per_s(setting.family, profile(setting.device), engines, slo=recipe)


def seed_of(family: str, seed: int) -> int:
    """The seed that the requests of a family are drawn with. Families have lengths, arrivals and priorities of their
    own, so that what one shows is no repetition of another; devices, loads and policies of a family share them."""
    return int.from_bytes(hashlib.sha256(f"{family} {seed}".encode()).digest()[:6], "big")


@functools.lru_cache(maxsize=64)
def workload(
    setting: Setting, load: float, seed: int, requests: int, arrivals: str = POISSON, slo: str = "", engines: int = 1
) -> Workload:
    """The requests of a seed. arrivals: "poisson" at the load, or a process of its own rates, given whole.
    slo: a recipe with its parameters; empty: the setting's. engines: that the load is relative to."""
    spec = ServingSpec().replaced(**words_of(setting, slo, arrivals), requests=requests)
    rate_per_s = load * saturation_per_s(setting, engines) if arrivals == POISSON else None
    return workload_of(spec, seed_of(setting.family, seed), rate_per_s)


def words_of(setting: Setting, slo: str = "", arrivals: str = POISSON) -> dict[str, Any]:
    """What a `ServingSpec` is told of a setting's demand: SLOs are as a recipe's text has them, whatever the device."""
    recipe = slo or slo_recipe(setting.device, setting.family)
    return {
        "trace": setting.family, "device": served_by(setting.device), "slo": recipe, "arrivals": arrivals,
        "keep_slos": True, "window": "first",
    }  # fmt: skip


def idle_prefill_s(device: str, table: np.ndarray, chunk_tokens: int | None = None) -> np.ndarray:
    """float64[requests]: time of each prompt alone on the device, whole or in chunks of `chunk_tokens`."""
    prompts = table["prompt_tokens"].astype("i8")
    chunk = int(prompts.max()) if chunk_tokens is None else chunk_tokens
    whole = prompts // chunk
    started = chunk * np.arange(int(whole.max()) + 1)  # tokens cached before each whole chunk
    until_s = np.r_[0.0, np.cumsum(_prefill_s(device, np.full(len(started), chunk), started))]
    rest = prompts - chunk * whole
    rest_s = np.where(rest > 0, _prefill_s(device, np.maximum(rest, 1), chunk * whole), 0.0)
    return until_s[whole] + rest_s


def _prefill_s(device: str, tokens: np.ndarray, cached: np.ndarray) -> np.ndarray:
    """float64[batches]: time of batches that hold one chunk each."""
    batches = np.zeros(len(tokens), layout.BATCH)
    batches["prefill_requests"] = 1
    batches["prefill_tokens"] = batches["longest_prefill_tokens"] = tokens
    batches["prefill_tokens_squared"] = tokens.astype("f8") ** 2
    batches["prefill_tokens_cached"] = tokens.astype("f8") * cached
    batches["prefill_cached_tokens"] = cached
    return profile(device).device.evaluate(batches)
