"""Record the decisions of a policy call by call, and replay them in a process without the policy's code.

A policy acts on a run only by its ranks, limits and routes. `recorded` is a policy that decides as another does and
writes its decisions into a log; `replayed` reads them back. So a run can be repeated, and judged, in a process that has
never loaded the policy.

A log is memory: three numbers (addresses of its end and of the next entry, and whether it was full), then the entries.
An entry has the kind of decision, its subject (length of the queue, or index of the request), the time, and the bytes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from servegym.simulator.compilation.intrinsics import intrinsic
from servegym.simulator.compilation.kernels import Compiled, kernel, specialised
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.policy import Policy, StateFields, last_ranked_first
from servegym.simulator.records import types as layout
from servegym.simulator.records.signatures import router, scheduler, victims
from servegym.simulator.runs.simulation import Simulation

END, NEXT, WAS_FULL, ENTRIES = 0, 8, 16, 24  # bytes from the start of a log
HEAD = 24  # bytes of an entry before the decision
RANK_BYTES, LIMITS_BYTES, ROUTE_BYTES = (kind.itemsize for kind in (layout.RANK, layout.LIMITS, layout.ROUTE))
AT = 0  # placeholder: index of the log's address in a policy's parameters
RANKED, GAVE_UP, ROUTED = range(3)  # kinds of decisions: ranks, victims, routes


@intrinsic
def address_of(typing_context, value):
    """Return the address of a record, or of an array's first element."""
    from llvmlite import ir
    from numba import types

    def generate(context, builder, signature, arguments):
        (kind,) = signature.args
        pointer = arguments[0]
        if isinstance(kind, types.Array):
            pointer = context.make_array(kind)(context, builder, pointer).data
        return builder.ptrtoint(pointer, ir.IntType(64))

    return types.int64(value), generate


@intrinsic
def copy_bytes(typing_context, to, source, count):
    """Copy `count` bytes from one address to another."""
    from numba import types
    from numba.core import cgutils

    def generate(context, builder, signature, arguments):
        there, here = (builder.inttoptr(address, cgutils.voidptr_t) for address in arguments[:2])
        cgutils.raw_memcpy(builder, there, here, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def put(typing_context, address, value):
    """Write an int64 or a float64 to an address."""
    from numba import types

    def generate(context, builder, signature, arguments):
        builder.store(arguments[1], builder.inttoptr(arguments[0], arguments[1].type.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, value), generate


@intrinsic
def number_at(typing_context, address):
    """Return the int64 at an address."""
    from llvmlite import ir
    from numba import types

    def generate(context, builder, signature, arguments):
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()))

    return types.int64(types.int64), generate


@intrinsic
def time_at(typing_context, address):
    """Return the float64 at an address."""
    from llvmlite import ir
    from numba import types

    def generate(context, builder, signature, arguments):
        return builder.load(builder.inttoptr(arguments[0], ir.DoubleType().as_pointer()))

    return types.float64(types.int64), generate


@kernel
def append(log, kind, about, now_s, count):
    """Add the head of an entry, and return the address for its `count` bytes; 0: the log is full, which is noted."""
    entry = number_at(log + NEXT)
    if number_at(log + WAS_FULL) != 0 or entry + HEAD + count > number_at(log + END):
        put(log + WAS_FULL, np.int64(1))
        return np.int64(0)
    put(entry, np.int64(kind))
    put(entry + 8, np.int64(about))
    put(entry + 16, np.float64(now_s))
    put(log + NEXT, entry + HEAD + count)
    return entry + HEAD


@kernel
def following(log, kind, about, now_s, count):
    """Return the address of the `count` bytes of the next entry. Raises ValueError for another decision, or none."""
    entry = number_at(log + NEXT)
    if entry + HEAD + count > number_at(log + END):
        raise ValueError("no decision is left")
    if number_at(entry) != kind or number_at(entry + 8) != about or time_at(entry + 16) != now_s:
        raise ValueError("another decision was recorded")
    put(log + NEXT, entry + HEAD + count)
    return entry + HEAD


@kernel
def base(context, ranks, limits):
    """Placeholder for the function of the recorded policy."""


@kernel
def note_ranks(log, kind, context, ranks, limits):
    """Write ranks and limits into the log."""
    length = context.queue.shape[0]
    there = append(log, kind, length, context.now_s, length * RANK_BYTES + LIMITS_BYTES)
    if there != 0:
        copy_bytes(there, address_of(limits), LIMITS_BYTES)
        copy_bytes(there + LIMITS_BYTES, address_of(ranks), length * RANK_BYTES)


@scheduler
def ranks_noted(context, ranks, limits):
    base(context, ranks, limits)
    note_ranks(np.int64(context.parameters[AT]), RANKED, context, ranks, limits)


