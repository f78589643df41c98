"""A scaler that changes the ratio of prefill to decode engines: where one phase has too much to do and the other has
room, an engine changes its role.

The steps are those of "Rule, exactly" in docs/systems/pd_ratio.md.
"""

from servegym.policy import (
    ROLE_DECODE,
    ROLE_PREFILL,
    Parameter,
    Parameters,
    Policy,
    StateFields,
    batches,
    blocks_for,
    kernel,
    register,
    scaler,
)

DYNAMO = "Dynamo, load-based planner"
PREFILL_LOAD, DECODE_LOAD, CHECKS, SINCE = range(4)  # of row 0
P = Parameters(
    Parameter("interval_s", 5.0, "time between two checks", 1e-3, 3600, "s", log=True),
    Parameter("window_s", 30.0, "time over which loads are averaged", 1e-3, 3600, "s", log=True,
              source=f"{DYNAMO}: adjustment-interval"),
    Parameter("prefill_high", 0.5, "load of prefill engines above which one more is wanted", 0, 100,
              source=f"{DYNAMO}: prefill-queue-scale-up-threshold, there in requests"),
    Parameter("prefill_low", 0.2, "load that prefill engines may have with one fewer", 0, 100,
              source=f"{DYNAMO}: prefill-queue-scale-down-threshold, there in requests"),
    Parameter("decode_high", 0.9, "load of decode engines above which one more is wanted", 0, 100,
              source=f"{DYNAMO}: decode-kv-scale-up-threshold"),
    Parameter("decode_low", 0.5, "load that decode engines may have with one fewer", 0, 100,
              source=f"{DYNAMO}: decode-kv-scale-down-threshold"),
    Parameter("rest_checks", 3, "checks after a change before the next one", 0, 1000, integer=True,
              source=f"{DYNAMO}: NEW_DECODE_WORKER_GRACE_PERIOD"),
    Parameter("least_prefill", 1, "fewest prefill engines that take requests", 1, 4096, integer=True),
    Parameter("least_decode", 1, "fewest decode engines that take requests", 1, 4096, integer=True),
)  # fmt: skip


@kernel
def prefill_load(context, e):
    """Time of the prefills that wait or run on engine e, each as a share of its TTFT SLO."""
    known, estimates, load = context.known, context.estimates, 0.0
    snapshot = known.snapshots[e]
    for k in range(snapshot.prefills):
        request = context.requests[known.prefilling[e, k]]
        tokens = request.prompt_tokens + request.num_output_tokens
        load += estimates.request_s[snapshot.pool](tokens, 0, False, estimates.coefficients[e]) / request.ttft_slo_s
    return load


@kernel
def decode_load(context, e):
    """The larger of two shares on engine e: of TPOT SLOs an iteration of all that were sent there, of memory their
    context."""
    known, estimates, batch = context.known, context.estimates, context.estimates.scratch[0]
    snapshot, per_s, blocks, tokens, longest = known.snapshots[e], 0.0, 0, 0, 0
    if snapshot.decodes == 0:
        return 0.0
    for k in range(snapshot.decodes):
        request = context.requests[known.decoding[e, k]]
        held = request.prompt_tokens + request.num_output_tokens
        tokens, longest = tokens + held, max(longest, held)
        blocks += blocks_for(held, snapshot.block_tokens)
        per_s += 1.0 / request.tpot_slo_s
    batches.clear(batch)
    batch.decode_requests, batch.decode_cached_tokens, batch.longest_decode_cached = snapshot.decodes, tokens, longest
    batch_s = estimates.batch_s[snapshot.pool](batch, estimates.coefficients[e])
    return max(batch_s * per_s / snapshot.decodes, blocks / snapshot.total_blocks)


@kernel
def is_open(snapshot, role):
    """Whether an engine of the role takes requests."""
    return snapshot.role == role and snapshot.up == 1 and snapshot.closed == 0


@kernel
def open_engines(context, role):
    """How many engines of a role take requests."""
    snapshots, count = context.known.snapshots, 0
    for e in range(snapshots.shape[0]):
        count += is_open(snapshots[e], role)
    return count


@kernel
def mean_load(context, role, engines):
    """Mean load of the engines of a role that take requests, of which there are so many."""
    snapshots, load = context.known.snapshots, 0.0
    for e in range(snapshots.shape[0]):
        if is_open(snapshots[e], role):
            load += prefill_load(context, e) if role == ROLE_PREFILL else decode_load(context, e)
    return load / max(engines, 1)


@kernel
def is_changing(context):
    """Whether an engine changes its role, or is to."""
    snapshots = context.known.snapshots
    for e in range(snapshots.shape[0]):  # noqa: SIM110 (kernels have no generators)
        if snapshots[e].changing == 1:
            return True
    return False


@kernel
def average(context, field, load, kept):
    """Average a load over time; the first is taken as it is."""
    before = load if context.state[0, CHECKS] == 0.0 else context.state[0, field]
    context.state[0, field] = before * kept + load * (1.0 - kept)
    return context.state[0, field]


@kernel
def change_one(context, moves, role, to):
    """Change the role of the open engine with the fewest requests, of those that may change; ties: the last."""
    snapshots, least = context.known.snapshots, -1
    for e in range(snapshots.shape[0]):
        if not is_open(snapshots[e], role) or snapshots[e].role_fixed == 1:
            continue
        if least < 0 or snapshots[e].requests <= snapshots[least].requests:
            least = e
    if least >= 0:
        moves[least].role, context.state[0, SINCE] = to, 0.0


@scaler
def pd_ratio(context, moves):
    p = P.read(context)
    prefills, decodes = open_engines(context, ROLE_PREFILL), open_engines(context, ROLE_DECODE)
    kept = max(1.0 - p.interval_s / p.window_s, 0.0)
    prefill = average(context, PREFILL_LOAD, mean_load(context, ROLE_PREFILL, prefills), kept)
    decode = average(context, DECODE_LOAD, mean_load(context, ROLE_DECODE, decodes), kept)
    context.state[0, CHECKS] += 1
    context.state[0, SINCE] = 0.0 if is_changing(context) else context.state[0, SINCE] + 1.0
    if context.state[0, SINCE] <= p.rest_checks:
        return
    if prefill > p.prefill_high and decodes > p.least_decode and decode * decodes <= p.decode_low * (decodes - 1):
        change_one(context, moves, ROLE_DECODE, ROLE_PREFILL)
    elif decode > p.decode_high and prefills > p.least_prefill and prefill * prefills <= p.prefill_low * (prefills - 1):
        change_one(context, moves, ROLE_PREFILL, ROLE_DECODE)


register(
    Policy(
        "pd-ratio",
        "scaler",
        "Where prefill or decode engines have too much to do and the others have room, one changes its role.",
        f"ours, after {DYNAMO}",
        pd_ratio,
        parameters=P,
        state=StateFields(engine=("prefill_load", "decode_load", "checks", "since")),
    )
)
