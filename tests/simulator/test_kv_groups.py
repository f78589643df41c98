"""KV memory by kinds of layers: what groups hold of a request, and what is refused beside them."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from servegym.baselines.registry import scheduler
from servegym.errors import DeploymentError
from servegym.evaluation.reports.memory import kv_blocks
from servegym.simulator.features.speculation import Speculation
from servegym.simulator.inputs.deployment import Deployment, HostMemory
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.kv_groups import KvCacheGroup, blocks_held, kinds_of, tokens_held
from servegym.simulator.runs.loops import WHOLE
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import SECONDS as MODEL
from tests.simulator.whole_runs import finished
from tests.timelines import iterations

pytestmark = pytest.mark.nojit
FULL, WINDOW, LOCAL = KvCacheGroup(4), KvCacheGroup(4, window=8), KvCacheGroup(4, window=8, local=True)
STATE = KvCacheGroup(state=True)


def deployment(*groups: KvCacheGroup, blocks: int = 40, **others: Any) -> Deployment:
    return Deployment(MODEL, MODEL, blocks, block_tokens=4, kv_groups=groups, **others)


def workload(prompts: list[int], outputs: list[int]) -> Workload:
    return Workload.from_columns(
        {"arrival_s": [0.0] * len(prompts), "prompt_tokens": prompts, "output_tokens": outputs}
    )


def served(pool: Deployment, work: Workload) -> Simulation:
    policy = scheduler("vllm-v1").with_settings(max_num_batched_tokens=16, watermark=0.0)
    return finished(Scenario(work, pool, policy))


@pytest.mark.parametrize(("group", "computed", "chunk", "blocks"), [
    (FULL, 7, 1, 2),
    (FULL, 7, 2, 3),
    (WINDOW, 0, 16, 4),
    (WINDOW, 8, 1, 3),  # token 8 sees 1 to 8: no block has been left
    (WINDOW, 11, 1, 2),  # token 11 sees 4 to 11
    (WINDOW, 16, 16, 6),  # token 16 sees 9 to 16, which begin in the third block
    (LOCAL, 15, 1, 2),
    (LOCAL, 16, 1, 1),  # a new window
    (STATE, 0, 1000, 1),
])  # fmt: skip
def test_what_a_group_holds(group: KvCacheGroup, computed: int, chunk: int, blocks: int) -> None:
    assert blocks_held([group], computed, chunk) == blocks
    assert blocks_held([group] * 3, computed, chunk) == 3 * blocks


def test_groups_of_all_kinds_add_up() -> None:
    held = blocks_held([FULL, WINDOW, WINDOW, STATE], np.array([0, 20]), np.array([16, 1]))
    assert held.tolist() == [4 + 8 + 1, 6 + 2 * (6 - 3) + 1]
    assert tokens_held([FULL, WINDOW, STATE], 9) == 16  # at once: four blocks each, and the state's
    assert kinds_of([FULL, WINDOW, WINDOW, STATE], "here").windows == 2


def test_blocks_that_leave_the_window_are_free_again() -> None:
    simulation = served(deployment(FULL, WINDOW), workload([32], [4]))
    chunks = [i.batch[0][1] for i in iterations(simulation.result())]
    used = [i.used_blocks for i in iterations(simulation.result())]
    assert chunks == [16, 16, 1, 1, 1]
    assert used == [4 + 4, 8 + 6, 9 + 3, 9 + 3, 9 + 3]
    assert simulation.arrays.engines[0].totals.peak_blocks == 14
    assert simulation.arrays.engines[0].free_blocks == 40


def test_more_requests_fit_than_if_all_layers_kept_all() -> None:
    """Six decodes of 60 tokens: 15 blocks in each full group, 3 at most in one with a window of 8."""
    work = workload([56] * 6, [8] * 6)
    windows = served(deployment(FULL, WINDOW, WINDOW, blocks=132), work).arrays.status[0]
    whole = served(deployment(FULL, FULL, FULL, blocks=132), work).arrays.status[0]
    assert windows.now_s < whole.now_s


def test_one_group_of_full_attention_changes_nothing() -> None:
    work = workload([50, 30, 70, 20, 44], [9, 20, 3, 30, 12])
    plain = Deployment(MODEL, MODEL, 24, block_tokens=4)
    ours, theirs = (served(pool, work) for pool in (dataclasses.replace(plain, kv_groups=(FULL,)), plain))
    assert iterations(ours.result()) == iterations(theirs.result())
    assert ours.arrays.outcomes.tobytes() == theirs.arrays.outcomes.tobytes()
    assert ours.loop is WHOLE


@pytest.mark.parametrize(("others", "words"), [
    ({"role": "decode"}, "is not simulated with the role 'decode'; append :kv_groups=mean to the device"),
    ({"host": HostMemory(4, 0.0, 0.0)}, "is not simulated with host memory; append"),
    ({"speculation": Speculation(2, 0.5)}, "is not simulated with speculation; append"),
])  # fmt: skip
def test_what_is_not_simulated_beside_them(others: dict[str, Any], words: str) -> None:
    with pytest.raises(DeploymentError, match=words):
        deployment(FULL, WINDOW, **others)


@pytest.mark.parametrize(("groups", "words"), [
    ((WINDOW, KvCacheGroup(4, window=16)), "KV cache groups of windows differ"),
    ((FULL, KvCacheGroup(8)), "KV cache groups of full attention differ"),
    ((FULL,) * 5000, "there are 5000 KV cache groups; at most 4096 are simulated"),
])  # fmt: skip
def test_kinds_of_which_there_is_one(groups: tuple[KvCacheGroup, ...], words: str) -> None:
    with pytest.raises(DeploymentError, match=words):
        deployment(*groups)


@pytest.mark.parametrize(("fields", "words"), [
    ({"block_tokens": 0}, "block_tokens is 0; it should be a whole number from 1"),
    ({"window": 1.5}, "window is 1.5"),
    ({"state": True, "window": 4}, "a state has no window"),
    ({"local": True}, "it should come with a `window`"),
])  # fmt: skip
def test_groups_that_are_none(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(DeploymentError, match=words):
        KvCacheGroup(**fields)


def test_a_request_has_to_fit_at_once() -> None:
    pool = deployment(FULL, WINDOW, blocks=20)
    assert pool.request_tokens() == 40 and pool.capacity_tokens == 80
    served(pool, workload([31], [10]))
    with pytest.raises(DeploymentError, match="which holds 40 tokens"):
        served(pool, workload([32], [10]))


def test_reports_read_the_blocks_back() -> None:
    result = served(deployment(FULL, WINDOW, STATE, blocks=32), workload([50, 30, 44, 20], [9, 20, 3, 30])).result()
    assert result.summary["evictions"] > 0
    ((time_s, blocks),) = kv_blocks(result)
    seconds = np.diff(np.r_[time_s, result.summary["span_s"]]) @ blocks
    assert blocks[-1] == 0 and seconds == pytest.approx(result.arrays.engines[0].totals.block_seconds)
