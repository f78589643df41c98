"""The picture of a preemption shows what it says: the run it is drawn from stops at the end of an operator."""

import numpy as np
import pytest

from experiments.pages import preemption_plot as plot


@pytest.fixture(scope="module")
def result():
    return plot.two_requests()


def test_the_long_prompt_gives_way_and_goes_on(result):
    ran = plot.pieces(result)
    assert [(piece.request, piece.began, piece.ended) for piece in ran] == [
        (0, "batch_start", "suspended"), (1, "batch_start", "batch_end"), (0, "resumed", "batch_end"),
    ]  # fmt: skip
    assert ran[0].end_s == ran[1].start_s and ran[1].end_s == ran[2].start_s
    assert (result.requests["ttft_s"] < result.requests["ttft_slo_s"]).all()


def test_it_stops_at_the_first_end_of_an_operator_after_the_arrival(result):
    ends = plot.operator_ends(0.0)
    stopped_s = plot.pieces(result)[0].end_s
    assert stopped_s == pytest.approx(ends[ends >= plot.ARRIVAL_S[1]].min(), abs=1e-9)
    assert stopped_s < ends[np.searchsorted(ends[:, -1], plot.ARRIVAL_S[1]), -1], "before the end of the layer"


def test_it_is_drawn(result, tmp_path):
    plot.plot(result).savefig(tmp_path / plot.FILE)
    assert (tmp_path / plot.FILE).stat().st_size > 10000
