"""Observation of a cluster for a learned scaler: its tiers, as in tiers.py, and the roles of its engines.

The load of an engine is that of the scaler pd-ratio (docs/systems/pd_ratio.md).
"""

from servegym.baselines.observations.fields import Field, Layout
from servegym.baselines.observations.scales import share, squash
from servegym.baselines.observations.tiers import CLUSTER_FIELDS, SCALED_FIELDS, SLOT, WHOLE, write_tiers
from servegym.baselines.scalers.pd_ratio import decode_load, is_open, open_engines, prefill_load
from servegym.policy import ROLE_DECODE, ROLE_PREFILL, kernel

ROLES_FIELDS = (
    *CLUSTER_FIELDS,
    Field("open_prefill", 0, 1, "share of the engines that prefill only and take requests"),
    Field("open_decode", 0, 1, "share of the engines that decode only and take requests"),
)
OPEN_PREFILL, OPEN_DECODE = WHOLE, WHOLE + 1
ROLES_WHOLE = len(ROLES_FIELDS)

ROLES_SCALED_FIELDS = (
    *SCALED_FIELDS,
    Field("may_change", 0, 1, "1: it can change its role"),
    Field("changing", 0, 1, "1: closed because it changes its role"),
    Field("change", 0, 1, "time t of a change of role once it is empty, s: t / (10 + t)"),
    Field("load", 0, 1, "load x of an open engine that prefills or decodes only, as of pd-ratio: x / (1 + x)"),
    Field("base_to_prefill", 0, 1, "1: the base scaler has it prefill only"),
    Field("base_to_decode", 0, 1, "1: the base scaler has it decode only"),
)
MAY_CHANGE, CHANGING, CHANGE, LOAD, BASE_TO_PREFILL, BASE_TO_DECODE = range(SLOT, SLOT + 6)
ROLES_SLOT = len(ROLES_SCALED_FIELDS)


def roles_layout(slots: int) -> Layout:
    """Return the layout of what `observe_roles` writes, float32[54 + 41 slots]."""
    return Layout("cluster", ROLES_FIELDS, "engine", ROLES_SCALED_FIELDS, slots)


@kernel
def observe_roles(context, moves, wanted, slots, out):
    """Write `roles_layout(slots)` into out, float32. context, moves: as of `observe_tiers`; wanted: not used."""
    write_tiers(context, moves, slots, ROLES_WHOLE, ROLES_SLOT, out)
    snapshots = context.known.snapshots
    n = snapshots.shape[0]
    out[OPEN_PREFILL] = share(open_engines(context, ROLE_PREFILL), n)
    out[OPEN_DECODE] = share(open_engines(context, ROLE_DECODE), n)
    for e in range(min(slots, n)):
        at = ROLES_WHOLE + e * ROLES_SLOT
        snapshot = snapshots[e]
        out[at + CHANGING] = snapshot.changing == 1
        if snapshot.role_fixed == 0:
            out[at + MAY_CHANGE], out[at + CHANGE] = 1.0, squash(snapshot.role_change_s, 10.0)
        if is_open(snapshot, ROLE_PREFILL):
            out[at + LOAD] = squash(prefill_load(context, e), 1.0)
        elif is_open(snapshot, ROLE_DECODE):
            out[at + LOAD] = squash(decode_load(context, e), 1.0)
        out[at + BASE_TO_PREFILL] = moves[e].role == ROLE_PREFILL
        out[at + BASE_TO_DECODE] = moves[e].role == ROLE_DECODE
