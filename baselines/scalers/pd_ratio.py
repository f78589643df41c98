"""A scaler that changes the ratio of prefill to decode engines: if the load of one phase is too high and the other has
capacity to spare, an engine changes its role, if that is expected to last longer than changing there and back takes.

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
# In row 0 of the state. over: the role with the larger load; turns: how often that changed, last at turned_s; phases_s:
# the sum of the phases that ended; at_first: prefill engines.
STATE = ("prefill_load", "decode_load", "checks", "since", "over", "turned_s", "turns", "phases_s", "at_first")
PREFILL_LOAD, DECODE_LOAD, CHECKS, SINCE, OVER, TURNED_S, TURNS, PHASES_S, AT_FIRST = range(len(STATE))
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
    Parameter("outlast", 1.5, "a change away from the first ratio needs the mix to be expected to stay for this many "
              "times the duration of the change and back; 0: no such rule", 0, 100),
    Parameter("first_s", 60.0, "length that the first phase is expected to have", 0, 1e9, "s",
              source="ours; after a prediction for ski rental: Purohit, Svitkina and Kumar, NeurIPS 2018"),
)  # fmt: skip


@kernel
def prefill_load(context, e):
    """Return the load of a prefill engine: the sum of its prefills' times, each as a share of its TTFT SLO."""
    known, estimates, load = context.known, context.estimates, 0.0
    snapshot = known.snapshots[e]
    for k in range(snapshot.prefills):
        request = context.requests[known.prefilling[e, k]]
        tokens = request.prompt_tokens + request.num_output_tokens
        load += estimates.request_s[snapshot.pool](tokens, 0, False, estimates.coefficients[e]) / request.ttft_slo_s
    return load


@kernel
def decodes_s(context, e):
    """Return the estimated time of an iteration of all that decode on engine e; 0 without any."""
    known, estimates, batch = context.known, context.estimates, context.estimates.scratch[0]
    snapshot, tokens, longest = known.snapshots[e], 0, 0
    if snapshot.decodes == 0:
        return 0.0
    for k in range(snapshot.decodes):
        request = context.requests[known.decoding[e, k]]
        held = request.prompt_tokens + request.num_output_tokens
        tokens, longest = tokens + held, max(longest, held)
    batches.clear(batch)
    batch.decode_requests, batch.decode_cached_tokens, batch.longest_decode_cached = snapshot.decodes, tokens, longest
    return estimates.batch_s[snapshot.pool](batch, estimates.coefficients[e])


@kernel
def decode_load(context, e):
    """Return the load of a decode engine: the larger of iteration time / TPOT SLO (mean) and its share of KV blocks."""
    known, per_s, blocks = context.known, 0.0, 0
    snapshot = known.snapshots[e]
    if snapshot.decodes == 0:
        return 0.0
    for k in range(snapshot.decodes):
        request = context.requests[known.decoding[e, k]]
        blocks += blocks_for(request.prompt_tokens + request.num_output_tokens, snapshot.block_tokens)
        per_s += 1.0 / request.tpot_slo_s
    return max(decodes_s(context, e) * per_s / snapshot.decodes, blocks / snapshot.total_blocks)


@kernel
def is_open(snapshot, role):
    """Return whether an engine has the role and takes requests."""
    return snapshot.role == role and snapshot.up == 1 and snapshot.closed == 0


@kernel
def open_engines(context, role):
    """Return how many engines of a role take requests."""
    snapshots, count = context.known.snapshots, 0
    for e in range(snapshots.shape[0]):
        count += is_open(snapshots[e], role)
    return count


@kernel
def mean_load(context, role, engines):
    """Return the mean load of the engines of a role that take requests. engines: their number."""
    snapshots, load = context.known.snapshots, 0.0
    for e in range(snapshots.shape[0]):
        if is_open(snapshots[e], role):
            load += prefill_load(context, e) if role == ROLE_PREFILL else decode_load(context, e)
    return load / max(engines, 1)


@kernel
def is_changing(context):
    """Return whether a role change of an engine has begun and is not over."""
    snapshots = context.known.snapshots
    for e in range(snapshots.shape[0]):  # noqa: SIM110 (kernels have no generators)
        if snapshots[e].changing == 1:
            return True
    return False


@kernel
def average(context, field, load, kept):
    """Update and return the moving average of a load, which begins with the first load."""
    before = load if context.state[0, CHECKS] == 0.0 else context.state[0, field]
    context.state[0, field] = before * kept + load * (1.0 - kept)
    return context.state[0, field]


