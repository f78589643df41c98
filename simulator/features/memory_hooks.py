"""The hook points of giving and taking memory (batching/admission.py, eviction.py, ends.py). See loop_hooks.py."""

from servegym.simulator.compilation.kernels import hook
from servegym.simulator.features import HAS_AHEAD, HAS_CACHE, HAS_GROUPS
from servegym.simulator.memory.kv_memory import release
from servegym.simulator.memory.prefix_caching import (
    cancel_prefix_lookup,
    first_with_lost_prefix,
    give_up_named,
    hold_found,
    lookup_prefix,
)


@hook
def tokens_to_load(run, e, r):
    """Request r is being admitted. Returns how many tokens of KV it loads from host memory."""
    if HAS_CACHE and run.engines[e].cache.on:
        return hold_found(run, e, r)
    return run.requests[r].offloaded_tokens


@hook
def before_victims(run, e):
    """The policy is about to rank victims, and sees nothing of what the request that is looked at finds."""
    if HAS_CACHE and run.engines[e].cache.considered >= 0:
        cancel_prefix_lookup(run, e)


@hook
def after_victims(run, e, considered):
    """The policy has ranked victims. considered: the request that was looked at before; -1: none."""
    if HAS_CACHE and considered >= 0:
        lookup_prefix(run, e, considered)


@hook
def next_to_evict(run, e):
    """Blocks that were to be filled were given up. Returns the position of a request that counts on one; -1: none."""
    if HAS_CACHE:
        return first_with_lost_prefix(run, e)
    return -1


@hook
def give_up(run, e, r):
    """Release all blocks of request r. Returns how many blocks that it was to fill in the batch being formed others may
    count on."""
    if HAS_CACHE and run.engines[e].cache.on:
        return give_up_named(run, e, r)
    release(run.requests[r], run.engines[e])
    return 0


@hook
def is_barred(request, packing):
    """Whether the request has been evicted for the batch that is formed while another runs, and waits for the next."""
    return HAS_AHEAD and request.evicted > packing.evictions


@hook
def has_groups(engine):
    """Whether layers of the engine keep different parts of a request."""
    return HAS_GROUPS and engine.kv_groups.on > 0
