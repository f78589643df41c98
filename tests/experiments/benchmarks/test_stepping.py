"""Vectors beside `simulate`: that both do the same, and that shares are of processor time."""

import numpy as np
import pytest

from experiments.benchmarks.environments import CLUSTER, OVERLOADED
from experiments.benchmarks.stepping import Beside, Turn, beside_simulate


@pytest.mark.parametrize(
    ("name", "spec"), [("EngineBatching-v0", OVERLOADED), ("ClusterRouting-v0", CLUSTER.replaced(load=1.6))]
)
def test_stepping_makes_the_runs_of_simulate(name, spec):
    engines = spec.fleet.total
    arguments = {"engines": engines} if engines > 1 else {}
    beside = Beside(name, spec.replaced(requests=12.0 * engines), 3, **arguments)
    _, info = beside.env.reset()
    found, steps = {}, 0
    while len(found) < 3:
        *_, info = beside.env.step(info["base_action"])
        steps += 3
        for place in np.flatnonzero(info.get("_final_info", ())).tolist():
            # Places go on with the scenarios again; the first three to end need not be the first three begun.
            found.setdefault(round(float(info["final_info"]["gain"][place]), 9), place)
        assert steps < 10 * beside.decisions
    wanted = [round(float(one.result().summary["gain"]), 9) for one in beside.simulations]
    assert set(found) <= set(wanted) and len(set(wanted)) == 3
    assert beside.simulate().decisions == beside.decisions <= beside.step().decisions < beside.decisions + 3


def test_a_share_is_of_processor_time_and_speeds_are_by_the_clock():
    step, whole = Turn(100, wall_s=2.0, cpu_s=1.0), Turn(100, wall_s=1.0, cpu_s=0.5)
    assert step.per_s == 50 and step.share_of(whole) == 0.5


def test_figures_have_their_bounds():
    beside = Beside("EngineBatching-v0", OVERLOADED.replaced(requests=12.0), 3)
    steps, share = beside_simulate(("steps", "share"), "what", beside, repetitions=2, share=0.8)
    assert (steps.name, share.name, share.at_least) == ("steps", "share", 0.8)
    assert steps.low <= steps.value <= steps.high and steps.at_least > 0 and "3" in steps.meaning
