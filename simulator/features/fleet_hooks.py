"""Hooks of fleet/: requests that join engines, signals to the router, losses. See loop_hooks.py."""

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
    """Called before request r, which has no computed tokens, joins the queue of engine e."""
    engine = run.engines[e]
    if HAS_CACHE and engine.store_sets > 0:
        borrow(run.requests[r], run.outcomes[r], engine, router_state.known.prefixes, router_state.stores[e], r)


@hook
def decides_at_once(engine):
    """Return whether a request that joins the queue may change what the engine does at this instant."""
    return engine.batch_length == 0 or (HAS_TASKS and engine.running_task >= 0)


@hook
def after_refusal(run, router_state, r):
    """Called after the router refused request r: its client hears at once."""
    status = run.status[0]
    if HAS_CLIENTS and router_state.following.shape[0] > 0:
        refuse_followers(run, router_state.following, r)
    deliver_last(run, router_state, r, status.now_s)
    if HAS_CLIENTS and status.front.depends == 1 and all_ended(run):
        deliver_all(run, router_state)


@hook
def after_signals(run, router_state, now_s):
    """Called after the router has handled the signals up to now_s."""
    if HAS_CACHE:
        apply_due_events(run, router_state, now_s)


@hook
def after_sending(known, e, request):
    """Called after the router's record counts a request that is sent to engine e."""
    if HAS_ADAPTERS and request.adapter > 0:
        note_adapter(known.adapters[e], known.snapshots[e].max_cpu_loras, request.adapter)


@hook
def after_loss(run, router_state, e):
    """Called after engine e has lost all its KV."""
    if HAS_ADAPTERS and run.engines[e].adapters.max_loras > 0:
        forget_adapters(run, router_state.known, e)


@hook
def after_abort(run, engine):
    """Called after the batch of an engine that fails, or is taken out of service, was aborted."""
    if HAS_LOCKSTEP and engine.lockstep.ranks > 1:
        make_group_due(run, engine)
