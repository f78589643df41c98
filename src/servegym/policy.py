"""What a policy is written with, in one import: `from servegym.policy import Policy, register, score`.

Declarations (`Policy`, `Parameter`, ...), decorators of its functions (`score`, `scheduler`, `router`, ...), and small
kernels that read a request, an engine or a batch. Guide: docs/extending.md; the fields of records:
simulator/records/types.py.
"""

from servegym.simulator.batching.ordering import bring_forward, first_ranked, ranks_before, sort
from servegym.simulator.compilation.kernels import Compiled, allocating_kernel, inlined_kernel, kernel, specialised
from servegym.simulator.features.adapters import adapter_s
from servegym.simulator.features.speculation import tokens_of_decode
from servegym.simulator.fleet.held_queues import tier_of
from servegym.simulator.fleet.routing import in_turn, may_decode, nth_taker, takers, takes, would_take
from servegym.simulator.fleet.scaling import stay
from servegym.simulator.memory.kv_memory import blocks_for
from servegym.simulator.memory.prefixes import ENGINES_AHEAD, ask_for_known, known_tokens, may_have
from servegym.simulator.policies.policy import (
    ByWord,
    Fact,
    Parameter,
    Parameters,
    Policy,
    StateFields,
    Weights,
    get_policy,
    register,
)  # fmt: skip
from servegym.simulator.policies.scores import limits_kernel, score
from servegym.simulator.policies.scratch import Scratch
from servegym.simulator.records import batches
from servegym.simulator.records.batches import EMPTY_BATCH
from servegym.simulator.records.random import uniform
from servegym.simulator.records.requests import cached_of, is_decoding, left_of, next_deadline_s
from servegym.simulator.records.signatures import router, scaler, scheduler, victims
from servegym.simulator.records.statistics import UNKNOWN_TOKENS, mean_length
from servegym.simulator.records.types import (
    EVICT_FOR_ALL,
    EVICT_FOR_RUNNING,
    HOLD,
    LEAVE_OUT,
    MISFIT_STOP,
    NO_LIMIT,
    PHASE_FIRST_DECIDES,
    POOL,
    REFUSE,
    ROLE_DECODE,
    ROLE_PREFILL,
    STAY,
    TIERS,
)  # fmt: skip

__all__ = [
    "EMPTY_BATCH",
    "ENGINES_AHEAD",
    "EVICT_FOR_ALL",
    "EVICT_FOR_RUNNING",
    "HOLD",
    "LEAVE_OUT",
    "MISFIT_STOP",
    "NO_LIMIT",
    "PHASE_FIRST_DECIDES",
    "POOL",
    "REFUSE",
    "ROLE_DECODE",
    "ROLE_PREFILL",
    "STAY",
    "TIERS",
    "UNKNOWN_TOKENS",
    "ByWord",
    "Compiled",
    "Fact",
    "Parameter",
    "Parameters",
    "Policy",
    "Scratch",
    "StateFields",
    "Weights",
    "adapter_s",
    "allocating_kernel",
    "ask_for_known",
    "batches",
    "blocks_for",
    "bring_forward",
    "cached_of",
    "first_ranked",
    "get_policy",
    "in_turn",
    "inlined_kernel",
    "is_decoding",
    "kernel",
    "known_tokens",
    "left_of",
    "limits_kernel",
    "may_decode",
    "may_have",
    "mean_length",
    "next_deadline_s",
    "nth_taker",
    "ranks_before",
    "register",
    "router",
    "scaler",
    "scheduler",
    "score",
    "sort",
    "specialised",
    "stay",
    "takers",
    "takes",
    "tier_of",
    "tokens_of_decode",
    "uniform",
    "victims",
    "would_take",
]  # fmt: skip
