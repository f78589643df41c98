"""LoRA adapters: which are in an engine's memory, and how many a batch may have. The rules: docs/feature_rules.md.

REQUEST.adapter is an index into run.adapters[e], from 1 without gaps; 0 is the model itself. An adapter is in memory
if the number of its last use there is above 0; the adapter with the least such number is the least recently used.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from servegym.errors import DeploymentError
from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.memory.prefixes import Prompts

MOST_LORAS = {"max_loras": 2**12, "max_cpu_loras": 2**20}


@dataclasses.dataclass(frozen=True)
class Adapters:
    """LoRA adapters of each engine.

    max_loras, max_cpu_loras: as in vLLM, most adapters in a batch and in device memory, and most in host memory, which
    includes those in device memory (None: max_loras). load_s: time to load an adapter into host memory. activate_s:
    time to copy it from there to device memory. The engine computes nothing meanwhile. Raises DeploymentError.
    """

    max_loras: int
    load_s: float
    activate_s: float
    max_cpu_loras: int | None = None

    def __post_init__(self) -> None:
        for field, most in MOST_LORAS.items():
            value = self.values[field]
            if not 1 <= value <= most or value != int(value):
                raise DeploymentError(
                    f"LoRA adapters: {field} is {value}; it should be a whole number from 1 to {most}"
                )
        if self.values["max_cpu_loras"] < self.max_loras:
            raise DeploymentError(
                f"LoRA adapters: max_cpu_loras is {self.max_cpu_loras}; it should be max_loras, {self.max_loras}, or "
                "more"
            )
        for field in ("load_s", "activate_s"):
            if not 0 <= getattr(self, field) < np.inf:
                raise DeploymentError(f"LoRA adapters: {field} is {getattr(self, field)}; it should be 0 or more")

    @property
    def values(self) -> dict[str, float]:
        """The settings by name, with max_cpu_loras filled in."""
        return vars(self) | {"max_cpu_loras": self.max_loras if self.max_cpu_loras is None else self.max_cpu_loras}


def numbered(adapter: np.ndarray) -> np.ndarray:
    """Return int64[requests]: adapters renumbered from 1 without gaps; 0 stays 0."""
    if not adapter.any():
        return np.zeros(len(adapter), "i8")
    return np.unique(np.r_[0, adapter], return_inverse=True)[1][1:]


def prompts_by_adapter(prompts: Prompts | None, adapter: np.ndarray) -> Prompts | None:
    """Return prompts in which equal chunks under different adapters have different numbers, as their KV differs.

    adapter: int[requests].
    """
    if prompts is None or not adapter.any():
        return prompts
    of_chunks = np.repeat(numbered(adapter), np.diff(prompts.offsets))
    apart = of_chunks * (int(prompts.chunks.max(initial=0)) + 1) + prompts.chunks
    return dataclasses.replace(prompts, chunks=apart)


@kernel
def clear_batch_adapters(engine):
    """Set the adapters of the batch that the engine is about to form to none."""
    engine.adapters.attempts += 1
    engine.adapters.in_batch = 0


@kernel
def joins_batch(run, e, adapter):
    """Return whether a request with this adapter may join the batch that engine e forms."""
    adapters, one = run.engines[e].adapters, run.adapters[e, adapter]
    if adapter == 0 or adapters.in_batch < adapters.max_loras:
        return True
    return one.attempt == adapters.attempts and one.requests > 0


@kernel
def count_into_batch(run, e, adapter):
    """Count a request with this adapter into the batch that engine e forms."""
    adapters, one = run.engines[e].adapters, run.adapters[e, adapter]
    if adapter == 0:
        return
    if one.attempt != adapters.attempts:
        one.attempt, one.requests = adapters.attempts, 0
    adapters.in_batch += one.requests == 0
    one.requests += 1


@kernel
def take_out_of_batch(run, e, adapter):
    """Count a request with this adapter out of the batch that engine e forms."""
    if adapter > 0:
        run.adapters[e, adapter].requests -= 1
        run.engines[e].adapters.in_batch -= run.adapters[e, adapter].requests == 0


@kernel
def load_batch_adapters(run, e):
    """Bring the adapters of the batch that engine e has formed into device memory, and return the time that it takes in
    all, that of loading, and that of activating."""
    engine, table = run.engines[e], run.adapters[e]
    adapters, took_s, load_s, activate_s = engine.adapters, 0.0, 0.0, 0.0
    for k in range(engine.batch_length):  # adapters of the batch that are there are not replaced
        adapter = run.requests[run.entries[e, k].request].adapter
        if adapter > 0 and is_first(run, e, k, adapter):
            adapters.uses += 1
            one = table[adapter]
            one.host_use = adapters.uses if one.host_use > 0 else 0
            one.device_use = adapters.uses if one.device_use > 0 else 0
    for k in range(engine.batch_length):
        adapter = run.requests[run.entries[e, k].request].adapter
        if adapter > 0 and table[adapter].device_use == 0:
            adapters.uses += 1
            loading_s = load_adapter(adapters, table, adapter)
            activating_s = activate(adapters, table, adapter)
            took_s += loading_s + activating_s
            load_s, activate_s = load_s + loading_s, activate_s + activating_s
    return took_s, load_s, activate_s


@kernel
def load_ahead_adapters(run, e):
    """Bring in the adapters of the batch that engine e has formed ahead. They are loaded once the batch before has its
    own, and activated when the batch starts."""
    ahead = run.engines[e].ahead
    _, load_s, activate_s = load_batch_adapters(run, e)
    ahead.loaded_s, ahead.activate_s = max(run.status[0].now_s, ahead.loaded_s) + load_s, activate_s


@kernel
def is_first(run, e, k, adapter):
    """Return whether entry k is the first of its batch with its adapter. Ask in the order of the batch."""
    one = run.adapters[e, adapter]
    if one.attempt == -run.engines[e].adapters.attempts:
        return False
    one.attempt = -run.engines[e].adapters.attempts
    return True


@kernel
def load_adapter(adapters, table, adapter):
    """Load an adapter into host memory, replacing the least recently used if it is full, and return the time."""
    if table[adapter].host_use > 0:
        return 0.0
    if adapters.in_host == adapters.max_cpu_loras:
        least = 0
        for other in range(1, table.shape[0]):
            if table[other].host_use > 0 and (least == 0 or table[other].host_use < table[least].host_use):
                least = other
        adapters.in_host -= 1
        adapters.in_device -= table[least].device_use > 0
        table[least].host_use, table[least].device_use = 0, 0
    adapters.in_host += 1
    adapters.loads += 1
    table[adapter].host_use = adapters.uses
    return adapters.load_s


@kernel
def activate(adapters, table, adapter):
    """Copy an adapter to device memory, replacing the least recently used if it is full, and return the time."""
    if adapters.in_device == adapters.max_loras:
        least = 0
        for other in range(1, table.shape[0]):
            if table[other].device_use > 0 and (least == 0 or table[other].device_use < table[least].device_use):
                least = other
        adapters.in_device -= 1
        table[least].device_use = 0
    adapters.in_device += 1
    adapters.activations += 1
    table[adapter].device_use = adapters.uses
    return adapters.activate_s


def loras_noted(snapshots: np.ndarray, adapters: int) -> int:
    """Return the most adapters that a router notes of an engine. adapters: how many the requests name."""
    return int(np.maximum(snapshots["max_loras"], np.minimum(snapshots["max_cpu_loras"], adapters)).max())


@kernel
def adapter_s(known, request, e):
    """Return the time to load the request's LoRA adapter into the device memory of engine e, s, as the router knows it.

    The router takes the adapters of the requests that it sent there last to be in the engine's memories.
    """
    sent, snapshot = known.adapters[e], known.snapshots[e]
    if request.adapter == 0 or snapshot.max_loras == 0:
        return 0.0
    for place in range(min(snapshot.max_cpu_loras, sent.shape[0])):
        if sent[place] == request.adapter:
            return 0.0 if place < snapshot.max_loras else snapshot.lora_activate_s
    return snapshot.lora_load_s + snapshot.lora_activate_s


@kernel
def note_adapter(sent, most, adapter):
    """Move an adapter to the front of `sent`, the router's list of `most` adapters last sent to an engine."""
    place = 0
    while place < min(most, sent.shape[0]) - 1 and sent[place] != adapter and sent[place] != 0:
        place += 1
    for i in range(place, 0, -1):
        sent[i] = sent[i - 1]
    sent[0] = adapter


@kernel
def forget_adapters(run, known, e):
    """Remove all adapters from engine e, and from what the router knows of it."""
    run.engines[e].adapters.in_host = run.engines[e].adapters.in_device = 0
    run.engines[e].ahead.loaded_s = 0.0
    for adapter in range(run.adapters.shape[1]):
        run.adapters[e, adapter].host_use, run.adapters[e, adapter].device_use = 0, 0
    for place in range(known.adapters.shape[1]):
        known.adapters[e, place] = 0
