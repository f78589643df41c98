"""The router's index of what it has sent is kept where somebody reads it, and changes nothing where nobody does."""

import pytest

from servegym.scenarios.demand import Demand
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.compilation.settings import JIT_DISABLED
from servegym.simulator.runs.simulation import Simulation


def sessions(name: str, watched: bool) -> Simulation:
    spec = ServingSpec(Demand(window="first")).with_overrides(
        {"trace": "chat-sessions", "requests": 60, "rate_per_s": 20, "engines": 2, "router": name}
    )
    return Simulation(spec.build(), watched=watched)


@pytest.mark.skipif(JIT_DISABLED, reason="what kernels reach is not looked for")
def test_it_is_kept_for_those_that_read_it():
    for name in ("min-load", "round-robin", "gorouting", "polyserve"):
        assert not sessions(name, False).settings.indexed, name
    for name in ("kv-aware", "lost-gain", "predicted-cost", "prefix-affinity"):
        assert sessions(name, False).settings.indexed, name


def test_what_does_not_read_it_decides_the_same():
    kept, not_kept = sessions("min-load", True), sessions("min-load", False)
    assert kept.run().requests.equals(not_kept.run().requests)
    assert (kept.router_state.known.snapshots["index_uses"] > 0).all()
    if not JIT_DISABLED:
        assert not_kept.router_state.known.snapshots["index_uses"].sum() == 0
        assert not not_kept.router_state.known.prefixes.sent["used"].any()
