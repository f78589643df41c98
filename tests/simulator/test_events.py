"""The heap of events: by time, then kind, then index, whatever the order in which they were put in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.simulator.records import types as layout
from servegym.simulator.records.events import pop, push

pytestmark = pytest.mark.nojit

events = st.tuples(st.sampled_from([0.0, 1.0, 1.5]), st.integers(0, 1), st.integers(0, 9))


@given(wanted=st.lists(events, max_size=20), pops_between=st.lists(st.booleans(), min_size=20, max_size=20))
def test_events_come_out_in_order(wanted, pops_between):
    heap, status = np.zeros(max(len(wanted), 1), layout.EVENT), np.zeros(1, layout.RUN_STATUS)[0]
    waiting, out, expected = [], [], []

    def take():
        first = heap[0]
        out.append((first.time_s, first.kind, first.index))
        pop(heap, status)
        expected.append(min(waiting))
        waiting.remove(min(waiting))

    for event, take_one in zip(wanted, pops_between, strict=False):
        push(heap, status, *event)
        waiting.append(event)
        if take_one:
            take()
    while status.events:
        take()
    assert out == expected and not waiting
