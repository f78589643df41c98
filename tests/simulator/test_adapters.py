"""LoRA adapters: a few cases by hand, what is refused, and what holds of all runs (tests/reference has more cases)."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.baselines.registry import scheduler, scheduler_names
from servegym.errors import DeploymentError, WorkloadError
from servegym.simulator.features.adapters import Adapters, numbered, prompts_by_adapter
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.prefixes import Prompts
from servegym.simulator.records.types import SCHEDULED
from servegym.simulator.runs.loops import PLAIN, WHOLE
from servegym.simulator.runs.simulation import Simulation
from servegym.simulator.runs.streaming import StreamedSimulation, WholeTrace
from tests.simulator.forming import SECONDS as MODEL
from tests.simulator.whole_runs import finished
from tests.strategies import adapted, scenarios
from tests.timelines import iterations, lines

pytestmark = pytest.mark.nojit


def workload(*adapters: int, gap_s: float = 0.0) -> Workload:
    return Workload.from_columns(
        {
            "arrival_s": gap_s * np.arange(len(adapters)), "prompt_tokens": np.full(len(adapters), 3),
            "output_tokens": np.ones(len(adapters)), "adapter": adapters,
        }
    )  # fmt: skip


def served(work: Workload, adapters: Adapters | None, **others: Any) -> Simulation:
    policy = scheduler("vllm-v1").with_settings(watermark=0.0)
    pool = Deployment(MODEL, MODEL, 40, block_tokens=4, adapters=adapters, **others)
    return finished(Scenario(work, pool, policy))


def test_a_batch_has_at_most_max_loras() -> None:
    # Of 5, 9 and 5, 9 and 0: two may be of one adapter, and the model itself counts as none.
    simulation = served(workload(5, 9, 5, 9, 0), Adapters(1, 8.0, 2.0))
    batches = [dict(one.batch) for one in iterations(simulation.result())]
    assert batches == [{0: 3, 2: 3, 4: 3}, {1: 3, 3: 3}]
    engines = simulation.result().engines
    assert (engines["adapter_loads"][0], engines["adapter_activations"][0]) == (2, 2)


def test_what_is_given_up_is_used_least_recently() -> None:
    # Device memory has room for one, host memory for two: 8 + 2 s, or 2 s for what host memory has (1 again).
    simulation = served(workload(1, 2, 1, 3, 2, gap_s=100.0), Adapters(1, 8.0, 2.0, max_cpu_loras=2))
    plain = served(workload(0, 0, 0, 0, 0, gap_s=100.0), None)
    took_s = [[one.end_s - one.start_s for one in iterations(run.result())] for run in (simulation, plain)]
    assert np.subtract(*took_s).tolist() == [10.0, 10.0, 2.0, 10.0, 10.0]


def test_without_adapters_nothing_is_there_and_the_loop_is_the_plain_one() -> None:
    plain, given = served(workload(0, 0), None), served(workload(0, 0), Adapters(1, 8.0, 2.0))
    assert plain.loop is PLAIN and given.loop is WHOLE
    assert lines(plain.result()) == lines(given.result())
    assert "adapter" not in plain.result().requests and "adapter_loads" not in plain.result().engines
    assert workload(0, 0).digest != workload(0, 1).digest


def test_numbers_go_without_gaps() -> None:
    assert numbered(np.array([7, 0, 3, 7])).tolist() == [2, 0, 1, 2]
    assert numbered(np.array([7, 3])).tolist() == [2, 1]


def test_prompts_of_two_adapters_share_nothing() -> None:
    prompts = Prompts(2, np.array([0, 2, 4, 6]), np.array([0, 1, 0, 1, 0, 1]))
    apart = prompts_by_adapter(prompts, np.array([4, 0, 4]))
    assert apart is not None and apart.chunks.tolist() == [2, 3, 0, 1, 2, 3]
    assert prompts_by_adapter(prompts, np.zeros(3, "i4")) is prompts


@pytest.mark.parametrize(("numbers", "says"), [
    ((0, 1.0, 1.0), "max_loras is 0; it should be a whole number from 1 to 4096"),
    ((2.5, 1.0, 1.0), "max_loras is 2.5; it"),
    ((4, 1.0, 1.0, 3), "max_cpu_loras is 3; it should be max_loras, 4, or more"),
    ((4, -1.0, 1.0), "load_s is -1.0; it should be 0 or more"),
    ((4, 1.0, np.inf), "activate_s is inf; it should be 0 or more"),
])  # fmt: skip
def test_numbers_that_cannot_be(numbers: tuple, says: str) -> None:
    with pytest.raises(DeploymentError, match=f"^LoRA adapters: {says}"):
        Adapters(*numbers)


def test_a_batch_that_is_formed_ahead_loads_while_another_runs() -> None:
    """A batch computes for 1 s and 1 s a token, and loads for 8 s. The second, formed at once, loads from 8 s to 16 s,
    and activates for 2 s once the first has ended: at 14 s it has to wait for 2 s and 2 s, at 17 s for 2 s."""
    lora = Adapters(1, 8.0, 2.0)
    first_is_short, first_is_long = (
        [(one.start_s, one.end_s, dict(one.batch)) for one in iterations(simulation.result())]
        for simulation in (served(workload(*names), lora, async_scheduling=True) for names in ((5, 9, 9), (5, 9, 5)))
    )
    assert first_is_short == [(0.0, 14.0, {0: 3}), (14.0, 25.0, {1: 3, 2: 3})]
    assert first_is_long == [(0.0, 17.0, {0: 3, 2: 3}), (17.0, 23.0, {1: 3})]


def test_what_is_refused() -> None:
    with pytest.raises(DeploymentError, match="request 1: it names LoRA adapter 6, and deployment has none; give its"):
        served(workload(0, 6), None)
    with pytest.raises(WorkloadError, match="request 0: adapter is -1; it should be 0 or more"):
        workload(-1)


def test_a_streamed_trace_has_none() -> None:
    pool = Deployment(MODEL, MODEL, 40, block_tokens=4)
    scenario = Scenario(workload(0, 0), pool, scheduler("vllm-v1"))
    streamed = StreamedSimulation(scenario, WholeTrace(workload(0, 0), 2, 3.0, 1.0))
    with pytest.raises(DeploymentError, match="names LoRA adapter 1"):
        list(streamed.stream(iter([workload(0, 1)])))
    lora = dataclasses.replace(scenario, deployment=dataclasses.replace(pool, adapters=Adapters(1, 0.0, 0.0)))
    with pytest.raises(DeploymentError, match="cannot be streamed with LoRA adapters"):
        StreamedSimulation(lora, WholeTrace(workload(0, 0), 2, 3.0, 1.0))


@given(data=st.data())
def test_no_batch_has_too_many_and_all_tokens_come_out(data: st.DataObject) -> None:
    scenario = data.draw(adapted(scenarios(data.draw(st.sampled_from(scheduler_names())), grouped=True)))
    simulation = Simulation(scenario, record_timeline=True)
    result, arrays = simulation.run(), simulation.arrays
    table, adapters = scenario.workload.table, scenario.deployment.pools[0].adapters
    assert adapters is not None
    np.testing.assert_array_equal(arrays.requests["num_output_tokens"], table["output_tokens"])
    for one in iterations(result):
        assert len({int(table["adapter"][r]) for r, _ in one.batch} - {0}) <= adapters.max_loras
    used: list[set[int]] = [set() for _ in arrays.engines]
    for line in lines(result):
        if line.kind == SCHEDULED:
            used[line.engine] |= {int(table["adapter"][line.request])} - {0}
    for engine, rows, names in zip(arrays.engines, arrays.adapters, used, strict=True):
        there = {"host": rows["host_use"] > 0, "device": rows["device_use"] > 0}
        assert (there["device"] <= there["host"]).all() and not there["host"][0]
        assert engine.adapters.in_host == there["host"].sum() <= adapters.values["max_cpu_loras"]
        assert engine.adapters.in_device == there["device"].sum() <= adapters.max_loras
        assert engine.adapters.activations >= engine.adapters.loads >= len(names)
