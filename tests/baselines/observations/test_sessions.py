"""What is seen of a request's session, by hand."""

import numpy as np
import pytest

from servegym.baselines.observations import sessions as page
from servegym.simulator.records import types as layout
from tests.baselines.observations.seeing import of_session

pytestmark = pytest.mark.nojit


def record(**fields: float) -> np.record:
    request = np.zeros(1, layout.REQUEST)[0]
    for name, value in fields.items():
        request[name] = value
    return request


def test_a_turn_of_a_session() -> None:
    # Its SLO is 2 s, and then a token each 0.5 s: the next, its fourth, is due 1.5 s after the first.
    request = record(
        arrival_s=10.0, first_deadline_s=12.0, token_interval_s=0.5, num_output_tokens=3, turn=3, session_tokens=1023,
        session_arrival_s=2.0, session_deadline_s=20.0,
    )  # fmt: skip
    seen = of_session(request, 14.0)
    assert seen == pytest.approx([2 / 12, 10 / 24, 12 / (128 + 12), 7.5 / (16 + 7.5)], rel=1e-6)
    assert of_session(request, 23.5)[page.SESSION_SLACK] == pytest.approx(-2 / 18)  # it is behind


def test_a_request_in_no_session_is_a_first_turn() -> None:
    request = record(arrival_s=10.0, first_deadline_s=12.0, session_arrival_s=10.0, session_deadline_s=12.0, session=-1)
    assert of_session(request, 11.0) == pytest.approx([0, 0, 1 / 129, 1 / 17], rel=1e-6)


def test_the_longest_session_is_within_bounds() -> None:
    request = record(
        first_deadline_s=1e-6, turn=2**31 - 1, session_tokens=2**60, session_arrival_s=-1e12, session_deadline_s=1e12
    )
    for now_s in (-1e12, 0.0, 1e12):
        seen = of_session(request, now_s)
        assert all(field.low <= x <= field.high for field, x in zip(page.SESSION_FIELDS, seen, strict=True))
