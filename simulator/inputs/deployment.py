"""Deployments: equal engines with a device model, KV memory and an estimator."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np

from servegym.errors import DeploymentError
from servegym.simulator.compilation.kernels import Compiled
from servegym.simulator.features.adapters import Adapters
from servegym.simulator.features.operators import Operators
from servegym.simulator.features.speculation import Speculation
from servegym.simulator.fleet.startup import Startup
from servegym.simulator.inputs.costs import Costs
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.grouped_prefixes import check_caching
from servegym.simulator.memory.kv_groups import KvCacheGroup, kinds_of, tokens_held
from servegym.simulator.memory.prefixes import PrefixStore
from servegym.simulator.policies.policy import Policy
from servegym.simulator.records.types import ROLES

OWN_LIMITS = ("max_num_batched_tokens", "max_num_seqs")  # fields of a Deployment; None: no limit
MAX_ENGINES = 4096
KV_GROUPS = "a model of layers with windows or states (KV cache groups)"
ALIKE = "append :kv_groups=mean to the device to count all tokens of a request alike"


class LatencyModel(Protocol):
    """The time of a batch as a compiled function of its sums and of coefficients."""

    @property
    def batch_s(self) -> Compiled: ...

    @property
    def coefficients(self) -> np.ndarray: ...


class EstimatorModel(LatencyModel, Protocol):
    """A latency model that also gives the times of a request alone and of the remaining tokens of queued requests.

    scaled: bool[k], the coefficients that online correction multiplies; times are proportional to them together.
    """

    @property
    def request_s(self) -> Compiled: ...

    @property
    def exec_s(self) -> Compiled: ...

    @property
    def scaled(self) -> np.ndarray: ...


def check_coefficients(device: LatencyModel, estimator: EstimatorModel, where: str) -> None:
    """Raise DeploymentError for coefficients that are not finite float64[k], or without a valid `scaled`."""
    for role, model in (("device", device), ("estimator", estimator)):
        numbers = np.asarray(model.coefficients)
        if numbers.dtype != np.float64 or numbers.ndim != 1 or not np.isfinite(numbers).all():
            raise DeploymentError(
                f"{where}: {role}: coefficients are {numbers.dtype}{list(numbers.shape)}, or not finite; "
                "they should be finite float64[k]"
            )
    scaled = np.asarray(getattr(estimator, "scaled", None))
    if scaled.dtype != np.bool_ or scaled.shape != estimator.coefficients.shape:
        raise DeploymentError(
            f"{where}: estimator: `scaled` is {scaled.dtype}{list(scaled.shape)}; it should be "
            f"bool[{len(estimator.coefficients)}], True for each coefficient that online correction multiplies"
        )


@dataclasses.dataclass(frozen=True)
class HostMemory:
    """Host memory of each engine, to which a victim's KV can be saved and from which it is loaded again.

    blocks: number of blocks of the engine's block_tokens. load_s_per_token, save_s_per_token: times to move a token, in
    which the engine computes nothing.
    """

    blocks: int
    load_s_per_token: float
    save_s_per_token: float

    def __post_init__(self) -> None:
        if not 0 <= self.blocks < 2**31 or self.blocks != int(self.blocks):
            raise DeploymentError(
                f"host memory: blocks is {self.blocks}; it should be a whole number from 0 to {2**31 - 1}"
            )
        for field in ("load_s_per_token", "save_s_per_token"):
            if not 0 <= getattr(self, field) < np.inf:
                raise DeploymentError(f"host memory: {field} is {getattr(self, field)}; it should be 0 or more")


@dataclasses.dataclass(frozen=True)
class Deployment:
    """A number of equal engines.

    device: the time of a batch. estimator: the time that policies expect.
    total_blocks: KV blocks of an engine, each of block_tokens tokens.
    watermark: share of the blocks that an admission beside running requests leaves free.
    host: host memory for KV; None: the KV of evicted requests is lost.
    role: "both" (prefill and decode), or in a `Cluster` "prefill" or "decode".
    scheduler: of these engines; None: the scenario's.
    tier: tier of these engines at first, from 0; None: the common pool. Only routers and scalers use it.
    operators: of a layer, at whose ends a batch can be suspended; None: batches cannot be suspended.
    prefix_store: host memory for the KV of prefixes; None: there is none. With prefix caching it keeps the blocks that
        KV memory overwrites.
    prefix_caching: whether requests with the same prefix share KV blocks; None: if the workload has prefixes, there is
        no prefix store, and some layers keep tokens. Decode engines never do.
    kv_events: with prefix caching, engines publish which blocks they have at the end of each iteration.
    startup: engines of the common pool are off, and take time to start; None: they are up.
    role_change_s: time of a role change between prefill and decode, after an engine's last request; None: roles are
        fixed.
    costs: of each engine; None: not known.
    speculation: speculative decoding; None: none.
    async_scheduling: they form the next batch while one runs, as vLLM does by default (docs/feature_rules.md).
    lockstep: size of groups of data parallel ranks with expert parallelism; a group starts and ends each iteration
        together. 1: each engine runs by itself.
    max_num_batched_tokens, max_num_seqs: vLLM's settings: most tokens in a batch, and most running requests, which a
        scheduler cannot exceed. None: no limit.
    kv_groups: KV cache groups, as in vLLM; (): all layers keep all tokens. With groups, `block_tokens` is the mean
        number of tokens in a block, which policies count with.
    adapters: LoRA adapters, which requests may name; None: these engines serve only the model itself.
    """

    device: LatencyModel
    estimator: EstimatorModel
    total_blocks: int
    engines: int = 1
    block_tokens: int = 16
    watermark: float = 0.01
    name: str = "deployment"
    host: HostMemory | None = None
    role: str = "both"
    scheduler: Policy | None = None
    tier: int | None = None
    operators: Operators | None = None
    prefix_store: PrefixStore | None = None
    prefix_caching: bool | None = None
    startup: Startup | None = None
    costs: Costs | None = None
    speculation: Speculation | None = None
    kv_events: bool = False
    async_scheduling: bool = False
    lockstep: int = 1
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    kv_groups: tuple[KvCacheGroup, ...] = ()
    role_change_s: float | None = None
    adapters: Adapters | None = None

    def __post_init__(self) -> None:
        own = dict.fromkeys((field for field in OWN_LIMITS if getattr(self, field) is not None), 2**31 - 1)
        whole = {"engines": MAX_ENGINES, "total_blocks": 2**31 - 1, "block_tokens": 2**20, **own}
        for field, most in whole.items():
            value = getattr(self, field)
            if not 1 <= value <= most or value != int(value):
                raise DeploymentError(f"{self.name}: {field} is {value}; it should be a whole number from 1 to {most}")
        if self.role not in ROLES:
            raise DeploymentError(f"{self.name}: role is {self.role!r}; it should be one of {', '.join(ROLES)}")
        host, store = self.host, self.prefix_store
        if host is not None and store is not None and host.load_s_per_token != store.load_s_per_token:
            raise DeploymentError(
                f"{self.name}: host memory loads at {host.load_s_per_token:g} s a token and the prefix store at "
                f"{store.load_s_per_token:g}; both are host memory, so the times should be equal"
            )
        check_coefficients(self.device, self.estimator, self.name)
        if self.async_scheduling:
            self._check_beside("async_scheduling")
        if self.kv_groups:
            kinds_of(self.kv_groups, self.name)
            self._check_beside(KV_GROUPS)
            if self.prefix_caching:
                check_caching(self.kv_groups, self.name)
        if self.role_change_s is not None:
            self._check_role_change(self.role_change_s)
        if self.startup is not None and self.startup.started > self.engines:
            raise DeploymentError(
                f"{self.name}: {self.startup.started} engines are started at first; there are {self.engines}"
            )
        if self.lockstep < 1 or self.engines % self.lockstep != 0:
            raise DeploymentError(
                f"{self.name}: lockstep is {self.lockstep}; it should divide the number of engines, {self.engines}"
            )
        if not 0 <= self.watermark < 1:
            raise DeploymentError(f"{self.name}: watermark is {self.watermark}; it should be 0 or more and below 1")

    def _check_beside(self, field: str) -> None:
        """Raise DeploymentError for a feature that is not simulated with asynchronous scheduling or KV cache groups."""
        beside = [
            (self.role != "both", f"the role {self.role!r}"),
            (self.host is not None, "host memory"),
            (self.prefix_store is not None, "a prefix store"),
            (self.speculation is not None, "speculation"),
        ]
        instead = "leave out one"
        if field == KV_GROUPS:
            instead = ALIKE
        for there, what in beside:
            if there:
                raise DeploymentError(f"{self.name}: {field} is not simulated with {what}; {instead}")

    def _check_role_change(self, seconds: float) -> None:
        """Raise DeploymentError for an invalid time, or a feature that is not simulated with role changes."""
        if not 0 <= seconds < np.inf:
            raise DeploymentError(f"{self.name}: role_change_s is {seconds}; it should be 0 or more, and finite")
        if self.role == "both":
            raise DeploymentError(f"{self.name}: role_change_s of engines that do both; it should be left out")
        beside = [
            (bool(self.prefix_caching), "prefix caching"),
            (self.prefix_store is not None, "a prefix store"),
            (self.lockstep > 1, "lockstep"),
        ]
        for there, what in beside:
            if there:
                raise DeploymentError(f"{self.name}: role_change_s is not simulated with {what}; leave out one")

    @property
    def pools(self) -> tuple[Deployment, ...]:
        """These engines as the only pool of a cluster."""
        return (self,)

    def caches_prefixes(self, workload: Workload) -> bool:
        """Return whether requests of this workload share KV blocks on these engines."""
        if self.role == "decode":
            return False
        if self.prefix_caching is None:
            return workload.prefixes is not None and self.prefix_store is None and not self.keeps_states_alone
        return self.prefix_caching

    @property
    def keeps_states_alone(self) -> bool:
        """Whether all layers keep states; vLLM then caches prefixes only if it is asked to."""
        return bool(self.kv_groups) and all(group.state for group in self.kv_groups)

    def stored_blocks(self, workload: Workload) -> int:
        """Return the size of each engine's block store, in blocks: its prefix store with prefix caching; 0: none."""
        if self.prefix_store is None or workload.prefixes is None or not self.caches_prefixes(workload):
            return 0
        return max(1, int(self.prefix_store.tokens) // self.block_tokens)

    def prefix_capacity_tokens(self, workload: Workload) -> int:
        """Return how many tokens of prefixes an engine can keep: in its prefix store, and in cached KV blocks."""
        in_store = 0 if self.prefix_store is None or self.role == "decode" else int(self.prefix_store.tokens)
        return in_store + self.total_blocks * self.block_tokens * self.caches_prefixes(workload)

    @property
    def capacity_tokens(self) -> int:
        """Most tokens of all requests in KV memory at once; 2^31 - 1 if no layer keeps all tokens."""
        if not self.kv_groups:
            return self.total_blocks * self.block_tokens
        kinds = kinds_of(self.kv_groups, self.name)
        return int(self.total_blocks // kinds.full * kinds.full_block_tokens) if kinds.full else 2**31 - 1

    def request_tokens(self, caching: bool = False) -> int:
        """Return the most tokens of a request, computed at once, that an engine's KV memory holds.

        caching: with prefix caching.
        """
        if not self.kv_groups:
            return self.total_blocks * self.block_tokens
        return tokens_held(self.kv_groups, self.total_blocks, caching)

    def check_adapters(self, workload: Workload) -> None:
        """Raise DeploymentError for requests with LoRA adapters if the engines serve none."""
        adapter = workload.table["adapter"]
        if self.adapters is None and adapter.any():
            at = int(np.argmax(adapter > 0))
            raise DeploymentError(
                f"workload '{workload.name}', request {at}: it names LoRA adapter {adapter[at]}, and {self.name} has "
                "none; give its engines max_loras, lora_load_s and lora_activate_s (--max-loras, --lora-load, "
                "--lora-activate)"
            )

    def check_fits(self, workload: Workload, again: bool = False) -> None:
        """Raise DeploymentError if a request does not fit an engine's KV memory.

        again: requests can be taken back from engines, and are then prefilled again with their output tokens.
        """
        table, caching = workload.table, self.caches_prefixes(workload)
        self.check_adapters(workload)
        if self.kv_groups and caching:
            check_caching(self.kv_groups, self.name)
        if self.role_change_s is not None and self.caches_prefixes(workload):
            raise DeploymentError(
                f"{self.name}: role_change_s is not simulated with prefix caching, which is on where the workload has "
                "prefixes; turn it off (prefix_caching: off)"
            )
        # The KV of the last token is never computed. A prefill engine emits only one token of a request sent to it.
        only_prefills = self.role == "prefill" and self.role_change_s is None
        later = 0 if only_prefills and not again else table["output_tokens"] - 1
        need = table["prompt_tokens"].astype("i8") + later
        capacity = self.request_tokens(caching)
        if (need > capacity).any():
            at = int(np.argmax(need))
            raise DeploymentError(
                f"workload '{workload.name}', request {at}: {table['prompt_tokens'][at]} prompt + "
                f"{table['output_tokens'][at]} output tokens do not fit the KV cache of {self.name}, which holds "
                f"{capacity} tokens; leave out longer requests (--max-total-tokens {capacity}) or give it more blocks"
            )
