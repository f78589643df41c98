"""Hooks of admission and eviction (batching/admission.py, eviction.py, ends.py). See loop_hooks.py."""

from servegym.simulator.compilation.kernels import hook
from servegym.simulator.features import HAS_AHEAD, HAS_CACHE, HAS_GROUPS
from servegym.simulator.memory.kv_memory import release
from servegym.simulator.memory.prefix_caching import (
    cancel_prefix_lookup,
    first_with_lost_prefix,
    free_named_blocks,
    hold_found,
    lookup_prefix,
)


@hook
def tokens_to_load(run, e, r):
    """Called when request r is admitted. Returns how many tokens of KV it loads from host memory."""
    if HAS_CACHE and run.engines[e].cache.on:
        return hold_found(run, e, r)
    return run.requests[r].offloaded_tokens


@hook
def before_victims(run, e):
    """Called before the policy ranks victims: undo the prefix look-up, which the policy must not see."""
    if HAS_CACHE and run.engines[e].cache.considered >= 0:
        cancel_prefix_lookup(run, e)


@hook
def after_victims(run, e, considered):
    """Called after the policy has ranked victims. considered: the request looked up before; -1: none."""
    if HAS_CACHE and considered >= 0:
        lookup_prefix(run, e, considered)


@hook
def next_to_evict(run, e):
    """Called after an eviction that lost shared blocks. Returns the position of a request that needs one; -1: none."""
    if HAS_CACHE:
        return first_with_lost_prefix(run, e)
    return -1


@hook
def free_request(run, e, r):
    """Free all blocks of request r.

    Returns how many blocks that it was to compute in the batch being formed may be shared with others.
    """
    if HAS_CACHE and run.engines[e].cache.on:
        return free_named_blocks(run, e, r)
    release(run.requests[r], run.engines[e])
    return 0


@hook
def is_barred(request, packing):
    """Return whether the request was evicted for the batch being formed ahead, and so waits for the one after it."""
    return HAS_AHEAD and request.evicted > packing.evictions


@hook
def has_groups(engine):
    """Return whether the engine has KV cache groups."""
    return HAS_GROUPS and engine.kv_groups.on > 0
