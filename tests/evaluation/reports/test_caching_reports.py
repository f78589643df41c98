"""What reports make of the timeline of engines that cache prefixes: the simulator's own memory, and its decodes."""

import dataclasses

import numpy as np
import pytest

from servegym.evaluation.reports.iterations import iterations
from servegym.evaluation.reports.memory import kv_blocks
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.runs.simulation import Simulation
from tests.evaluation.reports.test_tables import read_slowly


@pytest.fixture(scope="module", params=[1, 2], ids=["one engine", "two"])
def cached(request: pytest.FixtureRequest) -> Simulation:
    """Sessions on engines so short of memory that requests are evicted, and find what they have left."""
    spec = ServingSpec().replaced(
        trace="chat-sessions", rate_per_s=30.0, requests=80, scheduler="vllm-v1:reserve_full=0",
        **({"engines": 2, "router": "round-robin"} if request.param == 2 else {}),
    )  # fmt: skip
    scenario = spec.build(seed=2)
    table = scenario.workload.table
    blocks = -(-int((table["prompt_tokens"] + table["output_tokens"]).max()) * 3 // 32)
    deployment = dataclasses.replace(scenario.deployment, total_blocks=blocks)
    simulation = Simulation(dataclasses.replace(scenario, deployment=deployment), record_timeline=True)
    simulation.run()
    assert simulation.arrays.engines["totals"]["evictions"].sum() > 0
    assert simulation.arrays.outcomes["cached_tokens"].sum() > 0
    return simulation


def test_memory_is_the_simulators_own(cached: Simulation) -> None:
    result = cached.result()
    for engine, (time_s, blocks) in zip(cached.arrays.engines, kv_blocks(result), strict=True):
        seconds = np.diff(np.r_[time_s, result.summary["span_s"]]) @ blocks
        assert blocks[-1] == 0 and blocks.max() <= engine.total_blocks
        assert seconds == pytest.approx(engine.totals.block_seconds)


@pytest.mark.slow
def test_decodes_and_chunks_are_what_a_slow_reading_finds(cached: Simulation) -> None:
    result = cached.result()
    table = iterations(result)
    found = list(table[["prefill_requests", "decode_requests", "prefill_tokens"]].itertuples(index=False, name=None))
    assert found == read_slowly(result)[0]
    assert table["prefill_tokens"].sum() + table["decode_tokens"].sum() == result.engines["scheduled_tokens"].sum()
