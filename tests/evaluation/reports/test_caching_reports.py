"""What reports make of the timeline of engines that cache prefixes: the simulator's own memory, and its decodes."""

import dataclasses

import numpy as np
import pytest

from servegym.evaluation.reports.iterations import iterations
from servegym.evaluation.reports.memory import kv_blocks
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.simulation import Simulation


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


def test_decodes_and_chunks_are_what_a_slow_reading_finds(cached: Simulation) -> None:
    result = cached.result()
    prompt = result.scenario.workload.table["prompt_tokens"]
    emitted, computed = np.zeros(len(prompt), int), np.zeros(len(prompt), int)
    batches: list[list[int]] = []
    for line in result.timeline.itertuples():
        r = line.request
        if line.kind == "batch_start":
            batches.append([0, 0, 0])
        elif line.kind == "scheduled":
            decoding = bool(emitted[r] > 0 and prompt[r] + emitted[r] - computed[r] == 1)
            batches[-1][decoding] += 1
            batches[-1][2] += 0 if decoding else line.tokens
            computed[r] += line.tokens
        elif line.kind == "found":
            computed[r] = line.tokens
        elif line.kind == "evicted":
            computed[r] = 0
        elif line.kind == "token":
            emitted[r] += 1
    table = iterations(result)
    found = table[["prefill_requests", "decode_requests", "prefill_tokens"]].to_numpy().tolist()
    assert found == batches
    assert table["prefill_tokens"].sum() + table["decode_tokens"].sum() == result.engines["scheduled_tokens"].sum()
