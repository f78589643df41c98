"""Schedulers made from a score, one function of a request. The request with the lowest score runs first.

    P = Parameters(Parameter("max_num_batched_tokens", 512, "tokens in a batch", 1, 2**20, integer=True))

    @score(P, limits={"max_num_batched_tokens": "max_num_batched_tokens"})
    def earliest_deadline(request, engine, now_s, estimates, p):
        return next_deadline_s(request)

    register(Policy("earliest-deadline", "scheduler", "Earliest deadline first.", "an example", earliest_deadline,
                    parameters=P))

A deadline, an arrival or the remaining work is a score as it is. Ties go to the earlier arrival. The request that would
run last is evicted first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from servegym.errors import PolicyError
from servegym.simulator.compilation.kernels import Compiled, kernel, specialised
from servegym.simulator.policies.declared import reads_argument
from servegym.simulator.policies.parameters import Parameters, current_name
from servegym.simulator.records.batches import EMPTY_BATCH
from servegym.simulator.records.requests import is_decoding
from servegym.simulator.records.signatures import scheduler
from servegym.simulator.records.types import LIMITS, LIMITS_OF_VLLM

FIRST, LAST = -(2**40), 2**40  # tiers before and after every priority
NEVER_0 = ("max_num_batched_tokens", "chunk_tokens", "sequence_budget", "max_num_seqs")  # as constants, these are >= 1
DECODES = {"first": FIRST, "last": LAST, "scored": 0}
ARGUMENTS = 5


class RequestEstimates(NamedTuple):
    """The estimated times of a request."""

    exec_s: Any  # time of its remaining tokens before its next output token, without the constant part of a batch
    constant_s: Any  # the constant part of a batch


@kernel
def score_of(request, engine, now_s, estimates, p):
    """Stand for the score."""
    return 0.0


@kernel
def set_limits(limits, p):
    """Stand for the kernel that sets the limits."""


P = Parameters()  # stands for the parameters
ESTIMATED, BY_PRIORITY, DECODES_TIER = 0, 0, 0  # stand for the options of `score`


@scheduler
def scored_scheduler(context, ranks, limits):
    """Rank by a score."""
    p, engine, now_s = P.read(context), context.engine, context.now_s
    requests, queue, estimator = context.requests, context.queue, context.estimator
    set_limits(limits, p)
    constant_s = 0.0
    if ESTIMATED:
        constant_s = estimator.batch_s(EMPTY_BATCH[0], estimator.coefficients)
        estimator.exec_s(requests, queue, estimator.coefficients, ranks)
    for position in range(queue.shape[0]):
        request, rank = requests[queue[position]], ranks[position]
        if DECODES_TIER != 0 and is_decoding(request):
            rank.tier = DECODES_TIER
            rank.key = request.arrival_s
        else:
            rank.tier = request.priority if BY_PRIORITY else 0
            exec_s = rank.exec_s if ESTIMATED else 0.0
            rank.key = score_of(request, engine, now_s, RequestEstimates(exec_s, constant_s), p)


def score(
    parameters: Parameters | None = None,
    limits: Mapping[str, str | float] | Callable | None = None,
    decodes: str = "scored",
    by_priority: bool = False,
) -> Callable[[Callable], Compiled]:
    """Decorate a function (request, engine, now_s, estimates, p) -> float as a scheduler that ranks by it.

    request: a REQUEST record; engine: ENGINE; now_s: the time, s; estimates: `RequestEstimates`, computed only if the
    function uses them; p: the `parameters` by name, as in `p.max_num_batched_tokens`.
    limits: fields of LIMITS by name, also vLLM's (`LIMITS_OF_VLLM`), each with a number or the name of a parameter; or
    a kernel (limits, p) that sets them.
    decodes: "scored", or all "first" or "last" in order of arrival. by_priority: requests of a higher priority go
    before all others, whatever their scores. The lowest score runs first.
    Raises PolicyError for an unknown limit, or an invalid value of one.
    """
    declared = Parameters() if parameters is None else parameters
    if decodes not in DECODES:
        raise PolicyError(f"a score's decodes are {decodes!r}; they should be one of {', '.join(DECODES)}")
    setting = limits if callable(limits) else limits_kernel(limits or {}, declared)

    def scheduler_of(function: Callable) -> Compiled:
        arguments = function.__code__.co_argcount
        if arguments != ARGUMENTS:
            raise PolicyError(
                f"{function.__name__} takes {arguments} arguments; a score should take request, engine, now_s, "
                "estimates and p"
            )
        made = specialised(
            scored_scheduler, score_of=kernel(function), set_limits=setting, P=declared,
            ESTIMATED=int(reads_argument(function, 3)), BY_PRIORITY=int(by_priority), DECODES_TIER=DECODES[decodes],
        )  # fmt: skip
        return Compiled(made.py_func, made.declared, written=function)

    return scheduler_of


def limits_kernel(limits: Mapping[str, str | float], parameters: Parameters) -> Any:
    """Return a kernel (limits, p) that sets limits to numbers, or to parameters by name."""
    kinds = {name: LIMITS[name].kind for name in LIMITS.names or ()}
    named = {parameter.name: parameter for parameter in parameters}
    lines = []
    for given, value in limits.items():
        name = current_name(LIMITS_OF_VLLM.get(given, given), kinds)
        if name not in kinds:
            raise PolicyError(f"there is no limit {name}; there are {', '.join(kinds)}")
        if given != name and name in limits:
            raise PolicyError(f"limits {given} and {name} are the same; leave one of them out")
        if name in NEVER_0 and not isinstance(value, str) and value < 1:
            raise PolicyError(f"limit {name} is {value} in every batch; it should be 1 or more")
        if isinstance(value, str):
            if value not in named:
                raise PolicyError(f"limit {name} is {value}, which is no parameter; there are {', '.join(named)}")
            whole, written = named[value].is_whole, f"p.{named[value].attribute}"
        else:
            whole, written = float(value).is_integer(), repr(value) if np.isfinite(value) else f"float('{value}')"
        if kinds[name] == "i" and not whole:
            raise PolicyError(f"limit {name} is {value}; it should be a whole number")
        lines.append(f"    limits.{name} = {written}")
    body = "\n".join(lines or ["    pass"])
    called = f"set_limits_{hashlib.sha256(body.encode()).hexdigest()[:8]}"
    text = f"def {called}(limits, p):\n{body}\n"
    names: dict[str, Any] = {"__name__": __name__}
    exec(text, names)
    names[called].kernel_text = text
    return kernel(names[called])
