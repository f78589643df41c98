"""Routers that ignore the state of engines: round robin, and random."""

from servegym.policy import Parameter, Parameters, Policy, in_turn, kernel, nth_taker, register, router, takers, uniform

STREAM = 0x726F7574  # random stream of this router alone
P = Parameters(Parameter("seed", 0, "seed of the random numbers", 0, 2**31 - 1, integer=True))


@kernel
def any_engine(drawn, request, snapshots):
    """Return one of the engines that take the request. drawn: a uniform number from 0 to 1."""
    return nth_taker(int(drawn * takers(snapshots, request)), snapshots, request)


@router
def random(context, request, route):
    drawn = uniform(P.read(context).seed, STREAM, request)
    route.engine = any_engine(drawn, context.requests[request], context.known.snapshots)


register(
    Policy(
        "round-robin", "router", "One engine after the other: request i goes to engine i mod n.",
        "QoServe, section 4; FlowPrefill, section 5", in_turn,
    )
)  # fmt: skip
register(
    Policy(
        "random", "router", "A random engine, all equally likely.", "PolyServe, section 5.1", random,
        parameters=P,
    )
)  # fmt: skip
