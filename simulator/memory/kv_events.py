"""KV events: at the end of an iteration an engine publishes which blocks it has stored and overwritten.

The router applies them to its own copy of the engine's named blocks (Prefixes.published). docs/feature_rules.md, "What
routers know of it".
"""

from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.memory.grouped_prefixes import find_in_full, find_in_windows, name_in_group, size_of
from servegym.simulator.records.events import drop_of_engine
from servegym.simulator.records.named_blocks import UNCHANGED, find_block, give_name, lose_names, name_of, take_name


@kernel
def publish(run, router_state, e, now_s):
    """Publish each block of engine e whose name has changed since its last publication."""
    engine, blocks, signals = run.engines[e], run.cache.blocks[e], run.status[0].signals
    block = engine.cache.first_changed
    while block >= 0:
        one = blocks[block]
        name = max(one.name, 0)  # negative names belong to one request only
        if signals.delay_s == 0.0:
            set_known_block(router_state.known, e, block, name)
        else:
            event = router_state.kv_events[signals.kv_sent]
            signals.kv_sent += 1
            event.time_s, event.engine, event.block, event.name = now_s, e, block, name
        block, one.changed = one.changed, UNCHANGED
    engine.cache.first_changed = -1


@kernel
def set_known_block(known, e, block, name):
    """Set the name of a block of engine e in the router's copy; 0: no name that other requests could find."""
    places, published = known.prefixes.places[e], known.prefixes.published[e]
    if published[block].name != 0:
        take_name(places, published, block)
    if name != 0:
        give_name(places, published, block, name)


@kernel
def apply_due_events(run, router_state, now_s):
    """Apply the events whose delay is over."""
    signals, events = run.status[0].signals, router_state.kv_events
    while signals.kv_heard < signals.kv_sent and events[signals.kv_heard].time_s + signals.delay_s <= now_s:
        event = events[signals.kv_heard]
        set_known_block(router_state.known, event.engine, event.block, event.name)
        signals.kv_heard += 1


@kernel
def events_fit(run, router_state, e):
    """Return whether the events of all blocks of engine e fit."""
    engine, signals, capacity = run.engines[e], run.status[0].signals, router_state.kv_events.shape[0]
    if engine.cache.publishes == 0 or signals.delay_s == 0.0 or signals.kv_sent + engine.total_blocks <= capacity:
        return True
    drop_events(signals, router_state.kv_events, -1)
    return signals.kv_sent + engine.total_blocks <= capacity


@kernel
def drop_events(signals, events, e):
    """Drop the events that have been heard, and those of engine e."""
    kept = drop_of_engine(events, signals.kv_heard, signals.kv_sent, e)
    signals.kv_heard, signals.kv_sent = 0, kept


@kernel
def forget_published(run, router_state, e):
    """Empty the router's copy of engine e's blocks and drop its events under way, as the engine has lost its KV."""
    run.engines[e].cache.first_changed = -1
    lose_names(router_state.known.prefixes.places[e], router_state.known.prefixes.published[e])
    drop_events(run.status[0].signals, router_state.kv_events, e)


@kernel
def published_block_tokens(snapshot, prefixes, e):
    """Return the tokens of a block of engine e; with KV cache groups, of the first group, which is full if any is."""
    kinds = prefixes.kinds[e]
    return size_of(kinds, 0) if kinds.on > 0 else snapshot.block_tokens


@kernel
def published_name(snapshot, prefixes, r, e, i):
    """Return the name of block i of request r at engine e, in the first group."""
    kinds = prefixes.kinds[e]
    if kinds.on > 0:
        return name_in_group(kinds, prefixes, r, i, 0)
    return name_of(prefixes, r, i, snapshot.block_tokens)


@kernel
def published_tokens(snapshot, prefixes, r, e, most):
    """Return how many tokens of request r's prefix, at most `most`, engine e has, by its KV events.

    With KV cache groups they are found as the engine finds them.
    """
    places, published, kinds = prefixes.places[e], prefixes.published[e], prefixes.kinds[e]
    tokens = (prefixes.offsets[r + 1] - prefixes.offsets[r]) * prefixes.chunk_tokens
    if kinds.on > 0:
        found = min(tokens, most)
        if kinds.full > 0:
            found = find_in_full(places, published, kinds, prefixes, r, found)
        if kinds.windows > 0:
            found = find_in_windows(places, published, kinds, prefixes, r, found)
        return found
    blocks, found = tokens // snapshot.block_tokens, 0
    while found < blocks:
        if find_block(places, published, published_name(snapshot, prefixes, r, e, found)) < 0:
            break
        found += 1
    return min(found * snapshot.block_tokens, most)
