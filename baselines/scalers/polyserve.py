"""PolyServe's scaler (sections 4.3 and 4.4): the last engine of a tier goes back to the pool when it is empty; with no
request of its own tier left it is pending, and may join the tier of those it has.

The steps are those of "Rule, exactly" in docs/systems/polyserve.md.
"""

from servegym.simulator.compilation import kernel
from servegym.simulator.lines import tier_of
from servegym.simulator.policies import Parameter, Policy, register
from servegym.simulator.signatures import scaler
from servegym.simulator.types import POOL, ROLE_PREFILL


@kernel
def tightest_tier(e, requests, known):
    """Of the requests on engine e."""
    view, tightest = known.views[e], known.tiers.shape[0]
    for k in range(view.decodes):
        tightest = min(tightest, tier_of(requests[known.running[e, k]], known.tiers))
    for k in range(view.prefills):
        tightest = min(tightest, tier_of(requests[known.records[e, k]], known.tiers))
    return tightest


@kernel
def own_requests(e, requests, known):
    """How many requests of its own tier engine e has."""
    view, own = known.views[e], 0
    for k in range(view.decodes):
        own += tier_of(requests[known.running[e, k]], known.tiers) == view.tier
    for k in range(view.prefills):
        own += tier_of(requests[known.records[e, k]], known.tiers) == view.tier
    return own


@kernel
def last_of(tier, role, views, moves):
    """The open engine of a tier and role with the fewest requests, the highest index of several; -1: there is none.

    Prefill engines in use are of no tier: all of them are looked at together, with tier 0.
    """
    last = -1
    for e in range(views.shape[0]):
        view = views[e]
        if view.role != role or view.tier == POOL or moves[e].closed == 1:
            continue
        if (0 if role == ROLE_PREFILL else view.tier) == tier and (last < 0 or view.requests <= views[last].requests):
            last = e
    return last


@scaler
def polyserve(now_s, requests, known, state, parameters, estimates, moves):
    views, tiers = known.views, known.tiers
    for e in range(views.shape[0]):  # the pending ones
        if moves[e].closed == 0:
            continue
        if views[e].requests == 0:
            moves[e].tier, moves[e].closed = POOL, 0
            continue
        other = tightest_tier(e, requests, known)
        if tiers[other].waiting > 0:
            moves[e].tier, moves[e].closed = other, 0
        elif tiers[views[e].tier].waiting > 0:
            moves[e].closed = 0
    for tier in range(tiers.shape[0] - 2):
        for role in range(3):
            e = last_of(tier, role, views, moves)
            if e < 0 or moves[e].tier != views[e].tier:
                continue
            if views[e].requests == 0:
                moves[e].tier = POOL
            elif role != ROLE_PREFILL and tiers[tier].waiting == 0 and own_requests(e, requests, known) == 0:
                moves[e].closed = 1


register(
    Policy(
        "polyserve",
        "scaler",
        "A tier's last engine returns to the pool when it is empty, and takes no more requests when it has none of the "
        "tier; then it may join the tier of those it has.",
        "PolyServe, sections 4.3 and 4.4",
        polyserve,
        parameters=(
            Parameter("interval_s", 1.0, "between two checks", 1e-3, 3600, "s", log=True),
        ),
    )
)  # fmt: skip
