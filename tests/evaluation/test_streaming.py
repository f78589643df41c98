"""Traces that are streamed: the same tables as a run that has all in memory, and what cannot be streamed."""

import numpy as np
import pandas as pd
import pytest

import servegym
from servegym.errors import ServegymError
from servegym.evaluation.streaming import ERROR, UNKNOWN, Sketch, stream
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.runs.streaming import StreamedSimulation
from servegym.traces import streamed
from servegym.traces.streamed import StreamedTrace

ROWS, CHUNK = 300, 40
CLOSE = ("gain", "ideal_gain", "gain_ratio", "tdg_ratio", "fairness_by_client")  # sums in another order
SKETCHED = ("ttft_s", "tpot_s", "ttlt_s")


@pytest.fixture
def rows() -> pd.DataFrame:
    """Requests that come at the same time as others now and then, of two priorities, SLOs and three clients."""
    rng = np.random.default_rng(5)
    return pd.DataFrame(
        {
            "arrival_s": np.cumsum(rng.exponential(1 / 12, ROWS)).round(1),
            "prompt_tokens": rng.integers(1, 2000, ROWS),
            "output_tokens": rng.integers(1, 60, ROWS),
            "priority": rng.integers(0, 2, ROWS),
            "tpot_slo_s": rng.choice([0.03, 0.05], ROWS),
            "client": rng.choice(["a", "b", "c"], ROWS),
        }
    )


@pytest.fixture
def short_chunks(monkeypatch):
    monkeypatch.setattr(streamed, "ROWS", CHUNK)


@pytest.mark.parametrize(("ending", "words"), [
    ("parquet", {"engines": 3}),  # in turn by the request's number
    ("csv", {"prefill": 1, "decode": 2, "router": "min-load"}),
    ("parquet", {"scheduler": "weighted-vtc"}),  # it counts by client
    ("unnamed.parquet", {"scheduler": "weighted-vtc"}),  # or, where none is named, by priority
    (
        "csv",
        {"engines": 2, "router": "min-load", "scheduler": "fastserve-mlfq"},
    ),  # it keeps numbers of each request
    ("csv", {"engines": 2, "router": "prefix-affinity:refuse=0.3"}),  # its router refuses half of them
])  # fmt: skip
def test_a_streamed_run_is_the_whole_run(tmp_path, rows, short_chunks, ending, words):
    path = tmp_path / f"mine.{ending}"
    rows = rows.drop(columns="client") if "unnamed" in ending else rows
    rows.to_csv(path, index=False) if ending == "csv" else rows.to_parquet(path)
    whole = servegym.simulate(path, slo="given", **words)
    run = servegym.stream(path, tmp_path / "out", **words)
    requests, engines = (pd.read_parquet(file) for file in run.files)
    pd.testing.assert_frame_equal(requests, whole.requests, check_exact=True)
    pd.testing.assert_frame_equal(engines, whole.engines, check_exact=True)
    for name, figure in whole.summary.items():
        mine = run.summary[name]
        if name in CLOSE and figure is not None:
            assert mine == pytest.approx(figure, rel=1e-12), name
        elif name in SKETCHED:
            finite = np.sort(requests[name][np.isfinite(requests[name])])
            for key, share in {"p50": 0.5, "p90": 0.9, "p99": 0.99}.items():
                ranked = finite[max(int(np.ceil(share * len(finite))) - 1, 0)]
                assert mine[key] == pytest.approx(ranked, rel=ERROR), (name, key)
        elif name in UNKNOWN:
            assert not mine, name
        elif name != "wall_s":
            assert mine == figure, name


@pytest.mark.parametrize("policies", [{}, {"engines": 2, "router": "prefix-affinity:refuse=0.000001"}])
def test_pages_of_requests_that_have_ended_are_given_back(tmp_path, rows, short_chunks, policies):
    """Finished, or refused."""
    rows["arrival_s"] *= 10  # one after the other
    rows.to_parquet(tmp_path / "mine.parquet")
    trace = StreamedTrace(tmp_path / "mine.parquet")
    whole = trace.whole()
    scenario = ServingSpec().with_overrides({"trace": str(tmp_path / "mine.parquet"), "slo": "given", **policies})
    simulation, windows = StreamedSimulation(scenario.build(workload=whole.sample), whole), []
    for part in simulation.stream(trace.chunks()):
        assert np.isfinite(part.requests["refused_s" if policies else "finish_s"]).all()
        windows.append(simulation.loaded - simulation.first)
    assert simulation.first == ROWS and max(windows) <= CHUNK and len(windows) > 1
    for pages in simulation.pages:
        end = ROWS * pages.row_bytes
        assert end - 4096 < pages.given_back <= end
        assert not pages.rows[: pages.given_back // pages.row_bytes].view("u1").any(), "still there"


@pytest.mark.parametrize(("words", "said"), [
    ({"slo": "proserve"}, "slo is proserve"),
    ({"load": 0.5}, "load is 0.5"),
    ({"requests": 10}, "requests is 10"),
    ({"clients": 4}, "sessions, clients, max_concurrency"),
    ({"engines": 2, "incidents": ("fail:1@3",)}, "a scaler, incidents"),
    ({"engines": 2, "signal_delay_s": 0.1}, "delayed signals"),
    ({"predictor": "length_error=0.2"}, "a predictor"),
])  # fmt: skip
def test_what_cannot_be_streamed_is_said_in_a_line(tmp_path, rows, words, said):
    rows.to_parquet(tmp_path / "mine.parquet")
    with pytest.raises(ServegymError, match="stream") as error:
        stream(
            ServingSpec().with_overrides({"slo": "given", **words, "trace": str(tmp_path / "mine.parquet")}), tmp_path
        )
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(("columns", "said"), [
    ("prompt_tokens,output_tokens\n1,2\n", "has no arrival_s"),
    ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,374,44\n", "is in the format azure"),
    ("arrival_s,prompt_tokens,output_tokens\n1,2,3\n0.5,2,3\n", "row 2: arrival_s is 0.5, before the 1"),
])  # fmt: skip
def test_files_that_cannot_be_streamed(tmp_path, columns, said):
    (tmp_path / "mine.csv").write_text(columns)
    with pytest.raises(ServegymError, match=said):
        StreamedTrace(tmp_path / "mine.csv").whole()


def test_a_sketch_knows_quantiles_to_its_error():
    values = np.random.default_rng(0).lognormal(0, 3, 10_000)
    sketch = Sketch()
    for part in np.array_split(np.r_[values, np.nan], 7):
        sketch.add(part)
    ranked = np.sort(values)
    for name, share in {"p50": 0.5, "p90": 0.9, "p99": 0.99}.items():
        assert sketch.quantiles()[name] == pytest.approx(ranked[int(np.ceil(share * 10_000)) - 1], rel=ERROR)
    assert Sketch().quantiles() == {"p50": None, "p90": None, "p99": None}
