"""The hook points of the packer (batching/packer.py). See loop_hooks.py."""

from servegym.simulator.batching.admission import give_grouped, give_named
from servegym.simulator.compilation.kernels import hook
from servegym.simulator.features import HAS_ADAPTERS, HAS_AHEAD, HAS_CACHE, HAS_DRAFTS, HAS_GROUPS, HAS_TASKS
from servegym.simulator.features.adapters import begin_batch, count_into_batch, joins_batch, take_out_of_batch
from servegym.simulator.features.speculation import decode_chunk
from servegym.simulator.features.suspended_batches import blocks_in_tasks, find_excluded_task, find_suspended_task
from servegym.simulator.memory.grouped_prefixes import drop_unseen
from servegym.simulator.memory.prefix_caching import cancel_prefix_lookup, lookup_prefix
from servegym.simulator.memory.state_chunks import back_to_state, keeps_states, up_to_state
from servegym.simulator.records.requests import processed_of
from servegym.simulator.records.types import NO_LIMIT


@hook
def resumes(run, e):
    """The queue of engine e is ranked. Returns whether what ranks first is a batch that was suspended."""
    return HAS_TASKS and run.engines[e].suspended > 0 and find_suspended_task(run, e)


@hook
def has_suspended(engine):
    """Whether the engine has a suspended batch, which can run where nothing else can."""
    return HAS_TASKS and engine.suspended > 0


@hook
def before_attempt(run, e):
    """The packer is about to go through the queue of engine e."""
    if HAS_AHEAD:
        run.packing[0].evictions = run.status[0].evictions if run.engines[e].ahead.forming else NO_LIMIT
    if HAS_ADAPTERS and run.engines[e].adapters.max_loras > 0:
        begin_batch(run.engines[e])


@hook
def after_attempt(run, e):
    """The packer is through with the queue of engine e, or with the request that ranks first."""
    if HAS_CACHE and run.engines[e].cache.on:
        cancel_prefix_lookup(run, e)


@hook
def waits_for_end(engine):
    """Whether another batch runs while this one is formed: its end may free memory."""
    return HAS_AHEAD and engine.ahead.forming == 1


@hook
def asks_of_each(engine):
    """Whether a feature looks at each request that may join a batch."""
    return HAS_ADAPTERS and engine.adapters.max_loras > 0


@hook
def passes_over(run, e, r):
    """Whether request r, which is looked at, is to wait for another batch than this one."""
    return HAS_ADAPTERS and run.engines[e].adapters.max_loras > 0 and not joins_batch(run, e, run.requests[r].adapter)


@hook
def after_taking(run, e, r):
    """Request r has joined the batch that engine e forms."""
    if HAS_ADAPTERS and run.engines[e].adapters.max_loras > 0:
        count_into_batch(run, e, run.requests[r].adapter)


@hook
def after_dropping(run, e, r):
    """Request r has been taken out of the batch that engine e forms."""
    if HAS_ADAPTERS and run.engines[e].adapters.max_loras > 0:
        take_out_of_batch(run, e, run.requests[r].adapter)


@hook
def before_newcomer(run, e, r):
    """Request r, which has no memory, is looked at; or again, as requests have given up memory."""
    if HAS_CACHE and run.engines[e].cache.on:
        lookup_prefix(run, e, r)


@hook
def before_need(run, e, r):
    """What request r lacks for its chunk is about to be counted."""
    if HAS_CACHE and HAS_GROUPS and run.engines[e].kv_groups.on > 0 and run.engines[e].cache.on:
        drop_unseen(run.requests[r], run.outcomes[r], run.engines[e], run.cache, processed_of(run.requests[r]))


@hook
def ends_chunks(engine):
    """Whether chunks have to end where a feature says (`chunk_to_end`)."""
    return HAS_CACHE and HAS_GROUPS and keeps_states(engine)


@hook
def chunk_to_end(run, e, r, chunk):
    """The chunk of request r, or its part up to where it has to end; 0: there is no such place in it."""
    if HAS_CACHE and HAS_GROUPS:
        return up_to_state(run, e, r, chunk)
    return chunk


@hook
def chunk_back_to_end(request, engine, chunk):
    """The chunk, shorter than `chunk_to_end`, or its part up to the last place where it may as well end."""
    if HAS_CACHE and HAS_GROUPS:
        return back_to_state(request, engine, chunk)
    return chunk


@hook
def wanted_chunk(run, e, r, chunk):
    """Tokens that request r, a decode with memory, wants, where it would get `chunk` by itself."""
    if HAS_DRAFTS and run.engines[e].speculation.k > 0:
        return decode_chunk(run.requests[r], run.outcomes[r], run.engines[e], run.limits[0], run.packing[0])
    return chunk


@hook
def gives_memory(run, e, r, chunk, now_s):
    """Request r is to get the memory for its chunk, which is free. Returns whether a feature has given it."""
    if HAS_CACHE and run.engines[e].cache.on:
        give_named(run, e, r, chunk, now_s)
        return True
    if HAS_GROUPS and run.engines[e].kv_groups.on > 0:
        give_grouped(run, e, r, chunk, now_s)
        return True
    return False


@hook
def before_first(run, e):
    """Nothing fits: the request that ranks first is looked for, to run with what fits."""
    if HAS_TASKS and run.engines[e].suspended > 0:
        find_excluded_task(run, e)


@hook
def suspended_blocks(run, e):
    """Blocks that suspended batches of engine e hold."""
    if HAS_TASKS:
        return blocks_in_tasks(run, e)
    return 0
