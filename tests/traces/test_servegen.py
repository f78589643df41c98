"""ServeGen's tables: rates, burstiness and lengths of clients, windows, and tables that are none."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from servegym.errors import WorkloadError
from servegym.traces import build_workload, describe, read_trace
from servegym.traces.loading import load_trace
from servegym.traces.servegen import read_tables

RATES = pd.DataFrame(
    [
        (0, 0, 2.0, 1.0, "Gamma", 1.0, 0.5),
        (1, 0, 0.5, 3.0, "Weibull", 0.4, 0.5),
        (9, 0, 2.5, 1.0, "Gamma", 1.0, 0.4),  # without lengths
        (0, 600, 4.0, 0.3, "Gamma", 11.0, 0.02),
        (1, 600, 1.0, 3.0, "Gamma", 0.11, 9.0),
    ],
    columns=["client", "window_start_s", "rate_per_s", "cv", "pattern", "param0", "param1"],
)
PDFS = pd.DataFrame(
    [
        (0, 0, "input_tokens", [0, 5, 9], [0.5, 0.25, 0.25]),
        (0, 600, "input_tokens", [50], [1.0]),
        (0, 0, "output_tokens", [3], [1.0]),
        (0, 0, "reason_ratio", [1], [1.0]),
        (1, 0, "input_tokens", [100], [1.0]),
        (1, 0, "output_tokens", [7], [1.0]),
    ],
    columns=["client", "window_start_s", "field", "lengths", "probs"],
)


@pytest.fixture
def write(tmp_path):
    def both(rates=RATES, pdfs=PDFS) -> Path:
        rates.to_parquet(tmp_path / "m_client_rates.parquet")
        pdfs.to_parquet(tmp_path / "m_length_pdfs.parquet")
        return tmp_path / "m_client_rates.parquet"

    return both


def test_clients_have_their_rates_and_lengths(write):
    trace = load_trace(write(), requests=4500)
    first = trace.arrival_s < 600
    for client, count in ((0, 1200), (1, 300)):
        assert (trace.given["client"][first] == client).sum() == count
    assert set(trace.prompt_tokens[first & (trace.given["client"] == 0)]) == {5, 9}  # 0 tokens: no request
    assert (trace.prompt_tokens == 5)[first & (trace.given["client"] == 0)].mean() == pytest.approx(0.5, abs=0.06)
    assert set(trace.prompt_tokens[~first & (trace.given["client"] == 0)]) == {50}
    assert set(trace.prompt_tokens[trace.given["client"] == 1]) == {100}  # the table in force is an earlier one
    assert (np.diff(trace.arrival_s) >= 0).all()
    assert trace.arrival_s[-1] <= 1200
    assert trace.provenance["notes"] == ["clients without lengths left out: 25.0% of the requests"]


def test_clients_are_as_bursty_as_they_are(write):
    trace = load_trace(write(), requests=3000, window=1)
    gaps = {client: np.diff(trace.arrival_s[trace.given["client"] == client]) for client in (0, 1)}
    cvs = {client: gap.std() / gap.mean() for client, gap in gaps.items()}
    assert cvs[0] == pytest.approx(0.3, rel=0.1)
    assert cvs[1] == pytest.approx(3.0, rel=0.3)  # 600 gaps


def test_windows_seeds_and_rates(write):
    path = write()
    first, again, other = (build_workload(path, requests=500, seed=seed) for seed in (1, 1, 2))
    assert first.digest == again.digest != other.digest
    assert (build_workload(path, requests=200, seed=1).table["client"] == first.table["client"][:200]).all()
    later = build_workload(path, requests=500, window=1)
    assert later.provenance["first_window_start_s"] == 600
    assert later.table["arrival_s"][0] < 5
    starts = {build_workload(path, requests=5, window="seed", seed=s).provenance["first_window"] for s in range(4)}
    assert starts == {0, 1}
    assert build_workload(path, requests=500, rate_per_s=1.0).rate_per_s == pytest.approx(1.0)
    assert build_workload(path, requests=100, max_prompt_tokens=60).table["prompt_tokens"].max() == 9
    assert describe(load_trace(path, requests=100))["format"] == "servegen"


def test_what_is_no_service(write):
    path = write()
    with pytest.raises(WorkloadError, match="has 4500 requests within the token limits from window 0 on"):
        build_workload(path, requests=4501)
    with pytest.raises(WorkloadError, match="starts at 0 to 1"):
        build_workload(path, requests=10, window=2)
    with pytest.raises(WorkloadError, match="has columns client"):
        read_trace(path)
    with pytest.raises(WorkloadError, match="no client has lengths"):
        build_workload(write(RATES[RATES.client == 9]))
    (path.parent / "m_length_pdfs.parquet").unlink()
    with pytest.raises(WorkloadError, match="needs its lengths in the same folder"):
        build_workload(path)


@pytest.mark.parametrize(("column", "value", "said"), [
    ("pattern", "Pareto", "row 2: pattern is 'Pareto'; it should be Gamma or Weibull"),
    ("rate_per_s", -1.0, "row 2: rate_per_s is -1"),
    ("rate_per_s", 1e9, "row 2: rate_per_s is 1e[+]09"),
    ("param0", 0.0, "row 2: param0 is 0"),
    ("window_start_s", -600, "row 2: window_start_s is -600"),
    ("client", -1, "row 2: client is -1"),
])  # fmt: skip
def test_bad_rates(write, column, value, said):
    rates = RATES.astype({column: type(value)})
    rates.loc[1, column] = value
    with pytest.raises(WorkloadError, match=said):
        build_workload(write(rates))


@pytest.mark.parametrize(
    ("lengths", "probs"),
    [([3], [0.5, 0.5]), ([3], [-1.0]), ([3], [np.nan]), ([0], [1.0]), ([3.5], [1.0]), ([], []), ([2**25], [1.0])],
)
def test_bad_lengths(write, lengths, probs):
    pdfs = PDFS.copy()
    pdfs["lengths"] = pdfs["lengths"].map(lambda cell: [float(length) for length in cell])
    for column, cell in (("lengths", lengths), ("probs", probs)):
        pdfs[column] = [*pdfs[column][:2], cell, *pdfs[column][3:]]
    with pytest.raises(WorkloadError, match="row 3: lengths is"):
        build_workload(write(pdfs=pdfs))


@pytest.mark.skipif("SERVEGYM_DATA" not in os.environ, reason="SERVEGYM_DATA names no folder of traces")
@pytest.mark.parametrize("name", ["m_small", "deepseek_r1"])
def test_public_tables(name):
    path = Path(os.environ["SERVEGYM_DATA"]) / "traces" / f"servegen_{name}_client_rates.parquet"
    tables = read_tables(path)
    here = tables.rates["window_start_s"] == tables.windows_s[70]
    count = int(np.round(tables.rates["rate_per_s"][here] * 600).sum())
    trace = load_trace(path, requests=count, window=70, seed=1)
    clients, counts = np.unique(trace.given["client"], return_counts=True)
    expected = dict(zip(tables.rates["client"][here], np.round(tables.rates["rate_per_s"][here] * 600), strict=True))
    assert dict(zip(clients, counts, strict=True)) == {client: count for client, count in expected.items() if count}
    assert trace.arrival_s[-1] <= 600
