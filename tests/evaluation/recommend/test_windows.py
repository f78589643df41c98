"""Windows of a recording: each request is in one, sessions are whole, and those that judge have chosen nothing."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from servegym.errors import WorkloadError
from servegym.evaluation.recommend.windows import LEAST_RECORDED, LEAST_S, MOST_WINDOWS, count_of, cut, windows_of
from servegym.evaluation.repeats import BLOCKS, WINDOWS
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.traces.trace import Trace

SLO = "ttft_s=2,tpot_s=0.06"


def trace_of(turns, gap_s=1.0):
    """Sessions of so many requests each, one beginning after another. Prompts number the requests."""
    begins = np.concatenate([np.arange(count) == 0 for count in turns])
    rows = np.arange(len(begins))
    arrival_s = np.where(begins, np.cumsum(begins) * gap_s - gap_s, np.nan)
    after = None if begins.all() else SessionDependencies(np.where(begins, -1, rows - 1), np.zeros(len(rows)))
    return Trace("made", (rows + 1).astype("i4"), np.full(len(rows), 3, "i4"), arrival_s, turns=after)


@example([*[1] * 11, 4], 5)  # the last session begins before the last bound
@given(st.lists(st.integers(1, 5), min_size=12, max_size=60), st.integers(2, 10))
def test_each_request_is_in_one_window_with_its_session(turns, count):
    trace = trace_of(turns)
    parts = cut(trace, count)
    assert len(parts) == count and all(len(part) for part in parts)
    assert np.concatenate([part.prompt_tokens for part in parts]).tolist() == trace.prompt_tokens.tolist()
    for part in parts:
        assert part.begins[0] and part.arrival_s[0] == 0
    assert sum(int(part.begins.sum()) for part in parts) == len(turns)


@given(st.integers(2, 10_000), st.floats(0.001, 100))
def test_there_is_an_even_number_of_windows(requests, gap_s):
    count = count_of(trace_of([1] * requests, gap_s))
    assert count % 2 == 0 and 2 <= count <= MOST_WINDOWS


def test_half_the_windows_choose():
    made = windows_of(trace_of([1] * 1000), SLO)
    chosen, judged = (
        {int(tokens) for one in windows for tokens in one.table["prompt_tokens"]}
        for windows in (made.to_choose, made.to_judge)
    )
    assert not chosen & judged and len(chosen | judged) == 1000
    assert made.over == WINDOWS and len(made.to_choose) == len(made.to_judge) == 2
    assert (made.to_judge[0].table["ttft_slo_s"] == 2).all()


def test_a_rate_leaves_windows_their_own_rates():
    gaps = np.repeat([1.0, 0.5], 200)
    trace = Trace("made", np.ones(400, "i4"), np.ones(400, "i4"), np.cumsum(gaps) - 1)
    slow, fast = (windows_of(trace, SLO, rate_per_s=rate) for rate in (1.0, 4.0))
    for one, other in zip(slow.to_choose + slow.to_judge, fast.to_choose + fast.to_judge, strict=True):
        assert other.rate_per_s == pytest.approx(4 * one.rate_per_s)
    assert fast.to_judge[0].rate_per_s == pytest.approx(2 * fast.to_choose[0].rate_per_s, rel=0.02)


def test_resamples_of_the_two_halves_have_no_request_in_common():
    made = windows_of(trace_of([1] * 200), SLO, resample=True)
    chosen, judged = (
        {int(tokens) for one in windows for tokens in one.table["prompt_tokens"]}
        for windows in (made.to_choose, made.to_judge)
    )
    assert max(chosen) <= 100 < min(judged)
    assert made.over == BLOCKS and made.requests == 1000 and len(made.to_judge) == MOST_WINDOWS // 2
    assert made.to_judge[0].digest != made.to_judge[1].digest


def test_resamples_of_fast_traffic_last_a_minute():
    made = windows_of(trace_of([1] * 200), SLO, rate_per_s=50.0, resample=True)
    assert made.requests == pytest.approx(50 * LEAST_S, rel=0.02) and made.span_s == pytest.approx(LEAST_S, rel=0.1)


@pytest.mark.parametrize(("trace", "words"), [
    (trace_of([1] * (LEAST_RECORDED - 1)), "made has 19 requests; a recommendation takes 20 or more"),
    (trace_of([30]), "made has 1 session; a recommendation takes 20 or more"),
    (Trace("made", np.ones(30, "i4"), np.ones(30, "i4")), "made does not say when its requests came"),
    (trace_of([1] * 30, gap_s=0.0), "made: all requests come at once"),
])  # fmt: skip
def test_a_recording_that_says_too_little(trace, words):
    with pytest.raises(WorkloadError, match=words):
        windows_of(trace, SLO)