@victims
def victims_noted(context, ranks, limits):
    base(context, ranks, limits)
    note_ranks(np.int64(context.parameters[AT]), GAVE_UP, context, ranks, limits)


@router
def route_noted(context, r, route):
    base(context, r, route)
    there = append(np.int64(context.parameters[AT]), ROUTED, r, context.now_s, ROUTE_BYTES)
    if there != 0:
        copy_bytes(there, address_of(route), ROUTE_BYTES)


@kernel
def read_ranks(kind, context, ranks, limits):
    """Read ranks and limits from the log whose address is the policy's first parameter."""
    length = context.queue.shape[0]
    there = following(np.int64(context.parameters[0]), kind, length, context.now_s, length * RANK_BYTES + LIMITS_BYTES)
    copy_bytes(address_of(limits), there, LIMITS_BYTES)
    copy_bytes(address_of(ranks), there + LIMITS_BYTES, length * RANK_BYTES)


@scheduler
def ranks_read(context, ranks, limits):
    read_ranks(RANKED, context, ranks, limits)


@victims
def victims_read(context, ranks, limits):
    read_ranks(GAVE_UP, context, ranks, limits)


@router
def route_read(context, r, route):
    there = following(np.int64(context.parameters[0]), ROUTED, r, context.now_s, ROUTE_BYTES)
    copy_bytes(address_of(route), there, ROUTE_BYTES)


class Log:
    """A log in a writable buffer, which may be shared with other processes."""

    def __init__(self, memory: Any):
        self.bytes = np.frombuffer(memory, "u1")
        self.address = int(self.bytes.ctypes.data)
        self.head = self.bytes[:ENTRIES].view("i8")

    def begin(self) -> None:
        """Go back to the first entry."""
        self.head[:] = self.address + len(self.bytes), self.address + ENTRIES, 0

    @property
    def used(self) -> int:
        """Bytes from the start of the log to the end of the last entry."""
        return int(self.head[1]) - self.address

    @property
    def was_full(self) -> bool:
        return bool(self.head[2])

    def copy(self, used: int) -> Log:
        """Return a copy of the first `used` bytes of the log, to be read from the first entry."""
        copy = Log(self.bytes[: min(max(used, ENTRIES), len(self.bytes))].copy().data)
        copy.begin()
        return copy


@dataclasses.dataclass(frozen=True)
class Traits:
    """Properties of a policy on which a run depends, apart from its decisions. victims: it ranks victims itself."""

    kind: str
    tasks: bool
    victims: bool
    moves_engines: bool


def traits_of(policy: Policy) -> Traits:
    """Return the traits of a policy."""
    own_victims = policy.kind == "scheduler" and policy.victims is not last_ranked_first
    return Traits(policy.kind, policy.state.tasks, own_victims, policy.moves_engines)


def log_index(policy: Policy) -> int:
    """Return the index of the log's address in the parameters of a recorded policy: after the policy's own."""
    return len(policy.parameters) + len(policy.weights) + policy.memory


def recorded(policy: Policy) -> Policy:
    """Return the policy, which records its decisions in the log whose address is its parameter at `log_index`."""
    index = log_index(policy)

    def noted(template: Compiled, function: Compiled) -> Compiled:
        found = specialised(template, base=function, AT=index)
        found.written = function.written  # for errors, which name the policy's own function
        return found

    return dataclasses.replace(
        policy,
        function=noted(ranks_noted if policy.kind == "scheduler" else route_noted, policy.function),
        victims=noted(victims_noted, policy.victims) if traits_of(policy).victims else policy.victims,
        memory=policy.memory + 1,
        rank_then_filter=None,
    )


def replayed(traits: Traits) -> Policy:
    """Return a policy that takes its decisions from the log whose address is its only parameter."""
    return Policy(
        "replayed", traits.kind, "Decisions from a log.", "",
        ranks_read if traits.kind == "scheduler" else route_read,
        victims_read if traits.victims else last_ranked_first,
        state=StateFields(tasks=traits.tasks), moves_engines=traits.moves_engines, memory=1,
    )  # fmt: skip


def simulated(scenario: Scenario, kind: str, index: int, log: Log) -> Simulation:
    """Return a simulation of the scenario, whose policy of this kind has its log's address at `index`."""
    simulation = Simulation(scenario)
    if kind == "router":
        simulation.router_state.parameters[index] = float(log.address)
        return simulation
    first = 0
    for pool in scenario.deployment.pools:
        if pool.scheduler is None:
            simulation.arrays.parameters[first : first + pool.engines, index] = float(log.address)
        first += pool.engines
    return simulation