@kernel
def note_turn(context, prefill, decode):
    """Note a change of the role with the larger load, as a share of its `high`, if that is above its `low`."""
    p, state = P.read(context), context.state[0]
    over = state[OVER]
    if prefill * p.decode_high >= decode * p.prefill_high:
        over = float(ROLE_PREFILL) if prefill > p.prefill_low else over
    elif decode > p.decode_low:
        over = float(ROLE_DECODE)
    if over == state[OVER]:
        return
    if state[OVER] != 0.0:
        state[TURNS] += 1.0
        state[PHASES_S] += context.now_s - state[TURNED_S]
    state[OVER], state[TURNED_S] = over, context.now_s


@kernel
def stays_s(context):
    """Return how much longer that role is expected to have the larger load, s.

    Up to the mean phase, or `first_s` if none has ended; after twice that, as long again as it has lasted.
    """
    state = context.state[0]
    mean_s = state[PHASES_S] / state[TURNS] if state[TURNS] > 0.0 else P.read(context).first_s
    lasted_s = context.now_s - state[TURNED_S]
    return mean_s - lasted_s if lasted_s < 2.0 * mean_s else lasted_s


@kernel
def drain_s(context):
    """Return the mean time in which an open decode engine is expected to finish its requests, s.

    For each engine: iterations as now, as many as the longest answer there has tokens so far.
    """
    known, total_s, engines = context.known, 0.0, 0
    for e in range(known.snapshots.shape[0]):
        if not is_open(known.snapshots[e], ROLE_DECODE):
            continue
        engines, longest = engines + 1, 0
        for k in range(known.snapshots[e].decodes):
            longest = max(longest, context.requests[known.decoding[e, k]].num_output_tokens)
        total_s += longest * decodes_s(context, e)
    return total_s / max(engines, 1)


@kernel
def engines_of(context, role):
    """Return how many engines have a role, whether they take requests or not."""
    count = 0
    for e in range(context.known.snapshots.shape[0]):
        count += context.known.snapshots[e].role == role
    return count


@kernel
def leads_away(context, to):
    """Return whether one more engine of a role makes the ratio differ more from the first one."""
    prefills = engines_of(context, ROLE_PREFILL)
    return prefills >= context.state[0, AT_FIRST] if to == ROLE_PREFILL else prefills <= context.state[0, AT_FIRST]


@kernel
def pays(context, e, to):
    """Return whether engine e should change its role.

    Back towards the first ratio always; away from it if the mix is expected to outlast the change and back.
    """
    p, change_s = P.read(context), context.known.snapshots[e].role_change_s
    if p.outlast == 0.0 or not leads_away(context, to):
        return True
    return stays_s(context) >= p.outlast * (2.0 * change_s + drain_s(context))


@kernel
def next_of(context, role):
    """Find the engine with a role that would change next: open, not fixed, with the fewest requests; ties: the last.

    Returns -1 if there is none.
    """
    snapshots, least = context.known.snapshots, -1
    for e in range(snapshots.shape[0]):
        if not is_open(snapshots[e], role) or snapshots[e].role_fixed == 1:
            continue
        if least < 0 or snapshots[e].requests <= snapshots[least].requests:
            least = e
    return least


@kernel
def change_one(context, moves, role, to):
    """Change the role of the next engine of a role, if that pays."""
    e = next_of(context, role)
    if e >= 0 and pays(context, e, to):
        moves[e].role, context.state[0, SINCE] = to, 0.0


@scaler
def pd_ratio(context, moves):
    p = P.read(context)
    prefills, decodes = open_engines(context, ROLE_PREFILL), open_engines(context, ROLE_DECODE)
    kept = max(1.0 - p.interval_s / p.window_s, 0.0)
    prefill = average(context, PREFILL_LOAD, mean_load(context, ROLE_PREFILL, prefills), kept)
    decode = average(context, DECODE_LOAD, mean_load(context, ROLE_DECODE, decodes), kept)
    note_turn(context, prefill, decode)
    if context.state[0, CHECKS] == 0.0:
        context.state[0, AT_FIRST] = engines_of(context, ROLE_PREFILL)
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
        "If the load of prefill or decode engines is too high and the others have room, one of these changes its role.",
        f"ours, after {DYNAMO}",
        pd_ratio,
        parameters=P,
        state=StateFields(engine=STATE),
    )
)
