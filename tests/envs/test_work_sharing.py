"""A step is shared by as many threads as have enough to do, and each episode is one thread's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.envs.rings import END, FIRST, NO_MORE, before_first, next_episode
from servegym.envs.work_sharing import MIN_PART_S, WorkSharing

pytestmark = pytest.mark.nojit


@pytest.mark.parametrize(("work", "threads"), [(0.5, 1), (1.9, 1), (2.1, 2), (3.5, 3), (100.0, 4)])
def test_threads_follow_the_work(work: float, threads: int) -> None:
    sharing = WorkSharing(64, 4)
    assert sharing.threads == 1
    for _ in range(200):
        sharing.record(work * MIN_PART_S)
    assert sharing.threads == threads == len(sharing.begin())


def test_one_long_step_wakes_none() -> None:
    sharing = WorkSharing(64, 4)
    for work in [0.5] * 50 + [10.0]:
        sharing.record(work * MIN_PART_S)
    assert sharing.threads == 1


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_parts_cover_all_episodes(threads: int) -> None:
    sharing = WorkSharing(7, threads)
    for _ in range(200):
        sharing.record(1.0)
    rings = {id(part.ring): part.ring for part in sharing.begin()}
    covered = [episode for ring in rings.values() for episode in range(ring[FIRST], ring[END])]
    assert sorted(covered) == list(range(7))
    ways = {(id(part.ring), part.downwards) for part in sharing.begin()}
    assert len(ways) == threads  # no two go the same way round a ring


def test_no_more_threads_than_episodes() -> None:
    sharing = WorkSharing(1, 8)
    for _ in range(200):
        sharing.record(1.0)
    assert sharing.threads == 1


@given(st.integers(1, 9), st.lists(st.lists(st.integers(0, 1), max_size=12), min_size=1, max_size=6))
def test_each_episode_is_taken_once_and_threads_turn_round(n: int, turns_of_steps: list[list[int]]) -> None:
    sharing = WorkSharing(n, 2)
    sharing._use(min(2, n))
    did: list[list[int]] = [[] for _ in range(sharing.threads)]
    for turns in turns_of_steps:
        parts, before = sharing.begin(), did
        at, did = [before_first(*part) for part in parts], [[] for _ in parts]
        left = set(range(len(parts)))
        for turn in turns:
            if turn in left:
                take(parts, at, did, turn, left)
        for thread in range(len(parts)):  # whoever is left takes the rest
            while thread in left:
                take(parts, at, did, thread, left)
        assert sorted(episode for one in did for episode in one) == list(range(n))
        for now, last in zip(did, before, strict=True):
            common = min(len(now), len(last))
            assert now[:common] == last[::-1][:common]


def take(parts: list, at: list[int], did: list[list[int]], thread: int, left: set[int]) -> None:
    """One thread takes an episode, if there is one left."""
    episode = next_episode(parts[thread].ring, at[thread], parts[thread].downwards)
    if episode == NO_MORE:
        left.discard(thread)
        return
    at[thread] = episode
    did[thread].append(episode)
