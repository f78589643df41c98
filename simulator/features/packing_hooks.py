"""Hooks of the packer (batching/packer.py). See loop_hooks.py."""

from servegym.simulator.batching.admission import give_grouped_blocks, give_named_blocks, give_to_decode
from servegym.simulator.compilation.kernels import hook
from servegym.simulator.features import HAS_ADAPTERS, HAS_AHEAD, HAS_CACHE, HAS_DRAFTS, HAS_GROUPS, HAS_TASKS
from servegym.simulator.features.adapters import clear_batch_adapters, count_into_batch, joins_batch, take_out_of_batch
from servegym.simulator.features.speculation import decode_chunk
from servegym.simulator.features.suspended_batches import blocks_in_tasks, find_excluded_task, find_suspended_task
from servegym.simulator.memory.grouped_prefixes import drop_unseen
from servegym.simulator.memory.prefix_caching import cancel_prefix_lookup, lookup_prefix
from servegym.simulator.memory.state_chunks import back_to_state, keeps_states, up_to_state
from servegym.simulator.records.requests import processed_of
from servegym.simulator.records.types import NO_LIMIT


@hook
def resumes(run, e):
    """Return whether the first-ranked request of engine e is in a suspended batch."""
    return HAS_TASKS and run.engines[e].suspended > 0 and find_suspended_task(run, e)


@hook
def has_suspended(engine):
    """Return whether the engine has a suspended batch, which can run where no request can."""
    return HAS_TASKS and engine.suspended > 0


@hook
def before_attempt(run, e):
    """Called before the packer visits the queue of engine e."""
    if HAS_AHEAD:
        run.packing[0].evictions = run.status[0].evictions if run.engines[e].ahead.forming else NO_LIMIT
    if HAS_ADAPTERS and run.engines[e].adapters.max_loras > 0:
        clear_batch_adapters(run.engines[e])


@hook
def after_attempt(run, e):
    """Called after the packer has visited the queue of engine e, or only its first-ranked request."""
    if HAS_CACHE and run.engines[e].cache.on:
        cancel_prefix_lookup(run, e)


@hook
def waits_for_end(engine):
    """Return whether another batch runs while this one is formed; its end may free memory."""
    return HAS_AHEAD and engine.ahead.forming == 1


@hook
def asks_of_each(engine):
    """Return whether a feature must be asked about each request of a batch (`passes_over`, `before_need`)."""
    if HAS_CACHE and HAS_GROUPS and engine.cache.on and engine.kv_groups.on > 0:
        return True
    return HAS_ADAPTERS and engine.adapters.max_loras > 0


@hook
def passes_over(run, e, r):
    """Return whether request r may not join this batch."""
    return HAS_ADAPTERS and run.engines[e].adapters.max_loras > 0 and not joins_batch(run, e, run.requests[r].adapter)


@hook
def after_taking(run, e, r):
    """Called after request r has joined the batch that engine e forms."""
    if HAS_ADAPTERS and run.engines[e].adapters.max_loras > 0:
        count_into_batch(run, e, run.requests[r].adapter)


@hook
def after_dropping(run, e, r):
    """Called after request r was removed from the batch that engine e forms."""
    if HAS_ADAPTERS and run.engines[e].adapters.max_loras > 0:
        take_out_of_batch(run, e, run.requests[r].adapter)


@hook
def before_waiting(run, e, r):
    """Called when the packer visits waiting request r, and again after evictions: look up its prefix."""
    if HAS_CACHE and run.engines[e].cache.on:
        lookup_prefix(run, e, r)


@hook
def before_need(run, e, r):
    """Called before the blocks that request r lacks are counted: free those that its windows have left."""
    if HAS_CACHE and HAS_GROUPS and run.engines[e].kv_groups.on > 0 and run.engines[e].cache.on:
        drop_unseen(run.requests[r], run.outcomes[r], run.engines[e], run.cache, processed_of(run.requests[r]))


@hook
def ends_chunks(engine):
    """Return whether a feature says where chunks may end (`chunk_to_end`)."""
    return HAS_CACHE and HAS_GROUPS and keeps_states(engine)


@hook
def chunk_to_end(run, e, r, chunk):
    """Return the chunk of request r, cut to where it must end; 0: it cannot end anywhere."""
    if HAS_CACHE and HAS_GROUPS:
        return up_to_state(run, e, r, chunk)
    return chunk


@hook
def chunk_back_to_end(request, engine, chunk):
    """Return a chunk that was cut after `chunk_to_end`, cut further to the last place where it should end, if any."""
    if HAS_CACHE and HAS_GROUPS:
        return back_to_state(request, engine, chunk)
    return chunk


@hook
def wanted_chunk(run, e, r, chunk):
    """Return the chunk of running decode r with its drafts. chunk: without drafts."""
    if HAS_DRAFTS and run.engines[e].speculation.k > 0:
        return decode_chunk(run.requests[r], run.outcomes[r], run.engines[e], run.limits[0], run.packing[0])
    return chunk


@hook
def gives_memory(run, e, r, chunk, now_s):
    """Give request r the free blocks for its chunk, if a feature manages them. Returns whether one does."""
    if HAS_CACHE and run.engines[e].cache.on:
        give_named_blocks(run, e, r, chunk, now_s)
        return True
    if HAS_GROUPS and run.engines[e].kv_groups.on > 0:
        give_grouped_blocks(run, e, r, chunk, now_s)
        return True
    return False


@hook
def gives_memory_to_decode(run, e, r, now_s):
    """Give running decode r the free blocks for its next token, if a feature manages them. Returns whether one does."""
    if HAS_CACHE and run.engines[e].cache.on:
        give_to_decode(run, e, r, now_s)
        return True
    return False


@hook
def before_first(run, e):
    """Called when nothing fits, before the first-ranked request is chosen to run."""
    if HAS_TASKS and run.engines[e].suspended > 0:
        find_excluded_task(run, e)


@hook
def suspended_blocks(run, e):
    """Return the blocks of the suspended batches of engine e."""
    if HAS_TASKS:
        return blocks_in_tasks(run, e)
    return 0
