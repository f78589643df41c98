"""Families of ServeGen's clients against their tables, and against the tables they were made from."""

import os
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ks_2samp

from experiments.quantiles.build_quantiles import CLIENT_SOURCES
from servegym.traces import build_workload, generate
from servegym.traces.loading import load_trace
from servegym.traces.quantiles import CLIENTS, families_with, table_of
from servegym.traces.servegen import WINDOW_S, read_tables

REQUESTS = 400_000


def test_every_table_has_its_source():
    assert families_with(CLIENTS) == sorted(source.family for source in CLIENT_SOURCES)


@pytest.mark.parametrize("family", families_with(CLIENTS))
def test_tables_are_whole(family):
    content = table_of(family, CLIENTS)
    assert all(content[key] for key in ("source", "commit", "licence", "made_by", "sha256", "changes"))
    assert sum(client["share"] for client in content["clients"]) == pytest.approx(1, abs=1e-6)
    assert (content["levels"][0], content["levels"][-1]) == (0, 1)
    for client in content["clients"]:
        for field in ("prompt_tokens", "output_tokens"):
            assert len(client[field]) == len(content["levels"])
            assert client[field][0] >= 1
            assert (np.diff(client[field]) >= 0).all()


@pytest.mark.parametrize("family", families_with(CLIENTS))
def test_clients_have_their_shares_and_quantiles(family):
    content, trace = table_of(family, CLIENTS), generate(family, REQUESTS)
    levels = np.array(content["levels"])
    for client in content["clients"]:
        here = trace.given["client"] == client["client"]
        error = 5 * np.sqrt(client["share"] / REQUESTS)
        assert here.mean() == pytest.approx(client["share"], abs=error)
        if here.sum() < 10_000:
            continue
        for field in ("prompt_tokens", "output_tokens"):
            lengths = np.sort(getattr(trace, field)[here])
            assert (np.searchsorted(lengths, client[field], "right") / here.sum() >= levels - 0.02).all()
            assert (np.searchsorted(lengths, client[field], "left") / here.sum() <= levels + 0.02).all()


def test_clients_reach_the_workload():
    table = build_workload("servegen-m-small", requests=1000, rate_per_s=5).table
    assert len(set(table["client"])) > 5


@pytest.mark.slow
@pytest.mark.skipif("SERVEGYM_DATA" not in os.environ, reason="SERVEGYM_DATA names no folder of traces")
def test_lengths_match_the_tables_of_a_day():
    path = Path(os.environ["SERVEGYM_DATA"]) / "traces" / "servegen_deepseek_r1_client_rates.parquet"
    rates_per_s = read_tables(path).rates["rate_per_s"]
    day = load_trace(path, requests=int(np.round(rates_per_s * WINDOW_S).sum()))
    drawn = generate("servegen-deepseek-r1", REQUESTS)
    assert ks_2samp(day.prompt_tokens, drawn.prompt_tokens).statistic < 0.03
    assert ks_2samp(day.output_tokens, drawn.output_tokens).statistic < 0.03
