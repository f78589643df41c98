"""A step is shared by as many threads as have enough to do, and each episode is one thread's."""

import pytest

from servegym.envs.work_sharing import WORTH_A_THREAD_S, Sharing

pytestmark = pytest.mark.nojit


@pytest.mark.parametrize(("work", "threads"), [(0.5, 1), (1.9, 1), (2.1, 2), (3.5, 3), (100.0, 4)])
def test_threads_follow_the_work(work: float, threads: int) -> None:
    sharing = Sharing(64, 4)
    assert sharing.threads == 1
    for _ in range(200):
        sharing.took(work * WORTH_A_THREAD_S)
    assert sharing.threads == threads == len(sharing.begin())


def test_one_long_step_wakes_nobody() -> None:
    sharing = Sharing(64, 4)
    for work in [0.5] * 50 + [10.0]:
        sharing.took(work * WORTH_A_THREAD_S)
    assert sharing.threads == 1


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_parts_cover_all_episodes(threads: int) -> None:
    sharing = Sharing(7, threads)
    for _ in range(200):
        sharing.took(1.0)
    counters = {id(part.counter): part.counter for part in sharing.begin()}
    covered = [episode for counter in counters.values() for episode in range(counter[1], counter[4])]
    assert sorted(covered) == list(range(7))
    assert sum(not part.backwards for part in sharing.begin()) == len(counters)


def test_no_more_threads_than_episodes() -> None:
    sharing = Sharing(1, 8)
    for _ in range(200):
        sharing.took(1.0)
    assert sharing.threads == 1
