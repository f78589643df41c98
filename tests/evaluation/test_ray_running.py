"""What runs on Ray are cut into, and what goes along with them."""

import numpy as np
import pytest

pytest.importorskip("ray")

from servegym.evaluation.ray_running import Packed, TaskSizes


def test_arrays_that_are_not_written_to_are_shared():
    fixed, free = np.arange(3), np.arange(3)
    fixed.flags.writeable = False
    packed = Packed.of({"fixed": fixed, "free": free})
    value = packed.value()
    assert len(packed.arrays) == 1
    assert not value["fixed"].flags.writeable and value["free"].flags.writeable
    assert (value["fixed"] == fixed).all() and (value["free"] == free).all()


def test_tasks_are_of_about_the_same_time_and_smaller_towards_the_end():
    sizes = TaskSizes()
    assert sizes.next(1000, 2) == 1, "nothing is known yet"
    for _ in range(20):
        sizes.learn(0.01)
    assert sizes.next(1000, 2) == 25
    assert sizes.next(40, 2) == 10
    assert sizes.next(3, 2) == 1
    sizes.learn(60.0)
    assert sizes.next(1000, 2) == 1
