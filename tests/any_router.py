"""A router and a scaler that mean nothing: what they decide hangs on all they may know.

So that what a router knows is compared with the reference simulator field by field. With parameters it names decode
engines, holds requests in any line, refuses some, and moves engines; the scaler moves, closes and opens them, and gives
them roles.
"""

from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.policies.policy import Parameter, Policy
from servegym.simulator.records.signatures import router, scaler
from servegym.simulator.records.types import REFUSE, ROLE_DECODE, WAYS
from tests.reference.requests import Request
from tests.reference.routers import Route, Router
from tests.reference.scalers import Change, Scaler
from tests.reference.snapshots import EngineSnapshot

STEPS_PER_S = 64.0  # times count in steps of this


@kernel
def all_known(known):
    """A whole number that every field goes into."""
    total = 0
    for e in range(known.snapshots.shape[0]):
        snapshot = known.snapshots[e]
        here = (
            snapshot.requests
            + 3 * snapshot.prefills
            + 7 * snapshot.prefill_tokens
            + 11 * snapshot.decodes
            + 13 * snapshot.free_blocks
        )
        here += 17 * snapshot.decode_tokens + 19 * int(snapshot.changed_s * STEPS_PER_S)
        here += 23 * int(snapshot.busy_until_s * STEPS_PER_S) + 29 * snapshot.version + 31 * snapshot.finished
        here += 37 * snapshot.finished_tokens + 41 * snapshot.tier + 43 * snapshot.up + 47 * snapshot.closed
        here += 59 * snapshot.pending + 61 * snapshot.off + 71 * snapshot.changing + 73 * snapshot.output_tokens
        for place in range(snapshot.prefills):
            here += (place + 2) * known.prefilling[e, place]
        for place in range(snapshot.decodes):
            here += (place + 3) * known.decoding[e, place]
        total += (e + 1) * here
    for line in range(known.tiers.shape[0] - 1):
        total += (line + 53) * known.tiers[line].waiting
    sent = known.prefixes.sent
    for e in range(sent.shape[0]):
        for s in range(sent.shape[1]):
            for way in range(WAYS):
                total -= (e + 2) * sent[e, s].chunk[way]
    return total


@kernel
def takes(snapshot, decoding):
    return snapshot.up == 1 and snapshot.closed == 0 and (snapshot.role == ROLE_DECODE) == decoding


@kernel
def nth_that_takes(snapshots, decoding, n, opens=False):
    """opens: pending ones count too."""
    for e in range(snapshots.shape[0]):
        if takes(snapshots[e], decoding) or (
            opens and snapshots[e].pending == 1 and (snapshots[e].role == ROLE_DECODE) == decoding
        ):
            if n == 0:
                return e
            n -= 1
    return -1


