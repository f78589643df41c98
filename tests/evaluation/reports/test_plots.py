"""What pictures show: their numbers against small cases worked by hand, and sums that must come out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.evaluation.reports import plots
from servegym.evaluation.reports.latency_plots import distribution, latencies, plot_latencies
from servegym.evaluation.reports.plots import Bins
from servegym.evaluation.reports.urgency import urgency
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation
from tests.evaluation.reports.runs import by_hand, cramped
from tests.simulator.scenes import requests, scene


@pytest.fixture(scope="module", params=[1, 3])
def run(request: pytest.FixtureRequest) -> Result:
    return cramped("slide-batching", request.param)


@given(st.floats(1e-6, 1e6), st.integers(1, 500))
def test_bins_are_as_many_as_allowed_and_of_round_width(span_s: float, most: int) -> None:
    bins = Bins.over(span_s, most)
    assert bins.count <= most
    assert len(bins.edges_s) == bins.count + 1 and bins.edges_s[-1] == span_s
    assert (np.diff(bins.edges_s) > 0).all() and np.diff(bins.edges_s).max() <= bins.width_s * (1 + 1e-6)
    mantissa = float(f"{bins.width_s:e}".partition("e")[0])
    assert mantissa in (1, 2, 5)


def test_a_span_is_shared_out_over_the_bins_it_lies_in() -> None:
    bins = Bins(2.0, 3, 6.0)
    assert bins.seconds(np.array([1.0, 3.0]), np.array([5.0, 4.0]), np.array([10.0, 1.0])).tolist() == [10, 21, 10]
    assert bins.means(np.array([1.0]), np.array([5.0])).tolist() == [0.5, 1, 0.5]
    assert bins.rates(np.array([0.0, 2.0, 6.0]), np.array([2.0, 4.0, 8.0])).tolist() == [1, 2, 4]
    cut = Bins(2.0, 3, 5.0)
    assert cut.means(np.array([3.0]), np.array([5.0])).tolist() == [0, 0.5, 1]


def test_gain_per_second_sums_to_the_gain(run: Result) -> None:
    bins, earned, ideal = plots.gain_rates(run)
    assert earned.sum() * bins.width_s == pytest.approx(run.summary["gain"], rel=1e-12)
    assert ideal.sum() * bins.width_s == pytest.approx(run.summary["ideal_gain"], rel=1e-12)


def test_curves_of_a_run_by_hand() -> None:
    result = by_hand()  # 10 s in bins of 0.05 s, rates in bins of 0.2 s
    bins, earned, ideal = plots.gain_rates(result)
    assert bins.width_s == pytest.approx(0.2)
    # Deadlines at 7, 8.1 and 9.2 s; tokens at 6, 8 and 10 s.
    assert {round(bins.edges_s[at], 6): earned[at] * 0.2 for at in np.flatnonzero(earned)} == pytest.approx(
        {6: 1, 8: 1}
    )
    assert {round(bins.edges_s[at], 6): ideal[at] * 0.2 for at in np.flatnonzero(ideal)} == pytest.approx({1: 3})
    bins, waiting, running = plots.requests_over_time(result)
    at = np.searchsorted(bins.edges_s, [0.52, 3.02, 9.52]) - 1
    assert waiting[at] == pytest.approx(0) and running[at] == pytest.approx([0, 1, 1])
    bins, in_use = plots.kv_blocks_over_time(result)
    assert in_use[0][at] == pytest.approx([0, 4, 6])
    bins, batch = plots.batches_over_time(result)
    assert batch["prefill_tokens"][at] == pytest.approx([0, 4, 0])
    assert batch["decode_requests"][at] == pytest.approx([0, 0, 1])


def test_curves_hold_what_the_summary_says(run: Result) -> None:
    span_s = run.summary["span_s"]
    bins, waiting, running = plots.requests_over_time(run)
    assert (waiting + running) @ np.diff(bins.edges_s) == pytest.approx(run.requests["ttlt_s"].sum())
    bins, in_use = plots.kv_blocks_over_time(run)
    mean_use = in_use @ np.diff(bins.edges_s) / (60 * span_s)
    np.testing.assert_allclose(mean_use, run.engines["kv_use_mean"])


def test_a_batch_is_averaged_over_the_time_in_which_one_runs() -> None:
    # A prefill of 1 token from 0 to 2 s, then nothing until the next at 100 s: the average batch has 1 token.
    result = Simulation(scene(requests(arrival_s=[0.0, 100.0], prompt_tokens=1)), record_timeline=True).run()
    bins, batch = plots.batches_over_time(result)
    assert set(batch["prefill_tokens"].round(9)) == {0, 1}
    assert batch["prefill_tokens"][0] == batch["prefill_tokens"][bins.count - 1] == pytest.approx(1)


def test_latencies_are_of_those_an_slo_judges_by_them() -> None:
    # Two interactive requests, the second with one token; one with a TTLT. All in one batch of edf, 1 + 3 x 2 s.
    workload = requests(
        prompt_tokens=[2, 2, 2], output_tokens=[2, 1, 1], priority=[0, 1, 1], ttlt_slo_s=[np.inf, np.inf, 50.0],
        ttft_slo_s=5.0, tpot_slo_s=[1.0, 4.0, 4.0],
    )  # fmt: skip
    result = Simulation(scene(workload)).run()
    ttft, tpot, ttlt = (latencies(result, name) for name in ("ttft", "tpot", "ttlt"))
    assert (ttft.slo_s, tpot.slo_s, ttlt.slo_s) == (5.0, 1.0, 50.0)
    assert {priority: values.tolist() for priority, values in ttft.of_priority.items()} == {0: [7], 1: [7]}
    assert {priority: values.tolist() for priority, values in tpot.of_priority.items()} == {0: [2]}
    assert {priority: values.tolist() for priority, values in ttlt.of_priority.items()} == {1: [7]}


def test_slos_that_differ_make_multiples_of_them() -> None:
    workload = requests(prompt_tokens=[2, 2], ttft_slo_s=[5.0, 10.0])
    ttft = latencies(Simulation(scene(workload)).run(), "ttft")
    assert ttft.slo_s is None and ttft.of_priority[0].tolist() == [0.5, 1.0]


def test_a_distribution_ends_where_requests_have_not_come() -> None:
    values, shares = distribution(np.array([1.0, 2.0, np.inf, np.inf]))
    assert values.tolist() == [1, 2] and shares.tolist() == [0.25, 0.5]
    values, shares = distribution(np.sort(np.random.default_rng(0).random(10_000)))
    assert len(values) <= 400 and shares[-1] == 1
    assert np.abs(values - shares).max() < 0.03
    assert distribution(np.array([np.inf]))[0].size == 0


@pytest.mark.parametrize("until_s", [np.inf, 0.5])
def test_every_figure_names_its_units(until_s: float) -> None:
    result = cramped("slide-batching", 3, until_s=until_s)
    figures = [plots.plot_urgency(result, urgency(result)), plot_latencies(result)]
    figures += [
        plot(result) for plot in (plots.plot_gain, plots.plot_requests, plots.plot_kv_memory, plots.plot_batches)
    ]
    for figure in figures:
        assert figure.axes[0].get_ylabel()
        for axes in figure.axes:
            assert axes.get_xlabel().endswith("(s)")
            assert axes.get_legend() is not None


def test_a_figure_is_written_as_png(tmp_path) -> None:
    path = tmp_path / "gain.png"
    plots.plot_gain(by_hand()).savefig(path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_areas_differ_without_colour(run: Result) -> None:
    for axes in plots.plot_batches(run).axes:
        assert [(area.get_fill(), area.get_hatch()) for area in axes.patches] == [(True, ""), (False, plots.HATCH)]
