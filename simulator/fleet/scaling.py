"""Calling the scaler, which decides the tier and role of each engine and whether it is closed to new requests."""

from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.compilation.parked import loaded
from servegym.simulator.fleet.held_queues import unrouted_queue
from servegym.simulator.fleet.incidents import close, move
from servegym.simulator.fleet.roles import give_role, may_have
from servegym.simulator.fleet.routing import catch_up
from servegym.simulator.records.signatures import ScalerContext, scaler
from servegym.simulator.records.types import POOL


@scaler
def stay(context, moves):
    """Change nothing: the default scaler."""


@kernel
def scaler_context_of(run, router_state, now_s):
    """Return the scaler's context."""
    return ScalerContext(
        now_s, run.requests, loaded(router_state.known), router_state.scaler_state, router_state.scaler_parameters,
        loaded(router_state.estimates), run.scratch,
    )  # fmt: skip


@kernel
def ask_scaler(run, router_state, now_s):
    """Let the scaler write router_state.moves."""
    for e in range(run.engines.shape[0]):
        router_state.moves[e].tier, router_state.moves[e].closed = run.engines[e].tier, run.engines[e].closed
        router_state.moves[e].role = run.engines[e].next_role
    catch_up(run, router_state, now_s)
    router_state.scaler(scaler_context_of(run, router_state, now_s), router_state.moves)


@kernel
def are_legal(run, router_state):
    """Return whether each tier that the scaler names exists, and each engine may have its role."""
    tiers = unrouted_queue(router_state.known.tiers) - 1
    legal = True
    for e in range(router_state.moves.shape[0]):
        move_of = router_state.moves[e]
        legal = legal and -1 <= move_of.tier < tiers and may_have(run.engines[e], move_of.role)
    return legal


@kernel
def make_moves(run, router_state, now_s):
    """Apply the scaler's moves, by engine index."""
    status = run.status[0]
    for e in range(run.engines.shape[0]):
        status.scaler.starts += run.engines[e].tier == POOL and router_state.moves[e].tier != POOL
        move(run, router_state, e, router_state.moves[e].tier, now_s)
        close(run, router_state, e, int(router_state.moves[e].closed != 0))
        give_role(run, router_state, e, router_state.moves[e].role)
    status.router.held_dirty, status.router.held_cursor = 1, 0
    status.scaler.next_check_s += status.scaler.interval_s
