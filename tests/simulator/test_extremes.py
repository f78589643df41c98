"""Numbers that no device has end a run with one line that says where, and never with a warning or a result."""

import dataclasses
import math
import warnings
from collections.abc import Iterator

import numpy as np
import pytest

from servegym.baselines.registry import router, scheduler
from servegym.errors import DeploymentError, PolicyError, WorkloadError
from servegym.latency_models.model import LatencyModel
from servegym.simulator.compilation.settings import JIT_DISABLED
from servegym.simulator.features.disturbances import Correction, Disturbance
from servegym.simulator.features.operators import Operators
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.fleet.scaling import stay
from servegym.simulator.inputs.cluster import Cluster, Link
from servegym.simulator.inputs.deployment import Deployment, HostMemory
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.policy import Parameter, Policy
from servegym.simulator.records.types import LATEST_S, MOST_CHECKS
from servegym.simulator.runs.simulation import Simulation
from tests import random_scheduler
from tests.simulator.forming import SECONDS, linear


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        if not JIT_DISABLED:  # kernels give none; as plain Python they compute with NumPy's scalars
            warnings.simplefilter("error", RuntimeWarning)
        yield


def scenario(device: LatencyModel, estimator: LatencyModel | None = None, **changes: object) -> Scenario:
    """Three requests of three tokens, one after the other, on an engine."""
    workload = Workload.from_columns(
        {"arrival_s": [0.0, 1.0, 2.0], "prompt_tokens": [4, 4, 4], "output_tokens": [3, 3, 3]}
    )
    deployment = Deployment(device, estimator or device, 1000, name="thing")
    return dataclasses.replace(Scenario(workload, deployment, scheduler("edf")), **changes)  # type: ignore[arg-type]


def ends(wrong: Scenario, error: type[Exception] = DeploymentError) -> str:
    """The line in which a run ends, stepped or not."""
    with pytest.raises(error) as ran:
        Simulation(wrong).run()
    with pytest.raises(error) as walked:
        simulation = Simulation(wrong)
        while simulation.step():
            pass
    assert str(ran.value) == str(walked.value)
    assert "\n" not in str(ran.value)
    return str(ran.value)


SECOND = linear(t_c=1.0)


@pytest.mark.nojit
@pytest.mark.parametrize("t_c", [1e13, 1e300, 1.7e308])
def test_a_duration_that_is_no_time(t_c: float) -> None:
    line = ends(scenario(linear(t_c=t_c), SECOND))
    assert f"engine 0 (thing): the device model says that a batch of 1 requests and 4 tokens takes {t_c:g} s" in line
    assert "together it should be 0 to 1e+12 s" in line


@pytest.mark.nojit
@pytest.mark.parametrize("disturbance", [Disturbance(drift_per_s=1e308), Disturbance(shift_s=1.5, shift_ratio=1e308)])
def test_a_disturbance_that_makes_it_none(disturbance: Disturbance) -> None:
    line = ends(scenario(SECOND, disturbance=disturbance))
    assert "takes 1 s, to which come noise, drift and 0 s for moving KV; together it should be 0 to 1e+12 s" in line


@pytest.mark.nojit
def test_moving_kv_that_makes_it_none() -> None:
    host = HostMemory(9, 0.0, 1e308)
    tight = Deployment(SECOND, SECONDS, 4, block_tokens=4, host=host, name="thing", watermark=0.0)
    workload = Workload.from_columns(
        {"arrival_s": [0.0, 0.0], "prompt_tokens": [7, 7], "output_tokens": [9, 9], "ttft_slo_s": [1.0, 2.0]}
    )
    line = ends(Scenario(workload, tight, random_scheduler.POLICY.with_settings(keep_tokens=100)))
    assert "s for moving KV; together it should be 0 to 1e+12 s" in line


@pytest.mark.nojit
def test_an_estimate_that_is_no_time() -> None:
    line = ends(scenario(SECOND, linear(t_c=1e308)))
    assert (
        "engine 0 (thing): the estimator, times 1, says that a batch of 1 requests and 4 tokens takes 1e+308 s" in line
    )
    assert "it should say 0 to 1e+12 s" in line


@pytest.mark.nojit
@pytest.mark.parametrize("compounding", [True, False])
def test_a_correction_beyond_all_numbers(compounding: bool) -> None:
    line = ends(scenario(SECOND, linear(t_c=5e-324), correction=Correction(0.0, 1, compounding)))
    assert "engine 0 (thing): online correction multiplies the estimator by inf" in line
    assert "fit the one to the other or leave out the correction" in line


@pytest.mark.nojit
def test_a_large_correction_is_none_of_these() -> None:
    """1e300 times a fit of 1e-300 s is a second."""
    simulation = Simulation(scenario(SECOND, linear(t_c=1e-300), correction=Correction(0.0, 1)))
    assert simulation.run().summary["finished"] == 3
    assert simulation.arrays.estimate[0].max() == pytest.approx(1.0)


