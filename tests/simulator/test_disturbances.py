"""Noise and drift of a device, and the estimator's online correction (ProServe, section 4.1), worked by hand."""

import numpy as np
import pytest

from servegym.baselines.registry import scheduler
from servegym.errors import DeploymentError
from servegym.simulator.features.disturbances import Correction, Disturbance
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.random import normal, uniform
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import linear
from tests.timelines import iterations


def one_request(output_tokens: int, disturbance: Disturbance, correction: Correction | None = None) -> Simulation:
    """A request that decodes alone, on a device where every batch takes a second, as the estimator thinks too."""
    second = linear(t_c=1.0)
    workload = Workload.from_columns({"arrival_s": [0.0], "prompt_tokens": [1], "output_tokens": [output_tokens]})
    scenario = Scenario(
        workload, Deployment(second, second, 1000), scheduler("edf"), disturbance=disturbance, correction=correction
    )
    return Simulation(scenario, record_timeline=True)


def durations_s(simulation: Simulation) -> np.ndarray:
    return np.array([iteration.end_s - iteration.start_s for iteration in iterations(simulation.run())])


def test_drift_and_shift_multiply_the_model() -> None:
    simulation = one_request(4, Disturbance(drift_per_s=0.5, shift_s=2.0, shift_ratio=2.0))
    # Starts at 0: 1. At 1: 1 + 0.5. At 2.5, shifted: 2 (1 + 1.25). At 7: 2 (1 + 3.5).
    assert durations_s(simulation) == pytest.approx([1.0, 1.5, 4.5, 9.0], abs=1e-12)


def test_noise_has_mean_one_and_the_asked_deviation_and_is_the_seeds() -> None:
    noisy = durations_s(one_request(4000, Disturbance(noise=0.1, seed=1)))
    assert noisy.mean() == pytest.approx(1.0, abs=4 * 0.1 / np.sqrt(4000))
    assert noisy.std() == pytest.approx(0.1, rel=0.06)
    assert np.array_equal(noisy, durations_s(one_request(4000, Disturbance(noise=0.1, seed=1))))
    assert not np.array_equal(noisy, durations_s(one_request(4000, Disturbance(noise=0.1, seed=2))))


@pytest.mark.nojit
def test_random_numbers_are_uniform_and_normal() -> None:
    from scipy import stats

    u = [uniform(7, 1, counter) for counter in range(2000)]
    assert stats.kstest(u, "uniform").pvalue > 0.001
    assert stats.kstest([normal(7, 2, counter) for counter in range(2000)], "norm").pvalue > 0.001
    assert len({uniform(seed, stream, 5) for seed in range(20) for stream in range(20)}) == 400


def scales(correction: Correction, iterations_run: int) -> list[float]:
    """estimate_scale before each batch, on a device that takes 1.5 times what the estimator was fitted to."""
    simulation = one_request(iterations_run, Disturbance(shift_s=0.0, shift_ratio=1.5), correction)
    found = []
    while simulation.step():
        found.append(float(simulation.arrays.engines[0].estimate_scale))
        coefficients = simulation.arrays.estimate[0]
        assert np.array_equal(coefficients, found[-1] * simulation.arrays.fitted["scaled"][0])
    return found


@pytest.mark.nojit
def test_beta_moves_to_the_true_ratio() -> None:
    # beta <- 0.9 beta + 0.1 x 1.5 after every two iterations: 1, 1.05, 1.095, ...
    found = scales(Correction(theta=0.9, window_iterations=2), 7)
    assert found == pytest.approx([1, 1, 1.05, 1.05, 1.095, 1.095, 1.1355], abs=1e-12)
    assert scales(Correction(window_iterations=1), 80)[-1] == pytest.approx(1.5, rel=1e-3)


@pytest.mark.nojit
def test_as_printed_it_compounds_and_overshoots() -> None:
    # beta_1 = 0.9 + 0.1 x 1.5 = 1.05, scale 1.05; beta_2 = 0.9 x 1.05 + 0.1 x 1.5 / 1.05, scale 1.05 beta_2.
    beta_2 = 0.9 * 1.05 + 0.1 * 1.5 / 1.05
    found = scales(Correction(window_iterations=1, compounding=True), 60)
    assert found[:3] == pytest.approx([1, 1.05, 1.05 * beta_2], abs=1e-12)
    assert max(found) > 1.8


@pytest.mark.parametrize(("make", "names"), [
    (lambda: Disturbance(noise=-0.1), "noise"),
    (lambda: Disturbance(drift_per_s=float("nan")), "drift_per_s"),
    (lambda: Disturbance(shift_ratio=0), "shift_ratio"),
    (lambda: Correction(theta=1.0), "theta"),
    (lambda: Correction(window_iterations=0), "window_iterations"),
])  # fmt: skip
def test_bad_numbers_are_named(make, names) -> None:
    with pytest.raises(DeploymentError, match=names):
        make()
