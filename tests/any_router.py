"""A router that means nothing: its choice hangs on all it may know.

So that what a router knows is compared with the reference simulator field by field.
"""

from servegym.simulator.policies import Parameter, Policy
from servegym.simulator.signatures import router
from servegym.simulator.types import ROLE_DECODE
from tests.reference.requests import Request
from tests.reference.routers import Router
from tests.reference.views import View

STEPS_PER_S = 64.0  # times count in steps of this


@router
def any_engine(now_s, request, requests, views, records, state, parameters, estimates, plan, order, route):
    total = 0
    for e in range(views.shape[0]):
        view = views[e]
        known = view.requests + 3 * view.prefills + 7 * view.prefill_tokens + 11 * view.decodes + 13 * view.free_blocks
        known += 17 * view.decode_tokens + 19 * int(view.changed_s * STEPS_PER_S)
        for place in range(view.prefills):
            known += (place + 2) * records[e, place]
        total += (e + 1) * known
    decoding = requests[request].emitted_tokens > 0
    taking, decode_engines = 0, 0
    for e in range(views.shape[0]):
        if views[e].role == ROLE_DECODE:
            decode_engines += 1
        elif not decoding:
            taking += 1
    if decoding:
        taking = decode_engines
    chosen, named = total % taking, -1
    if not decoding and decode_engines > 0 and total % 5 < int(parameters[0]):
        named = (total // 5) % decode_engines
    place, decode_place = 0, 0
    for e in range(views.shape[0]):
        if views[e].role == ROLE_DECODE:
            if decoding and decode_place == chosen:
                route.engine = e
            if decode_place == named:
                route.decode_engine = e
            decode_place += 1
        else:
            if not decoding and place == chosen:
                route.engine = e
            place += 1


POLICY = Policy(
    "any-engine", "router", "Hangs on all a router may know.", "made up", any_engine,
    parameters=(Parameter("names", 0, "of 5 requests, for how many it names the decode engine", 0, 5, integer=True),),
)  # fmt: skip


class AnyEngine(Router):
    """The same, of the reference simulator."""

    def __init__(self, names: int = 0) -> None:
        self.names = names

    def total(self) -> int:
        total = 0
        for view in self.views:
            known = view.requests + 3 * len(view.record) + 7 * view.record_tokens + 11 * view.decodes
            known += 13 * view.free_blocks + 17 * view.decode_tokens + 19 * int(view.changed_s * STEPS_PER_S)
            known += sum((place + 2) * r.index for place, r in enumerate(view.record))
            total += (view.index + 1) * known
        return total

    def choose(self, r: Request, views: list[View], now_s: float) -> View:
        total = self.total()
        decode_engines = [view.index for view in self.views if view.role == "decode"]
        names = len(decode_engines) > 0 and total % 5 < self.names
        self.named = decode_engines[total // 5 % len(decode_engines)] if names else None
        return views[total % len(views)]

    def decode_engine(self, r: Request) -> int | None:
        return self.named
