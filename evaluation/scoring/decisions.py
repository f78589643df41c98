"""Record what a policy decides call by call, and replay the decisions in a process without the policy's code.

A policy acts on a run by its ranks, limits and routes alone. `written_down` is a policy that decides as another does
and writes all of it into a log; `taken_again` is a policy that reads it back. The second needs only the log of the
first: so a run can be repeated, and judged, in a process that has never loaded the first.

A log is memory: three numbers (its end, where the next entry goes or is, and whether it was full), and the entries. An
entry has what was decided about (the length of the queue, or the number of the request), when, and the bytes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

from servegym.simulator.compilation.kernels import Compiled, kernel, specialised
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.policy import Policy, StateFields, last_ranked_first
from servegym.simulator.records import types as layout
from servegym.simulator.records.signatures import router, scheduler, victims
from servegym.simulator.runs.simulation import Simulation

END, NEXT, WAS_FULL, ENTRIES = 0, 8, 16, 24  # in bytes from the start of a log
HEAD = 24  # bytes of an entry before what was decided
RANK_BYTES, LIMITS_BYTES, ROUTE_BYTES = (kind.itemsize for kind in (layout.RANK, layout.LIMITS, layout.ROUTE))
intrinsic: Any = extending.intrinsic
AT = 0  # index of the log's address in a policy's parameters
RANKED, GAVE_UP, ROUTED = range(3)


@intrinsic
def address_of(typing_context, value):
    """Where a record is, or the first of an array."""

    def generate(context, builder, signature, arguments):
        (kind,) = signature.args
        pointer = arguments[0]
        if isinstance(kind, types.Array):
            pointer = context.make_array(kind)(context, builder, pointer).data
        return builder.ptrtoint(pointer, ir.IntType(64))

    return types.int64(value), generate


@intrinsic
def copy_bytes(typing_context, to, source, count):
    def generate(context, builder, signature, arguments):
        there, here = (builder.inttoptr(address, cgutils.voidptr_t) for address in arguments[:2])
        cgutils.raw_memcpy(builder, there, here, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def put(typing_context, address, value):
    """Write an int64 or a float64."""

    def generate(context, builder, signature, arguments):
        builder.store(arguments[1], builder.inttoptr(arguments[0], arguments[1].type.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, value), generate


@intrinsic
def number_at(typing_context, address):
    def generate(context, builder, signature, arguments):
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()))

    return types.int64(types.int64), generate


@intrinsic
def time_at(typing_context, address):
    def generate(context, builder, signature, arguments):
        return builder.load(builder.inttoptr(arguments[0], ir.DoubleType().as_pointer()))

    return types.float64(types.int64), generate


@kernel
def append(log, kind, about, now_s, count):
    """The address for `count` bytes of a new entry; 0: the log is full, and says so."""
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
    """The address of the `count` bytes of the next entry. Raises ValueError for one of another decision, or none."""
    entry = number_at(log + NEXT)
    if entry + HEAD + count > number_at(log + END):
        raise ValueError("no decision is left")
    if number_at(entry) != kind or number_at(entry + 8) != about or time_at(entry + 16) != now_s:
        raise ValueError("another decision was written down")
    put(log + NEXT, entry + HEAD + count)
    return entry + HEAD


@kernel
def base(context, ranks, limits):
    """The function of the policy that is written down."""


@kernel
def note_ranks(log, kind, context, ranks, limits):
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
    """A log in memory. memory: a writable buffer, which other processes may see too."""

    def __init__(self, memory: Any):
        self.bytes = np.frombuffer(memory, "u1")
        self.address = int(self.bytes.ctypes.data)
        self.head = self.bytes[:ENTRIES].view("i8")

    def begin(self) -> None:
        """Back to the first entry."""
        self.head[:] = self.address + len(self.bytes), self.address + ENTRIES, 0

    @property
    def used(self) -> int:
        """Bytes from the start of the log to behind the last entry."""
        return int(self.head[1]) - self.address

    @property
    def was_full(self) -> bool:
        return bool(self.head[2])

    def copy(self, used: int) -> Log:
        """A copy of at most `used` bytes of the log, to be read from the first entry."""
        copy = Log(self.bytes[: min(max(used, ENTRIES), len(self.bytes))].copy().data)
        copy.begin()
        return copy


@dataclasses.dataclass(frozen=True)
class Traits:
    """How a run depends on a policy, apart from its decisions. victims: the policy chooses the victims itself."""

    kind: str
    tasks: bool
    victims: bool
    moves_engines: bool


def traits_of(policy: Policy) -> Traits:
    own_victims = policy.kind == "scheduler" and policy.victims is not last_ranked_first
    return Traits(policy.kind, policy.state.tasks, own_victims, policy.moves_engines)


def place_of_log(policy: Policy) -> int:
    """Index of the log's address in the parameters of a recorded policy: after the policy's own."""
    return len(policy.parameters) + len(policy.weights) + policy.memory


def written_down(policy: Policy) -> Policy:
    """The policy, recording its decisions in the log whose address is its parameter at `place_of_log`."""
    place = place_of_log(policy)

    def noted(template: Compiled, function: Compiled) -> Compiled:
        found = specialised(template, base=function, AT=place)
        found.written = function.written  # errors name what was written by hand
        return found

    return dataclasses.replace(
        policy,
        function=noted(ranks_noted if policy.kind == "scheduler" else route_noted, policy.function),
        victims=noted(victims_noted, policy.victims) if traits_of(policy).victims else policy.victims,
        memory=policy.memory + 1,
        rank_then_filter=None,
    )


def taken_again(traits: Traits) -> Policy:
    """A policy that takes the decisions in the log whose address is its only parameter."""
    return Policy(
        "written-down", traits.kind, "Decisions that were written down.", "",
        ranks_read if traits.kind == "scheduler" else route_read,
        victims_read if traits.victims else last_ranked_first,
        state=StateFields(tasks=traits.tasks), moves_engines=traits.moves_engines, memory=1,
    )  # fmt: skip


def simulated(scenario: Scenario, kind: str, place: int, log: Log) -> Simulation:
    """The scenario, made ready, whose policy of that kind has its log at that place of its parameters."""
    simulation = Simulation(scenario)
    if kind == "router":
        simulation.router_state.parameters[place] = float(log.address)
        return simulation
    first = 0
    for pool in scenario.deployment.pools:
        if pool.scheduler is None:
            simulation.arrays.parameters[first : first + pool.engines, place] = float(log.address)
        first += pool.engines
    return simulation
