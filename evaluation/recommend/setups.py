"""Setups, of a scheduler, a router and an engine's limits; and which setups are tried."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from servegym.baselines.registry import scheduler as find_scheduler
from servegym.latency_models.profile import Profile
from servegym.scenarios.spec import ServingSpec

VLLM, IN_TURN = "vllm-v1", "round-robin"
BATCH_TOKENS, SEQUENCES = (512, 1024, 2048, 4096, 8192, 16384), (64, 128, 256, 512, 1024)
THRESHOLDS, THEIR_SEQUENCES = (256, 1024), (256, 1024)  # long_prefill_token_threshold, and the limits it is tried with
PLUG_INS = ("expected-gain", "slide-batching", "edf", "fairbatching", "sarathi-fcfs")
ROUTERS = ("min-load", "min-tokens", "predicted-cost", "lost-gain", "gorouting")
BY_PREFIX, BY_SESSION = ("prefix-affinity", "kv-aware"), ("session-hash",)
PREFILL_SHARES = (0.25, 0.5, 0.75)


@dataclasses.dataclass(frozen=True)
class Setup:
    """A way to set engines and what is before them.

    scheduler: vllm-v1 without limits, or a plug-in as policies are named. max_num_batched_tokens, max_num_seqs: of an
    engine. prefix_caching: None: as the base has it. prefill_share: of the engines that only prefill, the others
    decode; None: every engine does both. long_prefill_token_threshold: most tokens of one request in a batch of
    vllm-v1; 0: no limit.
    """

    scheduler: str = VLLM
    router: str = IN_TURN
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    prefix_caching: str | None = None
    prefill_share: float | None = None
    long_prefill_token_threshold: int = 0

    @property
    def needs_plug_in(self) -> bool:
        """Whether the engine's own scheduler does not do."""
        return self.scheduler.partition(":")[0] != VLLM

    @property
    def takes_threshold(self) -> bool:
        """Whether the scheduler has a threshold of long prefills that is not set yet."""
        return not self.needs_plug_in and "long_prefill_token_threshold" not in self.scheduler

    @property
    def policy(self) -> str:
        """The scheduler with its limits, as policies are named."""
        if self.needs_plug_in:
            return self.scheduler
        limits = f"max_num_batched_tokens={self.max_num_batched_tokens},max_num_seqs={self.max_num_seqs}"
        if self.long_prefill_token_threshold:
            limits += f",long_prefill_token_threshold={self.long_prefill_token_threshold}"
        return f"{self.scheduler}{',' if ':' in self.scheduler else ':'}{limits}"

    def label(self, engines: int = 2) -> str:
        """The setup in a line. engines: of one a router says nothing."""
        parts = [self.scheduler, *([self.router] if engines > 1 else [])]
        parts.append(f"{self.max_num_batched_tokens} tokens, {self.max_num_seqs} seqs")
        if self.long_prefill_token_threshold:
            parts.append(f"{self.long_prefill_token_threshold} tokens of a prompt")
        if self.prefix_caching is not None:
            parts.append(f"prefix caching {self.prefix_caching}")
        if self.prefill_share is not None and engines > 1:
            prefill, decode = self.pools(engines)
            parts.append(f"{prefill} prefill + {decode} decode")
        return " + ".join(parts)

    def pools(self, engines: int) -> tuple[int, int]:
        """Engines that prefill and that decode, at least one of each."""
        assert self.prefill_share is not None
        prefill = min(engines - 1, max(1, round(self.prefill_share * engines)))
        return prefill, engines - prefill

    def spec(self, base: ServingSpec, device: Profile, engines: int) -> ServingSpec:
        """The base spec with this setup and a number of engines of a device; its pools stay as they are."""
        fleet = dataclasses.replace(
            base.fleet, max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs, prefix_caching=self.prefix_caching or base.fleet.prefix_caching,
        )  # fmt: skip
        decodes = self.policy if base.fleet.is_disaggregated else None
        if self.prefill_share is not None and engines > 1:
            prefill, decode = self.pools(engines)
            fleet, decodes = dataclasses.replace(fleet, device=device, prefill=prefill, decode=decode), self.policy
        elif not base.fleet.pools:
            fleet = dataclasses.replace(fleet, device=device, engines=engines)
        policies = dataclasses.replace(
            base.policies, scheduler=self.policy, router=self.router, decode_scheduler=decodes
        )
        return dataclasses.replace(base, fleet=fleet, policies=policies)


def setups(
    default: Setup,
    *,
    schedulers: Sequence[str] = (),
    routers: Sequence[str] = (),
    has_prefixes: bool = False,
    has_sessions: bool = False,
    disaggregated: bool = False,
    engines: int | None = None,
) -> list[Setup]:
    """The setups that are tried, the default first.

    schedulers, routers: instead of those that are tried by default. has_prefixes, has_sessions: of the recording:
    routers that look at neither are tried anyway. disaggregated: also engines that only prefill or only decode.
    engines: where it is given, and 1, routers do not matter. Raises PolicyError for an unknown scheduler.
    """
    for name in schedulers:
        find_scheduler(name)
    before = [default.router, *(routers or (*ROUTERS, *BY_PREFIX * has_prefixes, *BY_SESSION * has_sessions))]
    before = [default.router] if engines == 1 else list(dict.fromkeys(before))
    # vLLM refuses a batch that cannot have a token of each sequence.
    limits = [pair for pair in itertools.product(BATCH_TOKENS, SEQUENCES) if pair[0] >= pair[1]]
    kinds = [Setup(VLLM, "", *pair) for pair in limits]
    kinds += [Setup(name, "", *pair) for name in PLUG_INS for pair in itertools.product((2048, 8192), (256, 1024))]
    if schedulers:
        kinds = [Setup(name, "", *pair) for name in schedulers for pair in limits]
    kinds += [
        dataclasses.replace(one, long_prefill_token_threshold=tokens) for one in kinds for tokens in THRESHOLDS
        if one.takes_threshold and one.max_num_seqs in THEIR_SEQUENCES and one.max_num_batched_tokens > tokens
    ]  # fmt: skip
    shares = (None, *(PREFILL_SHARES if disaggregated and engines != 1 else ()))
    found = [
        dataclasses.replace(kind, router=router, prefill_share=share)
        for share in shares for router in before for kind in kinds
    ]  # fmt: skip
    if has_prefixes:
        found += [dataclasses.replace(default, router=router, prefix_caching="off") for router in before]
    return list(dict.fromkeys([default, *found]))
