"""Runners: every item once, results as they are done, the first error ends it."""

import itertools
import operator
import threading
import time

import pytest

from servegym.evaluation.running import ThreadRunner, cores, results_of


def test_results_come_in_the_order_of_the_items_however_they_were_done():
    assert results_of(ThreadRunner(3), operator.neg, range(20)) == [-number for number in range(20)]
    assert results_of(ThreadRunner(3), operator.neg, []) == []


def test_each_is_told_as_it_is_done():
    first_may_end = threading.Event()

    def function(item):
        if item == 0:
            assert first_may_end.wait(10)
        return item

    done = ThreadRunner(2).run(function, range(3))
    assert sorted(itertools.islice(done, 2)) == [(1, 1), (2, 2)]
    first_may_end.set()
    assert list(done) == [(0, 0)]


def test_an_error_ends_it_and_drops_what_has_not_begun():
    begun = []

    def function(item):
        begun.append(item)
        if item == 1:
            raise KeyError(item)
        time.sleep(0.01)

    with pytest.raises(KeyError):
        list(ThreadRunner(1).run(function, range(1000)))
    assert len(begun) < 500


def test_threads_are_one_a_core_unless_it_is_said():
    assert ThreadRunner().jobs == cores() >= 1
    assert ThreadRunner(3).jobs == 3
