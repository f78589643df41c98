"""The embedded generator against its tables, and against the traces they were made from."""

import itertools
import json
import os
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ks_2samp, spearmanr

from experiments.quantiles.build_quantiles import SOURCES, build
from servegym.errors import WorkloadError
from servegym.traces import describe, generate, read_trace, trace_names
from servegym.traces.generators import quantile_table, tables

REQUESTS = 100_000
# Kolmogorov-Smirnov distance: 0.005 for the sampling error of 100,000 draws, 0.005 for the grid.
KS_TOLERANCE = 0.01
data = pytest.mark.skipif("SERVEGYM_DATA" not in os.environ, reason="SERVEGYM_DATA names no folder of traces")


def test_every_table_has_its_source_and_is_a_family():
    assert tables() == sorted(source.family for source in SOURCES)
    assert set(tables()) < set(trace_names())


@pytest.mark.parametrize("family", tables())
def test_tables_are_whole(family):
    content = json.loads((resources.files("servegym.traces.quantiles") / f"{family}.json").read_text("utf-8"))
    assert all(content[key] for key in ("source", "commit", "licence", "rows", "made_by", "sha256", "changes"))
    table = quantile_table(family)
    assert (table.levels[0], table.levels[-1]) == (0, 1)
    assert (np.diff(table.levels) > 0).all()
    assert (np.diff(table.prompt_tokens) >= 0).all()
    assert (np.diff(table.output_tokens, axis=1) >= 0).all()
    assert table.output_tokens.shape == (10, len(table.levels))
    assert min(table.prompt_tokens[0], table.output_tokens.min()) >= 1


@pytest.mark.parametrize("family", tables())
def test_generated_quantiles_match_the_table(family):
    table, trace = quantile_table(family), generate(family, REQUESTS)
    # The share of draws at or below a quantile and below it enclose its level, from both sides.
    at_or_below = np.searchsorted(np.sort(trace.prompt_tokens), table.prompt_tokens, "right") / REQUESTS
    below = np.searchsorted(np.sort(trace.prompt_tokens), table.prompt_tokens, "left") / REQUESTS
    assert (at_or_below >= table.levels - KS_TOLERANCE).all()
    assert (below <= table.levels + KS_TOLERANCE).all()


@data
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.family)
def test_generated_lengths_match_the_trace(source):
    real = read_trace(Path(os.environ["SERVEGYM_DATA"]) / "traces" / source.file)
    drawn = generate(source.family, REQUESTS, seed=1)
    assert ks_2samp(real.prompt_tokens, drawn.prompt_tokens).statistic < KS_TOLERANCE
    assert ks_2samp(real.output_tokens, drawn.output_tokens).statistic < KS_TOLERANCE
    assert drawn.prompt_tokens.mean() == pytest.approx(real.prompt_tokens.mean(), rel=0.03)
    assert drawn.output_tokens.mean() == pytest.approx(real.output_tokens.mean(), rel=0.03)
    rank_correlations = [spearmanr(trace.prompt_tokens, trace.output_tokens)[0] for trace in (real, drawn)]
    assert rank_correlations[0] == pytest.approx(rank_correlations[1], abs=0.03)
    quarters = np.quantile(real.prompt_tokens, [0, 0.25, 0.5, 0.75, 1])
    for low, high in itertools.pairwise(quarters):  # outputs given the prompt, not only alone
        given = [
            trace.output_tokens[(trace.prompt_tokens >= low) & (trace.prompt_tokens <= high)] for trace in (real, drawn)
        ]
        assert ks_2samp(*given).statistic < 0.05


@pytest.mark.slow
@data
def test_tables_are_made_anew_byte_for_byte(tmp_path):
    for path in build(Path(os.environ["SERVEGYM_DATA"]), tmp_path):
        shipped = resources.files("servegym.traces.quantiles") / path.name
        assert path.read_bytes() == shipped.read_bytes(), path.name


def test_sharegpt_keeps_to_its_context():
    trace = generate("sharegpt", REQUESTS)
    assert (trace.prompt_tokens + trace.output_tokens).max() <= 8192


def test_unknown_family():
    with pytest.raises(WorkloadError, match=r"unknown family 'gpt'; there are: .*azure-code"):
        generate("gpt", 10)


def test_describe_a_family():
    figures = describe("azure-code")
    assert figures["rate_per_s"] is None
    assert figures["prompt_tokens"]["p50"] == pytest.approx(1469, rel=0.03)
    assert figures["licence"] == "CC-BY-4.0"
