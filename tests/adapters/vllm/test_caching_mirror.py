"""The caching mirror plans what the simulator does with prefix caching, and what it plans to find is there."""

from typing import Any

import numpy as np
import pytest

from experiments.engines.plugin_prefixes import demanding_sessions
from experiments.engines.prefix_parity import simulate
from experiments.engines.vllm_driving import Limits, Step
from servegym.adapters.vllm import block_kernels, planned_blocks
from servegym.adapters.vllm.block_log import chunk_numbers
from servegym.adapters.vllm.caching_mirror import names
from servegym.baselines import registry
from servegym.latency_models.profile import load_profile
from servegym.simulator.features.disturbances import Correction
from servegym.simulator.policies.policy import get_policy
from tests.adapters.vllm.caching_engine import MOST, Engine
from tests.seeds import slow_but

registry.load()
PROFILE = load_profile("a100-llama3-8b")
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "policy",
    slow_but(
        ("slide-batching",),
        [
            "slide-batching", "expected-gain", "vllm-v1:max_num_batched_tokens=200",
            "sarathi-fcfs:max_num_batched_tokens=256",
        ],
    ),
)  # fmt: skip
@pytest.mark.parametrize(
    ("blocks", "seed"), [pytest.param(1500, 1, marks=SLOW), pytest.param(450, 2, marks=SLOW), (350, 6)]
)
def test_plans_what_the_simulator_does(policy: str, blocks: int, seed: int) -> None:
    workload, chosen = demanding_sessions(seed, 16, 6.0), get_policy("scheduler", policy)
    limits = Limits(blocks, max_num_batched_tokens=2**16, prefix_caching=True)
    _, expected = simulate(workload, limits, chosen, PROFILE, Correction())
    engine = Engine(workload, limits, chosen, PROFILE)
    got = engine.serve()
    for number, (ours, theirs) in enumerate(zip(got, expected, strict=False)):
        assert (ours.start_s, ours.end_s) == (theirs.start_s, theirs.end_s), f"step {number}"
        assert ours.scheduled == theirs.scheduled, f"step {number}"
        assert (ours.preempted, ours.cached_tokens) == (theirs.preempted, theirs.cached_tokens), f"step {number}"
    assert len(got) == len(expected) > 300
    found = sum(step.cached_tokens[r] for step in got for r, _ in step.scheduled if step.cached_tokens[r] % 16 == 0)
    assert found > 0
    assert engine.mirror.queue_length == 0
    assert engine.mirror.free_blocks == blocks
    assert engine.mirror.run.engines[0].running == 0


@SLOW
def test_memory_is_short_enough_in_one_of_these_for_evictions() -> None:
    limits = Limits(350, max_num_batched_tokens=2**16, prefix_caching=True)
    engine = Engine(demanding_sessions(6, 16, 6.0), limits, get_policy("scheduler", "slide-batching"), PROFILE)
    assert sum(len(step.preempted) for step in engine.serve()) > 5


class Restless(Engine):
    """Makes plans that are not carried out, within limits of several sizes; after each the pools are to be equal."""

    def __init__(self, *arguments: Any, seed: int):
        super().__init__(*arguments)
        self.random, self.different = np.random.default_rng(seed), 0

    def compare(self) -> None:
        ours, mirror = self.mirror.scratch.cache, self.mirror
        self.different += bool((ours.blocks != mirror.run.cache.blocks).any())
        planned_blocks.bring_up_to_date.entry(mirror.scratch, mirror.run, mirror.moved)
        np.testing.assert_array_equal(ours.blocks, mirror.run.cache.blocks)
        np.testing.assert_array_equal(ours.places, mirror.run.cache.places)
        assert (mirror.moved == planned_blocks.nothing_moved(mirror.total_blocks)).all()
        for row in self.row_of.values():
            cells = mirror._cells(row)
            held = slice(cells.start, cells.start + int(mirror.run.requests["blocks"][row]))
            np.testing.assert_array_equal(ours.tables[held], mirror.run.cache.tables[held])

    def step(self, now_s: float) -> Step:
        self.tell()
        for _ in range(int(self.random.integers(3))):
            free = int(self.random.integers(len(self.pool.free) + 1))
            self.mirror.plan(now_s, free, int(self.random.choice([64, 500, MOST])), MOST, MOST)
            if self.random.random() < 0.5:
                self.compare()
        if self.random.random() < 0.5:
            self.compare()
        return super().step(now_s)


@SLOW
@pytest.mark.parametrize("policy", ["slide-batching", "vllm-v1:max_num_batched_tokens=200"])
@pytest.mark.parametrize(("blocks", "seed"), [(1500, 1), (350, 6)])
def test_plans_leave_nothing_behind(policy: str, blocks: int, seed: int) -> None:
    limits = Limits(blocks, max_num_batched_tokens=2**16, prefix_caching=True)
    workload, chosen = demanding_sessions(seed, 16, 6.0), get_policy("scheduler", policy)
    engine = Restless(workload, limits, chosen, PROFILE, seed=seed)
    engine.serve()
    engine.compare()
    assert engine.different > 100


def test_a_reset_reaches_plans() -> None:
    limits = Limits(1500, max_num_batched_tokens=2**16, prefix_caching=True)
    engine = Restless(demanding_sessions(1, 4, 6.0), limits, get_policy("scheduler", "slide-batching"), PROFILE, seed=1)
    engine.serve()
    assert engine.mirror.run.cache.blocks["name"].any()
    engine.mirror.replay(np.array([[block_kernels.RESET, 0, 0]]))
    engine.compare()
    assert not engine.mirror.scratch.cache.blocks["name"].any()


def test_numbers_of_hashes_are_those_of_their_first_bits() -> None:
    hashes = [bytes(range(n, n + 32)) for n in range(5)] + [b"\xff" * 32, b"\x00" * 32]
    numbers = chunk_numbers(hashes)
    assert numbers.tolist() == [int.from_bytes(key[:4], "little") >> 1 for key in hashes]
    assert numbers.dtype == np.int32 and (numbers >= 0).all()
    together = names(numbers, 3)
    assert len(set(together.tolist())) == len(hashes)
    assert (together > 0).all()
