"""Arrivals, recipes and the front door: rates, seeds, limits, and what wins over what."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegym.errors import WorkloadError
from servegym.traces import RECIPES, build_workload, trace_names
from servegym.traces.loading import window_start

LENGTHS = ["prompt_tokens", "output_tokens"]


@pytest.fixture
def own(tmp_path):
    def write(text: str):
        path = tmp_path / "own.csv"
        path.write_text(text)
        return path

    return write


TIMED = "arrival_s,prompt_tokens,output_tokens\n0.5,10,1\n1.5,900,2\n2,30,3\n4.5,40,4\n"
UNTIMED = "prompt_tokens,output_tokens\n10,1\n20,2\n30,3\n"


def assert_same(table, other):
    for field in table.dtype.names:
        np.testing.assert_array_equal(table[field], other[field], err_msg=field)


def test_same_seed_same_workload():
    first, again = (build_workload("azure-conv", requests=300, rate_per_s=2, seed=5) for _ in range(2))
    assert_same(first.table, again.table)
    other = build_workload("azure-conv", requests=300, rate_per_s=2, seed=6)
    for field in ("arrival_s", "prompt_tokens", "output_tokens", "priority"):
        assert (other.table[field] != first.table[field]).any()


def test_common_random_numbers_across_loads():
    slow, fast = (build_workload("azure-code", requests=500, rate_per_s=rate, seed=3) for rate in (1.0, 4.0))
    for field in [*LENGTHS, "priority", "weight"]:
        assert (slow.table[field] == fast.table[field]).all()
    assert slow.table["arrival_s"] == pytest.approx(4 * fast.table["arrival_s"], rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(few=st.integers(1, 200), more=st.integers(0, 300), seed=st.integers(0, 2**64))
def test_fewer_requests_are_the_first_of_more(few, more, seed):
    short, long = (build_workload("sharegpt", requests=n, rate_per_s=2, seed=seed) for n in (few, few + more))
    assert_same(short.table, long.table[:few])


def test_lengths_do_not_depend_on_recipe_or_arrivals():
    plain = build_workload("sharegpt", requests=50, arrivals="at-once", slo="given")
    other = build_workload("sharegpt", requests=50, rate_per_s=3, slo="proserve-32b")
    assert (plain.table[LENGTHS] == other.table[LENGTHS]).all()
    assert (plain.table["arrival_s"] == 0).all()


def test_poisson_arrivals():
    arrival_s = build_workload("azure-code", requests=40_000, rate_per_s=8.0).table["arrival_s"]
    gaps = np.diff(arrival_s, prepend=0)
    assert arrival_s[0] > 0
    # 40,000 exponential gaps: mean and cv within 4 standard errors (0.5 % each)
    assert gaps.mean() * 8 == pytest.approx(1, abs=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.02)


def test_file_keeps_its_times_or_is_stretched(own):
    path = own(TIMED)
    assert build_workload(path).table["arrival_s"].tolist() == [0.5, 1.5, 2.0, 4.5]
    scaled = build_workload(path, rate_per_s=3.0)
    assert scaled.table["arrival_s"] == pytest.approx([0, 0.25, 0.375, 1.0])
    assert scaled.rate_per_s == pytest.approx(3.0)
    window = build_workload(path, requests=2, rate_per_s=2.0)
    assert window.table["arrival_s"].tolist() == [0.0, 0.5]
    drawn = build_workload(path, rate_per_s=3.0, arrivals="poisson")
    assert drawn.provenance["arrivals"] == "poisson"
    assert drawn.table["arrival_s"] != pytest.approx([0, 0.25, 0.375, 1.0])
    assert build_workload(path, arrivals="at-once").table["arrival_s"].tolist() == [0] * 4


def test_limits_leave_out_requests(own):
    path = own(TIMED)
    assert build_workload(path, max_prompt_tokens=100).table["prompt_tokens"].tolist() == [10, 30, 40]
    assert build_workload(path, max_total_tokens=33, requests=2).table["prompt_tokens"].tolist() == [10, 30]
    with pytest.raises(
        WorkloadError,
        match=r"has 3 requests within the token limits, of 4; requests \(--requests, or of the spec\) is 4",
    ):
        build_workload(path, max_prompt_tokens=100, requests=4)
    table = build_workload("sharegpt", requests=2000, rate_per_s=1, max_prompt_tokens=512, max_total_tokens=700).table
    assert len(table) == 2000
    assert table["prompt_tokens"].max() <= 512
    assert (table["prompt_tokens"] + table["output_tokens"]).max() <= 700


@pytest.mark.parametrize(("options", "said"), [
    ({}, "poisson arrivals need a rate"),
    ({"rate_per_s": 0}, "a rate is above 0"),
    ({"rate_per_s": -1}, "a rate is above 0"),
    ({"rate_per_s": float("nan")}, "a rate is above 0"),
    ({"rate_per_s": float("inf")}, "a rate is above 0"),
    ({"rate_per_s": 1, "arrivals": "at-once"}, "arrivals at once have no rate"),
    ({"rate_per_s": 1, "arrivals": "poison"}, "did you mean 'poisson'"),
    ({"rate_per_s": 1, "slo": "prosrve"}, "did you mean 'proserve'"),
    ({"rate_per_s": 1, "requests": 0}, "at least 1"),
    ({"rate_per_s": 1, "seed": -1}, "whole number of 0 or more"),
    ({"rate_per_s": 1, "seed": 1.5}, "whole number of 0 or more"),
    ({"rate_per_s": 1, "max_prompt_tokens": 1}, "fewer than 1 in"),
])  # fmt: skip
def test_bad_options(options, said):
    with pytest.raises(WorkloadError, match=said):
        build_workload("azure-code", **options)


def test_bad_options_of_a_file(own):
    path = own(TIMED)
    for rate in (0, -2, float("nan"), float("inf")):
        with pytest.raises(WorkloadError, match="a rate is above 0"):
            build_workload(path, rate_per_s=rate)
    with pytest.raises(WorkloadError, match=r"has 4 requests; requests \(--requests, or of the spec\) is 9"):
        build_workload(path, requests=9)
    with pytest.raises(WorkloadError, match="trace 'own': poisson arrivals need a rate"):
        build_workload(own(UNTIMED))


def test_proserve_recipe():
    table = build_workload("azure-code", requests=10_000, rate_per_s=1).table
    assert set(table["priority"]) == {0, 1}
    assert (table["priority"] == 0).mean() == pytest.approx(0.5, abs=0.02)  # 4 standard errors
    assert (table["weight"] == np.where(table["priority"] == 0, 2.0, 1.0)).all()
    assert set(table["ttft_slo_s"]) == {1.0}
    assert set(table["tpot_slo_s"]) == {0.05}
    larger = build_workload("azure-code", requests=10, rate_per_s=1, slo="proserve-32b").table
    assert (set(larger["ttft_slo_s"]), set(larger["tpot_slo_s"])) == ({2.0}, {0.1})


def test_columns_of_the_file_win(own):
    path = own("prompt_tokens,output_tokens,priority,ttft_slo_s\n10,1,1,0.3\n20,2,0,0.4\n30,3,2,0.5\n")
    table = build_workload(path, rate_per_s=1).table
    assert table["priority"].tolist() == [1, 0, 2]
    assert table["weight"].tolist() == [1, 2, 1]  # in agreement with the file's priorities
    assert table["ttft_slo_s"].tolist() == [0.3, 0.4, 0.5]
    assert table["tpot_slo_s"].tolist() == [0.05] * 3
    table = build_workload(own("prompt_tokens,output_tokens,weight\n1,1,3\n1,1,9\n1,1,3\n"), rate_per_s=1).table
    assert table["priority"].tolist() == [1, 0, 1]
    assert table["weight"].tolist() == [3, 9, 3]


def test_given_recipe_adds_nothing(own):
    table = build_workload(own(UNTIMED), rate_per_s=1, slo="given").table
    assert (set(table["priority"]), set(table["weight"])) == ({0}, {1.0})


def test_provenance_says_what_was_asked_for(own):
    provenance = build_workload(own(TIMED), rate_per_s=2, seed=4).provenance
    assert (provenance["slo"], provenance["seed"], provenance["rate_per_s"]) == ("proserve", 4, 2)
    assert provenance["file"] == "own.csv"
    assert provenance["sha256"]


# A family whose applications are its mix's, and recipes that go by those of multimodal requests.
BY_OTHER_APPLICATIONS = {("code-and-writing", slo) for slo in ("flowprefill", "flowprefill-colocated")}


@pytest.mark.parametrize("slo", RECIPES.names())
@pytest.mark.parametrize("trace", trace_names())
def test_every_family_with_every_recipe(trace, slo):
    if (trace, slo) in BY_OTHER_APPLICATIONS:
        with pytest.raises(WorkloadError, match="depends on the type of a request"):
            build_workload(trace, requests=20, rate_per_s=1, slo=slo)
    else:
        assert len(build_workload(trace, requests=20, rate_per_s=1, slo=slo)) == 20


def many(tmp_path, rows: int = 100):
    path = tmp_path / "many.csv"
    times = "".join(f"{10 + i / 2},{i + 1},1\n" for i in range(rows))
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + times)
    return path


def test_windows_of_a_file(tmp_path):
    path = many(tmp_path)
    first = build_workload(path, requests=10)
    assert first.table["prompt_tokens"].tolist() == list(range(1, 11))
    assert first.table["arrival_s"][0] == 10  # the first requests keep the file's clock
    later = build_workload(path, requests=10, window=37)
    assert later.table["prompt_tokens"].tolist() == list(range(38, 48))
    assert later.table["arrival_s"] == pytest.approx(np.arange(10) / 2)
    assert later.provenance["first_request"] == 37
    assert_same(build_workload(path, requests=10, window="37").table, later.table)
    assert build_workload(path, requests=10, window=90).table["prompt_tokens"][-1] == 100  # nothing wraps around
    limited = build_workload(path, requests=3, window=2, max_prompt_tokens=5)
    assert limited.table["prompt_tokens"].tolist() == [3, 4, 5]
    assert build_workload(path, requests=10, window=5, rate_per_s=4).rate_per_s == pytest.approx(4)


def test_seeds_take_different_windows(tmp_path):
    path = many(tmp_path, 1000)
    starts = [build_workload(path, requests=50, window="seed", seed=s).provenance["first_request"] for s in range(12)]
    assert starts[0] == 0
    assert len(set(starts)) == 12
    assert min(np.diff(np.sort(starts))) >= 50  # a dozen windows of a twentieth do not overlap
    everything = build_workload(path, window="seed", seed=3)
    assert everything.provenance["first_request"] == 0
    assert len(everything) == 1000


@settings(max_examples=100)
@given(length=st.integers(1, 10**7), data=st.data(), seed=st.integers(0, 2**40))
def test_a_window_never_reaches_over_the_end(length, data, seed):
    size = data.draw(st.integers(1, length))
    assert 0 <= window_start("seed", seed, length, size) <= length - size


@pytest.mark.parametrize("window", [-1, 91, "last", "-1", "1.5", ""])
def test_windows_that_are_none(tmp_path, window):
    with pytest.raises(WorkloadError, match="a window"):
        build_workload(many(tmp_path), requests=10, window=window)


def test_families_have_no_windows():
    first, by_seed = (build_workload("sharegpt", requests=9, rate_per_s=1, window=w) for w in ("first", "seed"))
    assert_same(first.table, by_seed.table)
