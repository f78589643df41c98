"""Arrival processes: their mean rates, how bursty they are, and that a seed is the same at every rate."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegym.errors import WorkloadError
from servegym.traces import ARRIVALS, Trace, build_workload
from servegym.traces.arrivals import DAY_S, needs_rate, takes_rate

# As asked for, and the rate where the process has one of its own.
WITHOUT_A_RATE = {
    "at-once": None, "bursts:n=10,gap_s=2": 5.0, "waves:n=6,gap_s=0.5": 6.0,
    "square-wave:low_per_s=2,high_per_s=5,phase_s=50": 3.5, "industrial-day:duration_s=4000": 5.0,
}  # fmt: skip
AT_A_RATE = [
    "poisson", "gamma:cv=0.5", "gamma:cv=3", "bursts:n=10", "waves:n=6", "square-wave:phase_s=50", "industrial-day",
    "industrial-day:duration_s=1000",
]  # fmt: skip
SCALED = [text for text in AT_A_RATE if "duration" not in text]


def drawn(text: str, rate_per_s: float | None = None, requests: int = 20_000, seed: int = 0) -> np.ndarray:
    ones = np.ones(requests, "i4")
    return ARRIVALS.bound(text)(Trace("t", ones, ones), rate_per_s, np.random.default_rng(seed))


def test_every_process_is_tested_here():
    tested = {text.split(":")[0] for text in [*WITHOUT_A_RATE, *AT_A_RATE]} | {"own"}
    assert tested == set(ARRIVALS.names())


@pytest.mark.parametrize("text", [*WITHOUT_A_RATE, *AT_A_RATE])
@settings(max_examples=15)
@given(requests=st.integers(1, 300), seed=st.integers(0, 2**32))
def test_as_many_as_asked_for_in_order(text, requests, seed):
    rate = None if text in WITHOUT_A_RATE else 3.0
    arrival_s = drawn(text, rate, requests, seed)
    assert arrival_s.shape == (requests,)
    assert np.isfinite(arrival_s).all()
    assert (np.diff(arrival_s, prepend=0) >= 0).all()
    assert (arrival_s == drawn(text, rate, requests, seed)).all()


@pytest.mark.parametrize("text", AT_A_RATE)
def test_mean_rate(text):
    # Three days of 1000 s. 21,000 gaps have a standard error of 0.7 % times their cv.
    assert 21_000 / drawn(text, 7.0, 21_000)[-1] == pytest.approx(7.0, rel=0.08 if "cv=3" in text else 0.03)


@pytest.mark.parametrize(("text", "rate"), [pair for pair in WITHOUT_A_RATE.items() if pair[1]])
def test_own_rate(text, rate):
    assert 20_000 / drawn(text)[-1] == pytest.approx(rate, rel=0.03)


@pytest.mark.parametrize("text", SCALED)
def test_a_seed_at_two_rates_is_the_same_but_for_its_scale(text):
    assert drawn(text, 2.0, 500) == pytest.approx(drawn(text, 16.0, 500) * 8, rel=1e-12)


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.5])
def test_gamma_has_its_cv(cv):
    gaps = np.diff(drawn(f"gamma:cv={cv}", 4.0, 100_000), prepend=0)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)


def test_bursts():
    assert drawn("bursts:n=3,gap_s=0.5", requests=7).tolist() == [0, 0, 0, 0.5, 0.5, 0.5, 1.0]
    assert drawn("bursts:n=3", 6.0, requests=4).tolist() == [0, 0, 0, 0.5]


def test_waves_have_up_to_n_requests_each_number_as_likely():
    sizes = np.bincount(np.rint(drawn("waves:n=5,gap_s=0.1")[:-5] / 0.1).astype(int))
    shares = np.bincount(sizes[:-1], minlength=6) / (len(sizes) - 1)
    assert len(shares) == 6
    assert shares == pytest.approx(1 / 6, abs=0.02)  # 8,000 waves: 5 standard errors


def test_square_wave_has_two_rates():
    phase = drawn("square-wave:low_per_s=2,high_per_s=5,phase_s=100") // 100
    counts = np.bincount(phase.astype(int))[:-1]
    assert counts[::2].mean() / 100 == pytest.approx(2, rel=0.05)
    assert counts[1::2].mean() / 100 == pytest.approx(5, rel=0.05)
    assert drawn("square-wave", requests=50_400).max() == pytest.approx(4 * 3600, rel=0.02)  # QoServe: 4 hours


@pytest.mark.slow
def test_an_industrial_day_has_two_peaks():
    day = drawn("industrial-day:duration_s=86400", requests=200_000)
    assert day[-1] == pytest.approx(DAY_S, rel=0.01)
    hours = np.bincount((day // 3600).astype(int), minlength=25)[:24]
    peaks = [h for h in range(1, 23) if hours[h] == hours[max(h - 3, 0) : h + 4].max() and hours[h] > hours.mean()]
    assert len(peaks) == 2
    assert hours.max() / hours.min() > 3
    compressed = drawn("industrial-day:duration_s=864", requests=200_000)
    assert compressed == pytest.approx(day / 100)
    several = drawn("industrial-day:duration_s=1000", 5.0)
    assert several[-1] == pytest.approx(4000, rel=0.05)


def test_own_times():
    ones = np.ones(3, "i4")
    trace = Trace("t", ones, ones, np.array([1.0, 2.0, 5.0]))
    rng = np.random.default_rng(0)
    assert ARRIVALS["own"](trace, None, rng).tolist() == [1, 2, 5]
    assert ARRIVALS["own"](trace, 1.0, rng) == pytest.approx([0, 0.5, 2])


@pytest.mark.parametrize(("arrivals", "rate", "said"), [
    ("gamma", 1, "arrival process 'gamma' needs cv"),
    ("gamma:cv=0", 1, "cv is 0"),
    ("gamma:cv=-1", 1, "cv is -1"),
    ("gamma:cv=x", 1, "cv is 'x'; it should be a finite number"),
    ("gamma:cv=inf", 1, "cv is 'inf'; it should be a finite number"),
    ("gamma:cv", 1, "'cv' sets nothing"),
    ("gamma:cvv=2", 1, r"unknown parameter 'cvv' \(did you mean 'cv'\?\)"),
    ("gamma:cv=2", None, "gamma arrivals need a rate"),
    ("poisson:cv=2", 1, "unknown parameter 'cv'; there are: none"),
    ("bursts:n=2.5", 1, "n is '2.5'; it should be a whole number"),
    ("bursts:n=0", 1, "n is 0"),
    ("bursts:n=5", None, "need either a rate or a gap"),
    ("bursts:n=5,gap_s=1", 1, "need either a rate or a gap"),
    ("waves:gap_s=0", None, "gap_s is 0"),
    ("square-wave:high_per_s=0", None, "high_per_s is 0"),
    ("industrial-day", None, "need a rate, or a duration"),
    ("industrial-day:duration_s=-5", None, "duration_s is -5"),
    ("own", 1, "no times of its own"),
])  # fmt: skip
def test_wrong_parameters(arrivals, rate, said):
    with pytest.raises(WorkloadError, match=said):
        build_workload("sharegpt", requests=10, arrivals=arrivals, rate_per_s=rate)


@pytest.mark.parametrize(("text", "needs", "takes"), [
    ("poisson", True, True), ("gamma:cv=3", True, True), ("own", False, True), ("at-once", False, False),
    ("bursts:n=3", True, True), ("bursts:n=3,gap_s=1", False, False), ("waves", True, True),
    ("waves:gap_s=0.1", False, False), ("square-wave", False, True), ("industrial-day", True, True),
    ("industrial-day:duration_s=600", False, True),
])  # fmt: skip
def test_which_have_a_pace_of_their_own(text, needs, takes):
    assert (needs_rate(text), takes_rate(text)) == (needs, takes)
    trace = Trace("made", np.array([5, 5, 5]), np.array([2, 2, 2]), np.array([0.0, 1.0, 3.0]))
    for rate_per_s, works in ((None, not needs), (2.0, takes)):
        process = ARRIVALS.bound(text)
        if works:
            assert len(process(trace, rate_per_s, np.random.default_rng(0))) == 3
        else:
            with pytest.raises(WorkloadError):
                process(trace, rate_per_s, np.random.default_rng(0))


@pytest.mark.parametrize(("process", "said"), [
    ("gamma:cv=1e200", "gamma: cv is 1e+200; it should be 0.001 to 100"),
    ("gamma:cv=1e-200", "gamma: cv is 1e-200"),
    ("bursts:n=1,gap_s=1e308", "arrivals bursts:n=1,gap_s=1e308: these numbers give times that are not finite"),
    ("square-wave:low_per_s=1e308,high_per_s=1e308,phase_s=1e308", "these numbers give times that are not finite"),
    ("industrial-day:duration_s=1e308", "these numbers give times that are not finite"),
])  # fmt: skip
def test_numbers_that_give_no_times(process, said):
    with pytest.raises(WorkloadError) as caught:
        build_workload("azure-conv", requests=50, arrivals=process, rate_per_s=1 if "gamma" in process else None)
    assert said in str(caught.value)
