"""LoRA adapters, worked by hand: each case with its working (scenes.py has what they are set in)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from .adapters import Adapters
from .engines import Engine
from .latency import Linear
from .requests import Request
from .scenes import FAR, SECONDS, by_place, formed, row, state
from .schedulers.sarathi import SarathiFcfs
from .simulator import Log, Pool, simulate_cluster


def at_most(max_loras: int) -> Callable[[Engine], None]:
    def set_adapters(engine: Engine) -> None:
        engine.adapters = Adapters(max_loras, max_loras, 0.0, 0.0)

    return set_adapters


def of(adapter: int, *tokens: int) -> Request:
    return state(*tokens, adapter=adapter)


def test_a_request_whose_adapter_is_one_too_many_is_passed_over():
    queue = [of(1, 3), of(2, 3), of(3, 3), of(2, 4), of(0, 5)]
    assert formed(by_place(), *queue, before=at_most(2))[0] == [(0, 3), (1, 3), (3, 4), (4, 5)]
    assert formed(by_place(), *queue, before=at_most(1))[0] == [(0, 3), (4, 5)]
    assert formed(by_place(), *queue, before=at_most(3))[0] == [(0, 3), (1, 3), (2, 3), (3, 4), (4, 5)]


def test_a_running_one_too():
    # It keeps its memory, and others are not closed out.
    queue = [of(1, 3), of(2, 3, 1, 3), of(1, 4)]
    assert formed(by_place(), *queue, before=at_most(1))[0] == [(0, 3), (2, 4)]


def test_what_ranks_first_runs_alone_where_nothing_fits_whatever_its_adapter():
    assert formed(by_place(whole_prompts=True, max_num_batched_tokens=2), of(7, 3), before=at_most(1))[0] == [(0, 3)]


def served(rows: list[dict], **adapters: Any) -> Log:
    one = Adapters(**({"max_cpu_loras": 9, "load_s": 0.0, "activate_s": 0.0} | adapters))
    pool = Pool(1, 1, 1000, 0.0, SarathiFcfs(100), SECONDS, SECONDS, adapters=one)
    return simulate_cluster([FAR | row for row in rows], [pool])


def times(log: Log) -> list[tuple[float, float]]:
    return [(one.start_s, one.end_s) for one in log.iterations]


def test_what_is_not_there_is_loaded_first():
    # 1 s + 3 tokens, after loading (8 s) and activating (2 s); then a decode, 2 s, for which it is there.
    log = served([row(3, 2, adapter=4)], max_loras=1, load_s=8.0, activate_s=2.0)
    assert times(log) == [(0.0, 14.0), (14.0, 16.0)] and log.iterations[0].moving_s == 10.0
    assert times(served([row(3, 2)], max_loras=1, load_s=8.0, activate_s=2.0)) == [(0.0, 4.0), (4.0, 6.0)]


def test_the_least_recently_used_is_given_up():
    # Device memory has room for one, host memory for two: 1 and 2 are loaded, 1 activated again, and 3 takes the place
    # of 2, which is loaded again.
    rows = [row(1, 1, 100.0 * i, adapter=adapter) for i, adapter in enumerate((1, 2, 1, 3, 2))]
    log = served(rows, max_loras=1, max_cpu_loras=2, load_s=8.0, activate_s=2.0)
    assert [one.moving_s for one in log.iterations] == [10.0, 10.0, 2.0, 10.0, 10.0]


def test_adapters_of_a_batch_are_not_given_up_for_each_other():
    one = Adapters(2, 2, 8.0, 2.0)
    assert one.use([1, 2]) == 20.0 and one.in_device == [1, 2]
    assert one.use([3, 1]) == 10.0 and one.in_device == [1, 3]  # 2 is given up, though used later than 1 before
    assert one.use([0, 3]) == 0.0 and (one.loads, one.activations) == (3, 3)


@pytest.mark.parametrize("seed", range(40))
def test_no_batch_has_too_many_and_nothing_is_lost(seed: int) -> None:
    random = np.random.default_rng(seed)
    n, most = int(random.integers(1, 40)), int(random.integers(1, 4))
    arrivals = np.sort(random.uniform(0, random.choice([0.0, 5.0, 200.0]), n))
    adapter = random.integers(0, random.choice([2, 4, 12]), n)
    rows = [
        row(int(random.integers(1, 30)), int(random.integers(1, 8)), float(at_s), adapter=int(one))
        for at_s, one in zip(arrivals, adapter, strict=True)
    ]
    adapters = Adapters(most, most + int(random.integers(0, 3)), 0.5, 0.125)
    latency = Linear(a_p=0, b_p=0, c_p=0.01, a_d=0, b_d=0.01, t_c=0.01)
    pool = Pool(1, 1, 40 + int(random.integers(0, 100)), 0.0, SarathiFcfs(64, 8), latency, latency, adapters=adapters)
    log = simulate_cluster(rows, [pool])
    assert None not in log.finish_s
    for one in log.iterations:
        assert len({adapter[r] for r, _ in one.batch} - {0}) <= most
    assert len(adapters.in_device) <= most and set(adapters.in_device) <= set(adapters.in_host)
    moved_s = 0.5 * adapters.loads + 0.125 * adapters.activations
    assert sum(one.moving_s for one in log.iterations) == pytest.approx(moved_s)
