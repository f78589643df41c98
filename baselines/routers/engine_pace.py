"""How fast an engine serves, for a router: predicted by its estimator, corrected by the tokens that have come out.

The router's state per engine begins with `FIELDS`. The steps are those of `lost-gain` in docs/systems/routers.md.
"""

import math

from servegym.baselines.routers.prefix_affinity import OWN_S, STATE, decodes_s
from servegym.policy import ROLE_PREFILL, batches, kernel, takes

# After those of prefix-affinity come four sums as of seen_s, in which what was a seconds ago counts e^(-a / window_s).
# recent_s: prefill times of requests sent there. predicted: tokens that its decodes were predicted to emit, without the
# correction. emitted, finished: tokens that came out, requests that ended. seen_tokens, seen_finished: what snapshots
# said at seen_s. kept: the weight at seen_s of what was seen at the look before. batch_s: time of a batch of
# `REFERENCE`.
FIELDS = (
    *STATE.engine, "recent_s", "predicted", "emitted", "finished", "seen_s", "seen_tokens", "seen_finished", "kept",
    "batch_s",
)  # fmt: skip
RECENT_S, PREDICTED, EMITTED, FINISHED, SEEN_S, SEEN_TOKENS, SEEN_FINISHED, KEPT, BATCH_S = range(OWN_S + 1, OWN_S + 10)
MOST_PREFILLING = 0.9  # cap on the share of an engine's time that prefills take
LARGEST_PREFILL = 0.1  # cap on a prefill in recent_s, as a share of window_s: it delays the tokens of an answer once
SHORTEST_S = 0.5  # time over which sums are averaged, at least
KNOWN_TOKENS = 700.0  # added to the predicted and to the emitted tokens, as few say little
MOST_SLOWER = 1.5  # cap on the correction, a factor
REFERENCE = (64, 64_000)  # decodes and their tokens of context: how engines compare


@kernel
def averaged_s(context, window_s):
    """Return the time that the weights e^(-a / window_s) of ages a since the start sum up to, s."""
    return max(SHORTEST_S, window_s * (1.0 - math.exp(-context.now_s / window_s)))


@kernel
def look_at(context, e, beside_s, window_s):
    """Bring the sums of engine e up to now. beside_s: time of a batch of its decodes, s."""
    state, snapshot = context.state, context.known.snapshots[e]
    passed_s = context.now_s - state[e, SEEN_S]
    kept = math.exp(-passed_s / window_s)
    state[e, RECENT_S] *= kept
    state[e, PREDICTED] *= kept
    if snapshot.decodes > 0:
        state[e, PREDICTED] += snapshot.decodes * passed_s / slowed_s(context, e, beside_s, 0.0, window_s)
    state[e, EMITTED] = kept * state[e, EMITTED] + (snapshot.output_tokens - state[e, SEEN_TOKENS])
    state[e, FINISHED] = kept * state[e, FINISHED] + (snapshot.finished - state[e, SEEN_FINISHED])
    state[e, SEEN_S], state[e, KEPT] = context.now_s, kept
    state[e, SEEN_TOKENS], state[e, SEEN_FINISHED] = snapshot.output_tokens, snapshot.finished


@kernel
def count_prefill(context, e, window_s):
    """Add the prefill that is sent to engine e, of OWN_S, to recent_s there."""
    context.state[e, RECENT_S] += counted_s(context, e, window_s)


@kernel
def counted_s(context, e, window_s):
    """Return what a prefill of OWN_S adds to recent_s of engine e, s."""
    return min(context.state[e, OWN_S], LARGEST_PREFILL * window_s)


@kernel
def slowed_s(context, e, batch_s, prefill_s, window_s):
    """Return the predicted time between tokens of decodes on engine e whose batch takes batch_s, s.

    prefill_s: what is added to the prefills there.
    """
    # A batch of decodes waits for the prefills before it: its time / (1 - share of the time that prefills take).
    prefilling = (context.state[e, RECENT_S] + prefill_s) / averaged_s(context, window_s)
    return batch_s / (1.0 - min(MOST_PREFILLING, prefilling))


@kernel
def token_s(context, e, own, tokens, window_s):
    """Return the expected time between tokens on engine e once all that is there decodes, s; 0 where nothing will.

    own, tokens: 1 and the context of the request to route, whose prefill takes OWN_S; 0 and 0 without that request.
    """
    snapshot, state = context.known.snapshots[e], context.state
    if snapshot.role == ROLE_PREFILL or snapshot.decodes + snapshot.prefills + own == 0:
        return 0.0
    slower = min(MOST_SLOWER, (state[e, PREDICTED] + KNOWN_TOKENS) / (state[e, EMITTED] + KNOWN_TOKENS))
    batch_s = decodes_s(context, e, snapshot.prefills + own, snapshot.prefill_tokens + tokens)
    return slower * slowed_s(context, e, batch_s, own * counted_s(context, e, window_s), window_s)


@kernel
def missing_blocks(snapshot, tokens):
    """Return the KV blocks that queued prompts and a request of this context need, minus the free ones."""
    return (snapshot.prefill_tokens + tokens) / snapshot.block_tokens - snapshot.free_blocks


@kernel
def memory_s(context, e, tokens, window_s):
    """Return how long engine e takes to free the blocks missing for a request of this context, s; 0 if unknown."""
    snapshot, finished = context.known.snapshots[e], context.state[e, FINISHED]
    missing = missing_blocks(snapshot, tokens)
    if missing <= 0.0 or snapshot.decodes == 0 or snapshot.decode_tokens == 0 or finished == 0.0:
        return 0.0
    blocks_each = snapshot.decode_tokens / (snapshot.decodes * snapshot.block_tokens)
    return missing / blocks_each * averaged_s(context, window_s) / finished


@kernel
def slowest_batch_s(context, record):
    """Return the time of `REFERENCE` on the slowest engine that takes the request, s. Sets BATCH_S of those without."""
    snapshots, state, estimates, slowest_s = context.known.snapshots, context.state, context.estimates, 0.0
    for e in range(snapshots.shape[0]):
        if not takes(snapshots[e], record):
            continue
        if state[e, BATCH_S] == 0.0:
            batch = estimates.scratch[0]
            batches.set_decodes(batch, *REFERENCE)
            state[e, BATCH_S] = estimates.batch_s[snapshots[e].pool](batch, estimates.coefficients[e])
        slowest_s = max(slowest_s, state[e, BATCH_S])
    return slowest_s
