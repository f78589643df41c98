"""Random workloads with all that vLLM offers (experiments/engines/fuzz.py), and features each by itself."""

from pathlib import Path

import pytest

from experiments.engines.feature_parity import DEFAULTS, of_feature
from experiments.engines.fuzz import fuzz
from experiments.engines.fuzz_requests import MOST_ADAPTERS, Asked, check_answer
from experiments.engines.fuzz_run import Run, plugged_in, scene_of
from experiments.engines.plugin_parity import own_scheduler
from servegym.baselines import registry
from servegym.errors import VllmError

registry.load()


def test_nothing_is_lost_and_nothing_comes_twice() -> None:
    found = fuzz(600, 7, 5.0)
    assert not found.failures
    assert found.scenes > 1 and found.steps >= 600


@pytest.mark.parametrize("feature", ["", "aborts", "stop tokens", "n > 1", "grammars"])
def test_at_vllms_defaults_each_step_is_as_decided(feature: str, tmp_path: Path) -> None:
    counts, deviations = of_feature(DEFAULTS | ({feature} if feature else set()), 200, tmp_path)
    assert counts["deviating_steps"] == counts["deviating_hits"] == counts["fallback_steps"] == 0
    assert not deviations


@pytest.mark.parametrize("feature", ["drafts", "images", "LoRA"])
def test_what_the_policy_does_not_plan_is_counted_and_bounded(feature: str, tmp_path: Path) -> None:
    counts, deviations = of_feature(DEFAULTS | {feature}, 200, tmp_path)
    assert counts["deviating_steps"] <= min(0.25 * counts["steps"], deviations.total())
    assert counts["fallback_steps"] == 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_step_never_has_more_adapters_than_it_may(seed: int, tmp_path: Path) -> None:
    """Also where a policy has running requests skipped, which vLLM itself never does."""
    scene = scene_of(seed, frozenset({"LoRA", "order only"}))
    run = Run(scene, plugged_in(scene, tmp_path))
    schedule, most = run.scheduler.schedule, [0]

    def watched() -> object:
        output = schedule()
        adapters = {run.asked[i].adapter for i in output.num_scheduled_tokens} - {0}
        most[0] = max(most[0], len(adapters))
        running = {run.asked[r.request_id].adapter for r in run.scheduler.running} - {0}
        assert len(running) <= MOST_ADAPTERS
        return output

    run.scheduler.schedule = watched
    run.serve()
    assert most[0] == MOST_ADAPTERS


def test_the_fuzz_sees_what_is_wrong(tmp_path: Path) -> None:
    one = Asked("0", 0.0, [5], max_tokens=3)
    check_answer(one, [1000, 1001, 1002], False)
    for got in ([1000, 1002, 1001], [1000, 1000, 1001], [1000, 1001]):
        with pytest.raises(VllmError, match="request 0"):
            check_answer(one, got, False)
    scene = scene_of(3, frozenset())
    run = Run(scene, own_scheduler(scene.limits))
    pool = run.scheduler.kv_cache_manager.block_pool
    kept = pool.get_new_blocks(1)
    with pytest.raises(VllmError, match="blocks are held"):
        run.serve()
    assert len(kept) == 1
