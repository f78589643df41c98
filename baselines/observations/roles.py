"""Observation of a cluster for a learned scaler: its tiers, as in tiers.py, and the roles of its engines.

The load of an engine is that of the scaler pd-ratio (docs/systems/pd_ratio.md).
"""

import numpy as np

from servegym.baselines.observations.fields import Field, Layout
from servegym.baselines.observations.scales import share, squash
from servegym.baselines.observations.tiers import CLUSTER_FIELDS, SCALED_FIELDS, SLOT, WHOLE, write_tiers
from servegym.baselines.scalers.pd_ratio import decode_load, is_open, next_of, open_engines, prefill_load
from servegym.policy import ROLE_DECODE, ROLE_PREFILL, kernel

ROLES_FIELDS = (
    *CLUSTER_FIELDS,
    Field("open_prefill", 0, 1, "share of the engines that prefill only and take requests"),
    Field("open_decode", 0, 1, "share of the engines that decode only and take requests"),
    Field("prefill_load", 0, 1, "mean load x of the former: x / (1 + x)"),
    Field("decode_load", 0, 1, "mean load x of the latter: x / (1 + x)"),
    Field("base_ratio", -1, 1, "by the base scaler: (engines that prefill only - engines that decode only) / engines"),
)  # fmt: skip
OPEN_PREFILL, OPEN_DECODE, OF_PREFILLS, OF_DECODES, BASE_RATIO = range(WHOLE, WHOLE + 5)
ROLES_WHOLE = len(ROLES_FIELDS)

ROLES_SCALED_FIELDS = (
    *SCALED_FIELDS,
    Field("may_change", 0, 1, "1: it can change its role"),
    Field("changing", 0, 1, "1: closed because it changes its role"),
    Field("change", -1, 1, "time t of a change of role once it is empty, s: t / (10 + t); negative if the base scaler "
          "has it decode only"),
    Field("load", -1, 1, "load x, if it is open and prefills or decodes only: x / (1 + x); negative if it decodes"),
    Field("next", -1, 1, "1: the next to change from decode to prefill; -1: the next from prefill to decode. Of the "
          "open engines that have the role and may change it, the one with the fewest requests, of several the last"),
    Field("base_to_prefill", 0, 1, "1: the base scaler has it prefill only"),
    Field("base_to_decode", 0, 1, "1: the base scaler has it decode only"),
)  # fmt: skip
MAY_CHANGE, CHANGING, CHANGE, LOAD, NEXT, BASE_TO_PREFILL, BASE_TO_DECODE = range(SLOT, SLOT + 7)
ROLES_SLOT = len(ROLES_SCALED_FIELDS)


def roles_layout(slots: int) -> Layout:
    """Return the layout of what `observe_roles` writes, float32[57 + 42 slots]."""
    return Layout("cluster", ROLES_FIELDS, "engine", ROLES_SCALED_FIELDS, slots)


@kernel
def observe_roles(context, moves, wanted, slots, out):
    """Write `roles_layout(slots)` into out, float32. context, moves: as of `observe_tiers`; wanted: not used."""
    write_tiers(context, moves, slots, ROLES_WHOLE, ROLES_SLOT, out)
    snapshots = context.known.snapshots
    n, prefills, decodes = snapshots.shape[0], open_engines(context, ROLE_PREFILL), open_engines(context, ROLE_DECODE)
    out[OPEN_PREFILL], out[OPEN_DECODE] = share(prefills, n), share(decodes, n)
    prefill_sum, decode_sum, more_prefill = 0.0, 0.0, 0
    next_prefill, next_decode = next_of(context, ROLE_PREFILL), next_of(context, ROLE_DECODE)
    for e in range(n):
        snapshot, load, sign = snapshots[e], 0.0, 1.0
        if is_open(snapshot, ROLE_PREFILL):
            load = prefill_load(context, e)
            prefill_sum += load
        elif is_open(snapshot, ROLE_DECODE):
            load, sign = decode_load(context, e), -1.0
            decode_sum += load
        more_prefill += int(moves[e].role == ROLE_PREFILL) - int(moves[e].role == ROLE_DECODE)
        if e < slots:
            at = ROLES_WHOLE + e * ROLES_SLOT
            out[at + LOAD] = sign * squash(load, 1.0)
            out[at + NEXT] = np.float32(e == next_decode) - np.float32(e == next_prefill)
            write_role(snapshot, moves[e], out, at)
    out[OF_PREFILLS] = squash(prefill_sum / max(prefills, 1), 1.0)
    out[OF_DECODES] = squash(decode_sum / max(decodes, 1), 1.0)
    out[BASE_RATIO] = more_prefill / n


@kernel
def write_role(snapshot, move, out, at):
    """Write whether an engine can change its role, and which one the base scaler gives it."""
    out[at + CHANGING] = snapshot.changing == 1
    if snapshot.role_fixed == 0:
        change = squash(snapshot.role_change_s, 10.0)
        out[at + MAY_CHANGE], out[at + CHANGE] = 1.0, -change if move.role == ROLE_DECODE else change
    out[at + BASE_TO_PREFILL] = move.role == ROLE_PREFILL
    out[at + BASE_TO_DECODE] = move.role == ROLE_DECODE
