"""Routers that look at nothing: in turn, and at random."""

from servegym.simulator.compilation import kernel
from servegym.simulator.policies import Parameter, Policy, register
from servegym.simulator.random import uniform
from servegym.simulator.routing import in_turn, nth_taker, takers
from servegym.simulator.signatures import router

STREAM = 0x726F7574  # of random numbers, apart from those of others


@kernel
def any_engine(drawn, request, views):
    """One of the engines that take the request; drawn: from 0 to 1."""
    return nth_taker(int(drawn * takers(views, request)), views, request)


@router
def random(now_s, r, requests, known, state, parameters, estimates, plan, order, route):
    views = known.views
    route.engine = any_engine(uniform(int(parameters[0]), STREAM, r), requests[r], views)


register(
    Policy(
        "round-robin", "router", "One engine after the other: request i goes to engine i mod n.",
        "QoServe, section 4; FlowPrefill, section 5", in_turn,
    )
)  # fmt: skip
register(
    Policy(
        "random", "router", "Any engine, each as likely.", "PolyServe, section 5.1", random,
        parameters=(Parameter("seed", 0, "of the random numbers", 0, 2**31 - 1, integer=True),),
    )
)  # fmt: skip
