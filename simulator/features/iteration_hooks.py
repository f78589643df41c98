"""Hooks of the start and the end of an iteration (batching/starts.py, ends.py). See loop_hooks.py."""

from servegym.simulator.batching.admission import names_at_end
from servegym.simulator.compilation.kernels import hook
from servegym.simulator.compilation.prefetching import prefetch_entry
from servegym.simulator.features import (
    HAS_ADAPTERS,
    HAS_AHEAD,
    HAS_CACHE,
    HAS_CLIENTS,
    HAS_CLUSTER,
    HAS_CORRECTION,
    HAS_DRAFTS,
    HAS_LOCKSTEP,
    HAS_TASKS,
)
from servegym.simulator.features.adapters import load_ahead_adapters, load_batch_adapters
from servegym.simulator.features.ahead import commit_token, hide_finishing, keep_formed, restore_queue, start_waiting
from servegym.simulator.features.disturbances import correct, correct_estimator, disturbed
from servegym.simulator.features.front import end_in_engine
from servegym.simulator.features.front_end import deliver_all, deliver_last, stream_started
from servegym.simulator.features.lockstep import group_runs
from servegym.simulator.features.speculation import accept
from servegym.simulator.features.suspended_batches import (
    check_preemption,
    checking_s,
    close_task,
    count_resumption,
    is_task_preemptible,
    open_task,
    resume,
    take_owed,
)
from servegym.simulator.fleet.routing import report_busy
from servegym.simulator.memory.kv_events import publish
from servegym.simulator.memory.prefix_caching import ask_for_filled, name_filled
from servegym.simulator.memory.prefixes import use_chunks
from servegym.simulator.records.named_blocks import ask_for_free
from servegym.simulator.records.requests import all_ended, is_decoding
from servegym.simulator.records.statuses import BAD_ESTIMATE, GOING_ON, NOT_STARTED

# ---- The start of an iteration (batching/starts.py)


@hook
def before_start(run, router_state, e):
    """Called before engine e, which has requests, decides. Returns GOING_ON if it may, else the result of its start."""
    engine = run.engines[e]
    if HAS_LOCKSTEP and engine.lockstep.ranks > 1 and engine.batch_length == 0 and group_runs(run, engine):
        return NOT_STARTED
    if HAS_AHEAD and engine.ahead.on == 1:
        return start_waiting(run, router_state, e)
    if engine.batch_length == 0 or (HAS_TASKS and is_task_preemptible(engine)):
        return GOING_ON
    return NOT_STARTED


@hook
def before_ranking(run, e):
    """Called before the policy of engine e is asked. Returns GOING_ON, or BAD_ESTIMATE."""
    if HAS_CORRECTION and run.correction[0].window_iterations > 0 and not correct_estimator(run, e):
        return BAD_ESTIMATE
    return GOING_ON


@hook
def while_running(run, router_state, decider, e):
    """Called when engine e may have a running batch. Returns GOING_ON to form a batch, else the result of its start."""
    if HAS_TASKS and run.engines[e].running_task >= 0:
        return check_preemption(run, router_state, decider, e)
    return GOING_ON


@hook
def before_packing(run, router_state, e):
    """Called before engine e forms a batch. Returns whether its queue has any request for it."""
    if HAS_AHEAD and run.engines[e].ahead.on:
        return hide_finishing(run, router_state, e)
    return True


@hook
def after_packing(run, router_state, e, queued):
    """Called after engine e has tried to form a batch. queued: its requests before."""
    if HAS_AHEAD and run.engines[e].ahead.on:
        restore_queue(run, router_state, e, queued)


@hook
def after_round(engine):
    """Called after a scheduling round of the engine was counted."""
    if HAS_TASKS and engine.suspended > 0:
        count_resumption(engine)


@hook
def instead_of_start(run, router_state, functions, decider, e, running):
    """Called after engine e has formed a batch. running: requests of its running batch; 0: none.

    Returns GOING_ON to start the batch now, else the result of its start.
    """
    if HAS_AHEAD and run.engines[e].ahead.on:
        if HAS_ADAPTERS and run.engines[e].adapters.max_loras > 0:
            load_ahead_adapters(run, e)
        return keep_formed(run, router_state, functions, decider, e, running)
    return GOING_ON


@hook
def before_times(run, e):
    """Called before the times of a batch of engine e are computed; adds to moving_s what must be moved first."""
    if HAS_ADAPTERS and run.engines[e].adapters.max_loras > 0:
        took_s, _, _ = load_batch_adapters(run, e)
        run.engines[e].moving_s += took_s


@hook
def real_time_s(run, engine, model_s):
    """Return the real time of a batch that starts now, without KV moving. model_s: its time by the device model."""
    computing_s = disturbed(model_s, run.disturbance[0], engine, run.status[0].now_s)
    if HAS_TASKS and run.state.tasks.shape[1] > 0:
        computing_s += checking_s(run, engine)
    return computing_s


@hook
def sets_end(run, router_state, e, computing_s):
    """Called when an iteration of engine e has begun. Returns whether a feature has scheduled its end."""
    if HAS_TASKS and run.state.tasks.shape[1] > 0:
        return open_task(run, router_state, e, computing_s)
    return False


