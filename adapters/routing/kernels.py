"""Update what a live router knows with the simulator's own kernels, an event of a live engine at a time.

Live engines send no reports of decoding requests, as simulated ones do: the context of decodes is counted here.
"""

from servegym.simulator.batching.leaving import drop
from servegym.simulator.compilation import numba_types as types
from servegym.simulator.compilation.kernels import compiled
from servegym.simulator.fleet.held_queues import append, drop_from, tier_of
from servegym.simulator.fleet.routing import apply_signal, empty, remove_decode, send
from servegym.simulator.memory.kv_events import set_known_block
from servegym.simulator.memory.prefixes import forget
from servegym.simulator.records.fields import array
from servegym.simulator.records.named_blocks import give_name
from servegym.simulator.records.signatures import KNOWN, REQUESTS
from servegym.simulator.records.types import FIRST_TOKEN, LAST_TOKEN, OUTCOME, TIER

OUTCOMES, TIER_TABLE = array(OUTCOME), array(TIER)


@compiled(types.int64(REQUESTS, TIER_TABLE, types.int64))
def tier_of_row(requests, tiers, r):
    """Return the tier of request r."""
    return tier_of(requests[r], tiers)


@compiled(types.void(TIER_TABLE, OUTCOMES, types.int64, types.int64))
def hold(tiers, outcomes, held_queue, r):
    """Append request r to a held queue."""
    append(tiers[held_queue], outcomes, r)


@compiled(types.void(TIER_TABLE, OUTCOMES, types.int64, types.int64))
def drop_held(tiers, outcomes, held_queue, r):
    """Remove request r from a held queue, wherever it is in it."""
    drop_from(tiers[held_queue], outcomes, r)


@compiled(types.void(KNOWN, REQUESTS, OUTCOMES, types.int64, types.int64, types.float64))
def send_row(known, requests, outcomes, e, r, now_s):
    """Send request r to engine e."""
    requests[r].engine = e
    send(known, e, r, requests[r], outcomes[r], now_s)


@compiled(types.boolean(KNOWN, REQUESTS, OUTCOMES, types.int64, types.int64, types.float64))
def emit_tokens(known, requests, outcomes, r, count, now_s):
    """Count output tokens of request r. Returns whether the first since it was sent is among them."""
    request, e = requests[r], requests[r].engine
    before = request.num_output_tokens
    request.num_output_tokens = before + count
    if before == 0:
        request.first_token_s = now_s
    first = before == outcomes[r].sent_tokens
    if first:
        apply_signal(known, e, r, request.prompt_tokens, before, FIRST_TOKEN, now_s)
        known.snapshots[e].decode_tokens += request.prompt_tokens + before
    known.snapshots[e].decode_tokens += count
    known.snapshots[e].output_tokens += count
    return first


@compiled(types.void(KNOWN, REQUESTS, OUTCOMES, types.int64, types.boolean, types.float64))
def leave_engine(known, requests, outcomes, r, finished, now_s):
    """Remove request r from its engine."""
    request, e = requests[r], requests[r].engine
    snapshot, emitted = known.snapshots[e], request.num_output_tokens
    request.engine = -1
    if emitted > outcomes[r].sent_tokens:
        snapshot.decode_tokens -= request.prompt_tokens + emitted
        if finished:
            apply_signal(known, e, r, request.prompt_tokens, emitted, LAST_TOKEN, now_s)
        else:
            remove_decode(known, e, r)
        return
    if finished:  # without a token since it was sent
        snapshot.finished += 1
        snapshot.finished_tokens += emitted
    drop(known.prefilling[e], snapshot.prefills, r)
    snapshot.prefills -= 1
    snapshot.prefill_tokens -= request.prompt_tokens + emitted
    snapshot.changed_s = now_s
    snapshot.requests -= 1
    snapshot.version += 1


@compiled(types.void(KNOWN, types.int64, types.float64))
def lose_engine(known, e, now_s):
    """Remove all requests and the prefix store of engine e."""
    snapshot, store = known.snapshots[e], known.prefixes.sent[e]
    snapshot.up = 0
    empty(snapshot, snapshot.total_blocks, now_s)
    forget(store, store.shape[0])


@compiled(types.void(KNOWN, types.int64, types.int64, types.int64))
def set_name(known, e, row, name):
    """Set the name of a published block, at this row of engine e's table; 0: it has none."""
    set_known_block(known, e, row, name)


@compiled(types.void(KNOWN))
def place_names(known):
    """Fill the hash tables of the names of all published blocks, which are empty."""
    for e in range(known.prefixes.published.shape[0]):
        places, published = known.prefixes.places[e], known.prefixes.published[e]
        for block in range(published.shape[0]):
            if published[block].name != 0:
                give_name(places, published, block, published[block].name)


ALL = (tier_of_row, hold, drop_held, send_row, emit_tokens, leave_engine, lose_engine, set_name, place_names)