def test_kv_that_never_comes() -> None:
    pools = tuple(Deployment(SECOND, SECOND, 100, role=role) for role in ("prefill", "decode"))
    for link, when in ((Link(1.0, 1.0, 1e300), "1e+300"), (Link(1e308, 1e-300), "inf")):
        line = ends(scenario(SECOND, deployment=Cluster(pools, link)))
        assert (
            f"there is no event before 1e+12 s, the latest time of a run: the KV of request 0 comes at {when} s" in line
        )
    assert Simulation(scenario(SECOND, deployment=Cluster(pools, Link(1.0, 1.0, 1e300)), until_s=60.0)).run()


def test_what_comes_later_than_any_run() -> None:
    with pytest.raises(WorkloadError, match=r"arrival_s is 1e\+300; it should be a time from 0 to 1e\+12 s"):
        Workload.from_columns({"arrival_s": [1e300], "prompt_tokens": [1], "output_tokens": [1]})
    pools = (Deployment(SECOND, SECOND, 100, engines=2),)
    late = (Incident(0.5, 0, "fail"), Incident(0.5, 1, "fail"), Incident(1e300, 0, "return"))
    line = ends(scenario(SECOND, deployment=Cluster(pools), incidents=late, router=router("min-load")))
    assert "the incident 'return' of engine 0 comes at 1e+300 s" in line


def asked_every(interval_s: float) -> Policy:
    return Policy(
        "eager", "scaler", "Does nothing, often.", "made up", stay,
        parameters=(Parameter("interval_s", interval_s, "between checks", 0.0, 1e9, "s"),),
    )  # fmt: skip


@pytest.mark.parametrize(("interval_s", "device_s"), [(1e-3, 1e6), (1e-9, 1e3), (1e-300, 1.0)])
def test_a_scaler_that_is_asked_millions_of_times_while_nothing_happens(interval_s: float, device_s: float) -> None:
    cluster = Cluster((Deployment(linear(t_c=device_s), SECOND, 100, engines=2),), name="two")
    line = ends(scenario(SECOND, deployment=cluster, scaler=asked_every(interval_s)), PolicyError)
    assert f"scaler eager is asked every {interval_s:g} s, and would be more than 1,000,000 times before any" in line
    assert "it should have a longer interval_s" in line


def test_a_scaler_that_is_asked_as_often_as_it_may() -> None:
    interval_s = 2.0**-16
    cluster = Cluster((Deployment(linear(t_c=MOST_CHECKS / 2**18), SECOND, 100, engines=2),))
    simulation = Simulation(scenario(SECOND, deployment=cluster, scaler=asked_every(interval_s)))
    assert simulation.run().summary["finished"] == 3
    assert simulation.arrays.status[0].scaler.next_check_s > simulation.arrays.status[0].now_s > 3.0


def test_every_number_of_a_result_is_finite_up_to_the_latest_time() -> None:
    result = Simulation(scenario(linear(t_c=LATEST_S / 10))).run()
    assert result.summary["finished"] == 3
    numbers = [value for value in result.summary.values() if isinstance(value, float)]
    assert np.isfinite(numbers).all() and max(numbers) > LATEST_S / 10
    with pytest.raises(DeploymentError, match="there is no event before"):
        Simulation(scenario(linear(t_c=LATEST_S / 3))).run()


@pytest.mark.parametrize(("make", "names"), [
    (lambda: Disturbance(noise=11.0), "noise is 11.0; it should be from 0 to 10"),
    (lambda: Disturbance(noise=math.inf), "noise is inf"),
    (lambda: Disturbance(drift_per_s=math.inf), "drift_per_s is inf"),
    (lambda: Correction(window_iterations=1.5), "window_iterations is 1.5; it should be a whole number"),  # type: ignore[arg-type]
    (lambda: Correction(window_iterations=math.inf), "window_iterations is inf"),  # type: ignore[arg-type]
    (lambda: Operators(2**17, np.ones((1, 4))), "layers is 131072; it should be a whole number from 1 to 65536"),
])  # fmt: skip
def test_settings_that_no_run_can_have(make, names) -> None:
    with pytest.raises(DeploymentError, match=names):
        make()


@dataclasses.dataclass(frozen=True)
class Changed:
    """A model with other numbers than it was made with."""

    model: LatencyModel
    coefficients: np.ndarray
    scaled: object

    def __getattr__(self, name: str) -> object:
        return getattr(self.model, name)


@pytest.mark.parametrize(("coefficients", "scaled", "line"), [
    ([1.0] * 6, None, r"estimator: `scaled` is object\[\]; it should be bool\[6\], True for each"),
    ([1.0] * 6, [True] * 5, r"`scaled` is bool\[5\]"),
    ([1.0] * 6, [1.0] * 6, r"`scaled` is float64\[6\]"),
    ([1] * 6, [True] * 6, r"estimator: coefficients are int64\[6\]"),
    ([math.nan] * 6, [True] * 6, r"or not finite; they should be finite float64\[k\]"),
    ([[1.0] * 6], [[True] * 6], r"coefficients are float64\[1, 6\]"),
])  # fmt: skip
def test_coefficients_that_no_kernel_can_take(coefficients: list, scaled: object, line: str) -> None:
    wrong = Changed(SECOND, np.array(coefficients), None if scaled is None else np.array(scaled))
    with pytest.raises(DeploymentError, match=line):
        Deployment(SECOND, wrong, 100)  # type: ignore[arg-type]