@hook
def start_again(run, router_state, e):
    """Resume a suspended batch of engine e. Returns the time that it has run before, in s."""
    if HAS_TASKS:
        return resume(run, router_state, e)
    return 0.0


@hook
def after_start(run, router_state, e, until_s):
    """Called after an iteration of engine e has started. until_s: estimated end."""
    if HAS_CLUSTER and run.engines.shape[0] > 1:
        report_busy(run, router_state, e, until_s, run.status[0].now_s)


# ---- The end of an iteration (batching/ends.py)


@hook
def running_entries(run, router_state, e):
    """Return the entries of the batch that engine e runs."""
    entries = run.entries[e]
    if HAS_AHEAD and run.engines[e].ahead.on:
        entries = router_state.running[e]
    return entries


@hook
def at_end(run, e, now_s):
    """Called when the iteration of engine e ends: correct the estimator, and set moving_s for the next one."""
    engine, ran_before_s = run.engines[e], 0.0
    if HAS_CACHE and engine.cache.on:
        ask_for_free(engine, run.cache.blocks[e])
    if HAS_TASKS and run.state.tasks.shape[1] > 0 and engine.running_task >= 0:
        ran_before_s = close_task(run, e)
    if HAS_CORRECTION and run.correction[0].window_iterations > 0:
        waited_s = engine.moving_s + engine.ahead.waits_s
        correct(engine, run.correction[0], ran_before_s + now_s - engine.batch_start_s - waited_s)
    engine.moving_s = 0.0
    if HAS_TASKS and run.state.tasks.shape[1] > 0:
        take_owed(engine)


@hook
def before_chunk(run, engine, entries, k, length):
    """Called before the chunk of entry k of `length` entries is counted."""
    if HAS_AHEAD and engine.ahead.on:
        run.requests[entries[k].request].in_flight_tokens -= entries[k].tokens
    if HAS_CLUSTER:
        prefetch_entry(run.requests, run.outcomes, entries, k, length)


@hook
def is_computed(engine):
    """Return whether chunks counted as computed when their batch was formed."""
    return HAS_AHEAD and engine.ahead.on == 1


@hook
def accepted_of(run, e, r, tokens):
    """Return how many drafts in a chunk of request r are accepted, and how many are rejected."""
    if HAS_DRAFTS and tokens > 1:
        engine, request = run.engines[e], run.requests[r]
        if engine.speculation.k > 0 and is_decoding(request):
            accepted = accept(r, request, engine, run.device[e], tokens - 1)
            return accepted, tokens - 1 - accepted
    return 0, 0


@hook
def after_chunk(run, e, r, tokens):
    """Called after a chunk of request r, of this many tokens, has been computed."""
    if HAS_CACHE and run.engines[e].cache.on:
        engine, request, outcome = run.engines[e], run.requests[r], run.outcomes[r]
        if names_at_end(run, engine):
            # With preemptible batches blocks get their names only here, and those that were loaded too.
            named_tokens = 0 if run.state.tasks.shape[1] > 0 else request.computed_tokens - tokens
            name_filled(r, outcome, engine, run.cache, named_tokens, request.computed_tokens)
        else:
            ask_for_filled(r, request, outcome, engine, run.cache)


@hook
def before_tokens(engine, request, outcome):
    """Called before the request emits tokens."""
    if HAS_AHEAD and engine.ahead.on:
        request.num_output_tokens -= outcome.under_way


@hook
def out_time_s(run, now_s):
    """Return when a token that an engine emits now leaves for its client."""
    return stream_started(run.status[0].front_end, now_s)


@hook
def after_tokens(run, router_state, e, r):
    """Called after request r has emitted tokens. Returns 1 if they include its first since it was sent to engine e."""
    engine, request, outcome = run.engines[e], run.requests[r], run.outcomes[r]
    if HAS_AHEAD and engine.ahead.on:
        commit_token(run, e, r)
    if HAS_CACHE and engine.store_sets > 0 and request.num_output_tokens == outcome.sent_tokens + 1:
        prefixes = router_state.known.prefixes
        engine.store_uses = use_chunks(prefixes, router_state.stores[e], engine.store_sets, r, engine.store_uses)
    if HAS_CLUSTER and request.num_output_tokens == outcome.sent_tokens + 1:
        return 1
    return 0


@hook
def after_last_token(run, router_state, r, out_s):
    """Called after request r has finished; its last token leaves at out_s. Returns its session's gain."""
    earned = end_in_engine(run, router_state, r, out_s)
    deliver_last(run, router_state, r, out_s)
    return earned


@hook
def after_entry(engine, request, outcome):
    """Called after all tokens of an entry have been counted."""
    if HAS_AHEAD and engine.ahead.on:
        request.num_output_tokens += outcome.under_way


@hook
def after_all_tokens(run, router_state, e, now_s):
    """Called after all tokens of the batch of engine e have been emitted."""
    if HAS_CACHE and run.engines[e].cache.publishes == 1:
        publish(run, router_state, e, now_s)


@hook
def after_finishes(run, router_state):
    """Called after requests have finished."""
    status = run.status[0]
    if HAS_CLIENTS and status.front.depends == 1 and all_ended(run):
        deliver_all(run, router_state)