@router
def any_engine(context, request, route):
    requests, known, parameters = context.requests, context.known, context.parameters
    snapshots, tiers = known.snapshots, known.tiers.shape[0] - 2
    total = all_known(known) + requests[request].num_output_tokens + 67 * (requests[request].session + 1)
    decoding = requests[request].computed_tokens > 0
    taking, decode_engines = 0, 0
    moving = (total // 11) % 6 < int(parameters[2])
    for e in range(snapshots.shape[0]):
        pending = snapshots[e].pending == 1 and (snapshots[e].role == ROLE_DECODE) == decoding
        taking += takes(snapshots[e], decoding) or (moving and pending)
        decode_engines += takes(snapshots[e], True)
    if total % 7 < int(parameters[1]):
        route.engine = -1
        if (total // 7) % 3 > 0:
            route.held_queue = (total // 21) % (tiers + 1)
        return
    if requests[request].num_output_tokens == 0 and (total // 17) % 9 < int(parameters[3]):
        route.engine = REFUSE
        return
    route.engine = nth_that_takes(snapshots, decoding, total % taking, moving)
    if not decoding and decode_engines > 0 and total % 5 < int(parameters[0]):
        route.decode_engine = nth_that_takes(snapshots, True, (total // 5) % decode_engines)
    if moving:
        route.tier = (total // 13) % tiers


@scaler
def any_tier(context, moves):
    now_s, known, parameters = context.now_s, context.known, context.parameters
    tiers = known.tiers.shape[0] - 2
    total = all_known(known) + int(now_s * STEPS_PER_S)
    for e in range(moves.shape[0]):
        if (total + 5 * e) % 12 < int(parameters[1]):
            moves[e].tier = (total // 3 + e) % (tiers + 1) - 1
        if (total // 2 + 7 * e) % 12 < int(parameters[2]):
            moves[e].closed = (total // 7 + e) % 2
        if known.snapshots[e].role_fixed == 0 and (total // 3 + 11 * e) % 12 < int(parameters[3]):
            moves[e].role = 1 + (total // 5 + e) % 2


ROUTER = Policy(
    "any-engine", "router", "Hangs on all a router may know.", "made up", any_engine, moves_engines=True,
    parameters=(
        Parameter("names", 0, "of 5 requests, for how many it names the decode engine", 0, 5, integer=True),
        Parameter("holds", 0, "of 7 askings, after how many it holds the request", 0, 7, integer=True),
        Parameter("moves", 0, "of 6 engines it names, how many it moves into a tier", 0, 6, integer=True),
        Parameter("refuses", 0, "of 9 requests without a token, how many it refuses", 0, 9, integer=True),
    ),
)  # fmt: skip
SCALER = Policy(
    "any-tier", "scaler", "Hangs on all a scaler may know.", "made up", any_tier,
    parameters=(
        Parameter("interval_s", 1.0, "between checks", 0.0, 1e9),
        Parameter("moves", 0, "of 12 engines, for how many it names a tier", 0, 12, integer=True),
        Parameter("closes", 0, "of 12 engines, how many it closes or opens", 0, 12, integer=True),
        Parameter("changes", 0, "of 12 engines, to how many it gives a role", 0, 12, integer=True),
    ),
)  # fmt: skip


def everything(policy: Router | Scaler) -> int:
    """`all_known` of the reference simulator."""
    total = 0
    for snapshot in policy.snapshots:
        here = snapshot.requests + 3 * len(snapshot.record) + 7 * snapshot.record_tokens + 11 * snapshot.decodes
        here += 13 * snapshot.free_blocks + 17 * snapshot.decode_tokens + 19 * int(snapshot.changed_s * STEPS_PER_S)
        here += 23 * int(snapshot.busy_until_s * STEPS_PER_S) + 29 * snapshot.version + 31 * len(snapshot.finished)
        here += 37 * snapshot.finished_tokens + 41 * number_of(snapshot.tier) + 43 * snapshot.up + 47 * snapshot.closed
        here += 59 * snapshot.pending + 61 * snapshot.off + 71 * snapshot.changing + 73 * snapshot.output_tokens
        here += sum((place + 2) * r.index for place, r in enumerate(snapshot.record))
        here += sum((place + 3) * r.index for place, r in enumerate(snapshot.decoding))
        total += (snapshot.index + 1) * here
        if snapshot.beginnings is not None:
            total += sum(
                (snapshot.index + 2) * (chunk + 1) for places in snapshot.beginnings.sets.values() for chunk in places
            )
    return total + sum((place + 53) * len(line) for place, line in enumerate(policy.lines))


def number_of(tier: int | None) -> int:
    return -1 if tier is None else tier


class AnyEngine(Router):
    """`any_engine` of the reference simulator."""

    def __init__(self, names: int = 0, holds: int = 0, moves: int = 0, refuses: int = 0) -> None:
        self.names, self.holds, self.moves, self.refuses = names, holds, moves, refuses

    def route(self, r: Request, taking: list[EngineSnapshot], now_s: float) -> Route:
        tiers = len(self.tiers)
        total = everything(self) + r.emitted + 67 * (r.session + 1)
        if total % 7 < self.holds:
            return Route(None, line=(total // 21) % (tiers + 1) if (total // 7) % 3 > 0 else None)
        if r.emitted == 0 and (total // 17) % 9 < self.refuses:
            return Route(None, refused=True)
        moving = (total // 11) % 6 < self.moves
        taking = [v for v in self.snapshots if v.takes(r) or (moving and v.would_take(r))]
        route = Route(taking[total % len(taking)].index)
        decode_engines = [v.index for v in self.snapshots if v.up and not v.closed and v.role == "decode"]
        if r.kv_at is None and decode_engines and total % 5 < self.names:
            route.decode_engine = decode_engines[(total // 5) % len(decode_engines)]
        if moving:
            route.tier = (total // 13) % tiers
        return route


class AnyTier(Scaler):
    """`any_tier` of the reference simulator."""

    def __init__(self, interval_s: float, moves: int = 0, closes: int = 0, changes: int = 0) -> None:
        self.interval_s, self.moves, self.closes, self.changes = interval_s, moves, closes, changes

    def decide(self, now_s: float, now: list[Change]) -> list[Change]:
        total = everything(self) + int(now_s * STEPS_PER_S)
        changes: list[Change] = []
        for e, (tier, closed) in enumerate(now):
            if (total + 5 * e) % 12 < self.moves:
                number = (total // 3 + e) % (len(self.tiers) + 1) - 1
                tier = None if number < 0 else number
            if (total // 2 + 7 * e) % 12 < self.closes:
                closed = bool((total // 7 + e) % 2)
            changes.append((tier, closed))
        return changes

    def decide_roles(self, now_s: float, now: list[str]) -> list[str]:
        total = everything(self) + int(now_s * STEPS_PER_S)
        return [
            ("prefill", "decode")[(total // 5 + e) % 2]
            if not self.snapshots[e].role_fixed and (total // 3 + 11 * e) % 12 < self.changes
            else role
            for e, role in enumerate(now)
        ]
