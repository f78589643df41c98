"""A scaler that changes the ratio of prefill to decode engines: where one phase has too much to do and the other has
room, an engine changes its role, if that is expected to last for longer than changing there and back takes.

The steps are those of "Rule, exactly" in docs/systems/pd_ratio.md.
"""

import math

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
# Of row 0. over: the role that has too much to do; turns: of that, the last one at turned_s; phases_s: the sum of the
# phases that ended; at_first: prefill engines.
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
    Parameter("outlast", 1.5, "how many times as long as changing there and back takes the mix has to be expected to "
              "stay; 0: however long", 0, 100),
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
def decodes_s(context, e):
    """Estimated time of an iteration of all that decode on engine e; 0 without any."""
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
    """The larger of two shares on engine e: of TPOT SLOs an iteration of all that were sent there, of memory their
    context."""
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
def note_turn(context, prefill, decode):
    """Note when the role that has too much to do, the more so of both, is another than before."""
    p, state = P.read(context), context.state[0]
    over = state[OVER]
    if prefill > p.prefill_high and prefill * p.decode_high >= decode * p.prefill_high:
        over = float(ROLE_PREFILL)
    elif decode > p.decode_high:
        over = float(ROLE_DECODE)
    if over == state[OVER]:
        return
    if state[OVER] != 0.0:
        state[TURNS] += 1.0
        state[PHASES_S] += context.now_s - state[TURNED_S]
    state[OVER], state[TURNED_S] = over, context.now_s


@kernel
def stays_s(context):
    """How much longer one role is expected to have too much to do: up to the mean phase so far, and after twice that as
    long again. Where no phase has ended: for ever."""
    state = context.state[0]
    if state[TURNS] == 0.0:
        return math.inf
    lasted_s, mean_s = context.now_s - state[TURNED_S], state[PHASES_S] / state[TURNS]
    return mean_s - lasted_s if lasted_s < 2.0 * mean_s else lasted_s


@kernel
def drain_s(context):
    """Time in which a decode engine ends what it has, in the mean of the open ones: iterations as now, for as many
    tokens as the longest answer there has so far."""
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
    """How many engines have a role, whether they take requests or not."""
    count = 0
    for e in range(context.known.snapshots.shape[0]):
        count += context.known.snapshots[e].role == role
    return count


@kernel
def leads_away(context, to):
    """Whether one more engine of a role makes the ratio differ more from the first one."""
    prefills = engines_of(context, ROLE_PREFILL)
    return prefills >= context.state[0, AT_FIRST] if to == ROLE_PREFILL else prefills <= context.state[0, AT_FIRST]


@kernel
def pays(context, e, to):
    """Whether engine e should change its role: back towards the first ratio always; away from it if the mix is expected
    to stay for longer than there and back takes."""
    p, change_s = P.read(context), context.known.snapshots[e].role_change_s
    if p.outlast == 0.0 or not leads_away(context, to):
        return True
    return stays_s(context) >= p.outlast * (2.0 * change_s + drain_s(context))


@kernel
def change_one(context, moves, role, to):
    """Change the role of the open engine with the fewest requests, of those that may change, if that pays; ties: the
    last."""
    snapshots, least = context.known.snapshots, -1
    for e in range(snapshots.shape[0]):
        if not is_open(snapshots[e], role) or snapshots[e].role_fixed == 1:
            continue
        if least < 0 or snapshots[e].requests <= snapshots[least].requests:
            least = e
    if least >= 0 and pays(context, least, to):
        moves[least].role, context.state[0, SINCE] = to, 0.0


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
        "Where prefill or decode engines have too much to do and the others have room, one changes its role.",
        f"ours, after {DYNAMO}",
        pd_ratio,
        parameters=P,
        state=StateFields(engine=STATE),
    )
)
