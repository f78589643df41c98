"""The hook points of what comes to an engine, and of what a router hears (fleet/). See loop_hooks.py."""

from servegym.simulator.compilation.kernels import hook
from servegym.simulator.features import HAS_ADAPTERS, HAS_CACHE, HAS_CLIENTS, HAS_LOCKSTEP, HAS_TASKS
from servegym.simulator.features.adapters import forget_adapters, note_adapter
from servegym.simulator.features.front_end import deliver_all, deliver_last
from servegym.simulator.features.lockstep import make_group_due
from servegym.simulator.features.refused_sessions import refuse_followers
from servegym.simulator.memory.kv_events import apply_due_events
from servegym.simulator.memory.prefixes import borrow
from servegym.simulator.records.requests import all_ended


@hook
def before_joining(run, router_state, e, r):
    """Request r, of which nothing is computed, is about to join the queue of engine e."""
    engine = run.engines[e]
    if HAS_CACHE and engine.store_sets > 0:
        borrow(run.requests[r], run.outcomes[r], engine, router_state.known.prefixes, router_state.stores[e], r)


@hook
def decides_at_once(engine):
    """Whether a request that has joined the queue may change what the engine does at this instant."""
    return engine.batch_length == 0 or (HAS_TASKS and engine.running_task >= 0)


@hook
def after_refusal(run, router_state, r):
    """Request r has been refused, and its client is told now."""
    status = run.status[0]
    if HAS_CLIENTS and router_state.following.shape[0] > 0:
        refuse_followers(run, router_state.following, r)
    deliver_last(run, router_state, r, status.now_s)
    if HAS_CLIENTS and status.front.depends == 1 and all_ended(run):
        deliver_all(run, router_state)


@hook
def after_signals(run, router_state, now_s):
    """The router has taken in the signals that have come by now_s."""
    if HAS_CACHE:
        apply_due_events(run, router_state, now_s)


@hook
def after_sending(known, e, request):
    """The router has noted that it sends a request to engine e."""
    if HAS_ADAPTERS and request.adapter > 0:
        note_adapter(known.adapters[e], known.snapshots[e].max_cpu_loras, request.adapter)


@hook
def after_loss(run, router_state, e):
    """Engine e has lost all that it had."""
    if HAS_ADAPTERS and run.engines[e].adapters.max_loras > 0:
        forget_adapters(run, router_state.known, e)


@hook
def after_abort(run, engine):
    """The batch of an engine that fails, or is taken out of service, runs no more."""
    if HAS_LOCKSTEP and engine.lockstep.ranks > 1:
        make_group_due(run, engine)
