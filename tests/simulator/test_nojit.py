"""Every scheduler and rule as plain Python and compiled: the same figures, to the last bit.

Run with NUMBA_DISABLE_JIT=1 these scenarios show the coverage of the kernels; `make coverage` does.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from servegym.baselines.registry import scheduler, scheduler_names
from servegym.simulator.compilation.settings import JIT_DISABLED
from servegym.simulator.features.disturbances import Correction, Disturbance
from servegym.simulator.inputs.deployment import Deployment, HostMemory
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.gains import FUNCTIONS, Gain
from servegym.simulator.policies.policy import Policy
from servegym.simulator.records.types import EVICT_FOR_RUNNING
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import by_place, linear
from tests.simulator.replay import replay
from tests.simulator.test_statistics import LEAST_SERVED_FIRST

pytestmark = pytest.mark.nojit

ROOT = Path(__file__).resolve().parents[2]
RANDOM_SETTINGS = 2  # drawn for each scheduler
HOST = HostMemory(8, load_s_per_token=1e-3, save_s_per_token=2e-3)


def workload(seed: int, n: int) -> Workload:
    """Bursts of small requests, a third of them late however they are served."""
    rng = np.random.default_rng(seed)
    return Workload.from_columns({
        "arrival_s": np.cumsum(rng.choice([0.0, 0.0, 0.0, 0.125, 2.0], n)),
        "prompt_tokens": rng.integers(1, 40, n),
        "output_tokens": rng.choice([1, 2, 5, 9], n),
        "priority": rng.integers(0, 3, n),
        "weight": rng.choice([1.0, 2.0], n),
        "ttft_slo_s": rng.choice([0.125, 1.0, 8.0], n),
        "tpot_slo_s": rng.choice([0.03125, 0.25], n),
        "ttlt_slo_s": rng.choice([np.inf, np.inf, 4.0], n),
        "client": rng.integers(0, 3, n),
        "application": rng.integers(0, 3, n),
        "urgency": rng.integers(0, 3, n),
        "predicted_output_tokens": rng.choice([np.nan, 1.0, 4.0, 9.0], n),
    })  # fmt: skip


def deployment(load: Workload, engines: int, host: HostMemory | None = None) -> Deployment:
    """Memory for the largest request and a few blocks more; the estimator is some way off."""
    device = linear(a_p=1e-5, b_p=1e-5, c_p=1e-3, a_d=1e-5, b_d=1e-3, t_c=1 / 64)
    estimator = linear(a_p=1e-5, c_p=1e-3, a_d=2e-5, b_d=1e-3, t_c=1 / 80)
    table = load.table
    need = int((table["prompt_tokens"] + table["output_tokens"] - 1).max())
    return Deployment(device, estimator, -(-need // 4) + 2, engines, block_tokens=4, host=host)


def drawn(policy: Policy, seed: int) -> Policy:
    """Settings from the declared parameters: small whole numbers, any choice."""
    rng = np.random.default_rng(seed)
    settings: dict[str, Any] = {}
    for parameter in policy.parameters:
        if rng.random() < 0.5:
            continue
        if parameter.choices:
            settings[parameter.name] = str(rng.choice(parameter.choices))
        elif parameter.integer:
            low = int(parameter.low)
            settings[parameter.name] = int(rng.integers(low, min(int(parameter.high), low + 24) + 1))
        else:
            settings[parameter.name] = float(rng.uniform(parameter.low, min(parameter.high, 4.0)))
    return policy.with_settings(**settings)


def variants(name: str) -> list[Policy]:
    """A scheduler as it is, with each word of its choices, and with some settings drawn at random."""
    policy = scheduler(name)
    words = [{p.name: word} for p in policy.parameters for word in p.choices]
    return [policy, *(policy.with_settings(**word) for word in words),
            *(drawn(policy, seed) for seed in range(RANDOM_SETTINGS))]  # fmt: skip


def scenes_of(name: str) -> list[tuple[str, Scenario]]:
    """Each variant of a scheduler on a workload of its own."""
    found = []
    for k, policy in enumerate(variants(name)):
        load = workload(k, 20)
        found.append((policy.label, Scenario(load, deployment(load, 1 + k % 2, HOST if k % 3 == 0 else None), policy)))
    return found


def rule_scenes() -> list[tuple[str, Scenario]]:
    """What no registered scheduler asks for, or not in so small a run: rules of the packer, gains, a long queue."""
    load = workload(1, 14)
    rules: list[dict[str, Any]] = [
        {"chunk_tokens": 3},
        {"reserve_context": 0, "evict_for": EVICT_FOR_RUNNING, "chunk_tokens": 5},
        {"evict_for": EVICT_FOR_RUNNING, "by_priority": True},
        {"whole_prompts": 1, "time_budget_s": 0.02},
        {"whole_prompts": 1, "max_num_batched_tokens": 20},
        {"time_budget_s": 0.02, "smallest_chunk_tokens": 4},
        {"time_budget_s": 0.02, "step_tokens": 8},
        {"time_budget_s": 0.001},
        {"sequence_budget": 2},
        {"max_num_seqs": 2, "max_num_batched_tokens": 16},
        {"untimed_decodes": 1, "time_budget_s": 0.02},
        {"untimed_decodes": 1, "untimed_prefill_tokens": 5, "time_budget_s": 0.001},
        {"headroom": 3},
        {"by_priority": True, "keep": 7, "time_budget_s": 0.05},
        {"by_priority": True, "keep": 99, "evict_for": EVICT_FOR_RUNNING},
    ]
    found = [(str(rule), Scenario(load, deployment(load, 1, HOST), by_place(**rule))) for rule in rules]
    found.append(("statistics", Scenario(load, deployment(load, 2), LEAST_SERVED_FIRST)))
    edf = scheduler("edf")
    for name in sorted(FUNCTIONS):
        gain = Gain(name, buffered_first_token=False)
        found.append((f"gain {name}", Scenario(load, deployment(load, 1), edf, gain)))
    # No noise here: the last bit of exp and log is the library's.
    shifted = Disturbance(drift_per_s=0.05, shift_s=1.0, shift_ratio=2.0)
    for compounding in (False, True):
        correction = Correction(theta=0.5, window_iterations=3, compounding=compounding)
        slide = Scenario(load, deployment(load, 2), scheduler("slide-batching"), Gain(), np.inf, shifted, correction)
        found.append((f"corrected {compounding}", slide))
    found.append(("truncated", Scenario(load, deployment(load, 2), edf, until_s=1.0)))
    long = workload(2, 300).replace(arrival_s=0.0, output_tokens=1, prompt_tokens=np.arange(300) % 7 + 1)
    for name in ("sjf", "slide-batching:load=c"):
        found.append((f"long queue {name}", Scenario(long, deployment(long, 1), scheduler(name))))
    return found


def figures(scenario: Scenario) -> dict[str, Any]:
    """A run in numbers that JSON keeps exactly; its timeline obeys the rules."""
    simulation = Simulation(scenario, record_timeline=True)
    result = simulation.run()
    replay(simulation)
    arrays = simulation.arrays
    lines = arrays.timeline[: arrays.status[0].timeline_used]
    summary = {key: value for key, value in result.summary.items() if key != "wall_s"}
    return json.loads(json.dumps({"summary": summary, "timeline": lines.tolist(), "engines": arrays.engines.tolist()}))


def all_figures() -> dict[str, Any]:
    scenes = [scene for name in scheduler_names() for scene in scenes_of(name)] + rule_scenes()
    return {f"{k} {label}": figures(scenario) for k, (label, scenario) in enumerate(scenes)}


@pytest.fixture(scope="module")
def here() -> dict[str, Any]:
    return all_figures()


def test_every_request_is_served_and_memory_was_short(here):
    for label, found in here.items():
        assert found["summary"]["finished"] == found["summary"]["requests"] or "truncated" in label, label
    for name in scheduler_names():
        mine = [found["summary"]["evictions"] for label, found in here.items() if label.split()[1].startswith(name)]
        assert sum(mine) > 0, f"no eviction under {name}: these scenarios are too easy"


@pytest.mark.skipif(not JIT_DISABLED, reason="in plain Python these runs take a minute: once, in `make coverage`")
def test_plain_python_and_compiled_kernels_agree_to_the_last_bit(here):
    """The other way of running is a process of its own: Numba reads NUMBA_DISABLE_JIT when it is imported."""
    code = "import json; from tests.simulator.test_nojit import all_figures; print(json.dumps(all_figures()))"
    env = os.environ | {"NUMBA_DISABLE_JIT": "0"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    there = json.loads(done.stdout)
    assert list(there) == list(here)
    for label, found in here.items():
        assert there[label] == found, label
