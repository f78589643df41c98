"""The same scenario gives the same bytes, whatever is registered and however it is run; no array is read past its end.

`make bounds` runs this file with kernels that check every index (NUMBA_BOUNDSCHECK=1), and with SERVEGYM_EPISODES of
each form; without it, a read beyond an array would only show where what lies there has changed between two runs.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegym.baselines.registry import scheduler
from servegym.errors import ServegymError
from servegym.latency_models.forms import estimator_forms
from servegym.latency_models.model import LatencyModel
from servegym.simulator.features.disturbances import Correction, Disturbance
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.simulation import Simulation
from tests.episodes import episodes
from tests.simulator.test_cluster_properties import bytes_of

EPISODES = int(os.environ.get("SERVEGYM_EPISODES", "25"))  # of each form


@contextlib.contextmanager
def nothing_ignored() -> Iterator[None]:
    """What a policy raises where a kernel calls it, nobody is told but this hook: there must be nothing."""
    raised: list[Any] = []
    before, sys.unraisablehook = sys.unraisablehook, raised.append
    try:
        yield
    finally:
        sys.unraisablehook = before
    assert not raised, raised[0].exc_value


def to_the_end(simulation: Simulation) -> None:
    simulation.run()


def stepped(simulation: Simulation) -> None:
    while simulation.step():
        pass


def outcome(simulation: Simulation, run: Callable[[Simulation], None] = to_the_end) -> dict[str, bytes] | str:
    """Every byte of a run, or the line in which it ended; what a kernel raised is no such ending."""
    other = [np.full(size, np.nan) for size in (7, 150, 3000)]  # so that what lies behind an array changes
    try:
        with nothing_ignored():
            run(simulation)
    except ServegymError as error:
        assert not simulation.failures, simulation.failures[0]
        return str(error)
    finally:
        del other
    return bytes_of(simulation)


def copied_on_the_way(simulation: Simulation) -> None:
    """Goes on from a copy, after another has gone to the end."""
    for _ in range(5):
        if not simulation.step():
            return
    copy, another = simulation.copy(), simulation.copy()
    with contextlib.suppress(ServegymError):
        another.run()
    simulation.arrays, simulation.router_state = copy.arrays, copy.router_state
    stepped(simulation)


def without_timeline(ended: dict[str, bytes] | str) -> Any:
    return ended if isinstance(ended, str) else {k: v for k, v in ended.items() if k not in ("timeline", "status")}


@pytest.mark.slow
@pytest.mark.parametrize("form", estimator_forms())
@settings(max_examples=EPISODES)
@given(data=st.data())
def test_a_scenario_has_one_outcome_however_it_is_run(form: str, data: Any) -> None:
    scenario = data.draw(episodes(form))
    simulation = Simulation(scenario, record_timeline=True)
    first = outcome(simulation)
    engines = simulation.arrays.engines
    assert (engines["iterations"] <= engines["scheduled_tokens"]).all(), "an iteration that computes nothing"
    simulation.reset()
    assert outcome(simulation) == first, "reset"
    assert outcome(Simulation(scenario, record_timeline=True)) == first, "afresh"
    assert outcome(Simulation(scenario, record_timeline=True), stepped) == first, "stepped"
    assert outcome(Simulation(scenario, record_timeline=True), copied_on_the_way) == first, "copied"
    assert without_timeline(outcome(Simulation(scenario))) == without_timeline(first), "without a timeline"


@pytest.mark.slow
@pytest.mark.parametrize("form", estimator_forms())
@settings(max_examples=EPISODES)
@given(data=st.data())
def test_a_corrected_estimator_keeps_what_is_no_time(form: str, data: Any) -> None:
    """Knots, sizes and lengths are those of the fit at every decision, and times are those of the fit, scaled."""
    simulation = Simulation(data.draw(episodes(form)))
    pools = [pool for pool in simulation.settings.cluster.pools for _ in range(pool.engines)]
    for _ in range(data.draw(st.integers(1, 40), label="decisions")):
        try:
            with nothing_ignored():
                if not simulation.step():
                    break
        except ServegymError:
            break
        e = int(simulation.arrays.status[0].deciding_engine)
        fit, scale = pools[e].estimator, float(simulation.arrays.engines[e].estimate_scale)
        estimate = simulation.arrays.estimate[e, : len(fit.coefficients)]
        assert np.array_equal(estimate, np.where(fit.scaled, scale * fit.coefficients, fit.coefficients))
        assert not simulation.arrays.estimate[e, len(fit.coefficients) :].any()


@pytest.mark.skipif(not numba.config.BOUNDSCHECK, reason="kernels do not check their indices: see `make bounds`")
def test_a_read_beyond_an_array_is_noticed() -> None:
    """With every number of a table scaled, its sizes too, as if its form had said so."""
    model = LatencyModel.from_values(
        "table", {"t_c": 1.0, "tokens": [0.0, 1.0], "cached_tokens": [0.0, 1.0], "table_s": [1.0, 1.0, 2.0, 2.0]}
    )
    workload = Workload.from_columns({"arrival_s": [0.0], "prompt_tokens": [1], "output_tokens": [9]})
    scenario = Scenario(
        workload, Deployment(model, model, 1000), scheduler("edf"),
        disturbance=Disturbance(shift_s=0.0, shift_ratio=9.0), correction=Correction(0.0, 1),
    )  # fmt: skip
    simulation = Simulation(scenario)
    fitted = simulation.arrays.fitted
    fitted["scaled"] += fitted["fixed"]
    fitted["fixed"] = 0.0
    with pytest.raises((AssertionError, ServegymError, IndexError), match="out of bounds"):
        outcome(simulation)
