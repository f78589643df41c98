"""Families made from a paper's figures have these figures."""

import numpy as np
import pytest

from servegym.traces import generate, trace_names
from servegym.traces.generators import tables
from servegym.traces.paper_families import POLYSERVE_LEVELS, POLYSERVE_TRACES

REQUESTS = 200_000


@pytest.fixture(scope="module")
def flowprefill():
    return generate("flowprefill", 500_000)


@pytest.mark.parametrize(("kind", "share", "mean", "p99", "std"), [
    ("text", 0.68, 590, 3040, 652),
    ("image", 0.08, 532, 2764, 510),
    ("search", 0.20, 5976, 16635, 3456),
    ("file", 0.04, 6833, 22390, 5186),
])  # fmt: skip
def test_flowprefill_types(flowprefill, kind, share, mean, p99, std):
    here = flowprefill.given["application"] == flowprefill.labels["application"].index(kind)
    prompt = flowprefill.prompt_tokens[here]
    assert here.mean() == pytest.approx(share, abs=0.003)
    assert prompt.mean() == pytest.approx(mean, rel=0.02)
    assert prompt.std() == pytest.approx(std, rel=0.06)  # its longest thousandth is cut
    assert np.quantile(prompt, 0.99) == pytest.approx(p99, rel=0.12)


def test_flowprefill_outputs(flowprefill):
    assert np.quantile(flowprefill.output_tokens, [0.5, 0.9]) == pytest.approx([129, 424], rel=0.03)


@pytest.mark.parametrize(("family", "prompt", "output"), [
    ("qoserve-conv", (928, 3830), (41, 342)),
    ("qoserve-code", (1930, 6251), (8, 43)),
    ("sharegpt", (1730, 5696), (415, 834)),  # QoServe's ShareGPT is the trace itself
])  # fmt: skip
def test_qoserve_medians_and_90_percents(family, prompt, output):
    trace = generate(family, REQUESTS)
    assert np.quantile(trace.prompt_tokens, [0.5, 0.9]) == pytest.approx(prompt, rel=0.04)
    assert np.quantile(trace.output_tokens, [0.5, 0.9]) == pytest.approx(output, rel=0.04, abs=1)


@pytest.mark.parametrize(("family", "prompt", "output"), [
    ("uniform-4096-1024", (2047, 4093, 6149, 7377, 8108), (510, 1023, 1535, 1843, 2027)),
    ("uniform-512-512", (255, 511, 768, 921, 1013), (256, 511, 768, 922, 1014)),
    ("semantic", (125, 250, 375, 450, 495), (125, 250, 375, 450, 495)),
])  # fmt: skip
def test_uniform_percentiles(family, prompt, output):
    trace = generate(family, REQUESTS)
    levels = [0.25, 0.5, 0.75, 0.9, 0.99]
    assert np.quantile(trace.prompt_tokens, levels) == pytest.approx(prompt, rel=0.02)
    assert np.quantile(trace.output_tokens, levels) == pytest.approx(output, rel=0.02)
    assert (trace.prompt_tokens.min(), trace.output_tokens.min()) == (1, 1)
    most = {"uniform-4096-1024": (8192, 2048), "uniform-512-512": (1024, 1024), "semantic": (499, 499)}[family]
    assert (trace.prompt_tokens.max(), trace.output_tokens.max()) == most


@pytest.mark.parametrize("family", sorted(set(trace_names()) - set(tables())))
def test_they_name_their_source(family):
    trace = generate(family, 10, seed=1)
    assert trace.provenance["source"]
    assert trace.provenance["family"] == family
    assert min(trace.prompt_tokens.min(), trace.output_tokens.min()) >= 1


@pytest.mark.parametrize("name", POLYSERVE_TRACES)
def test_polyserve_quantiles(name):
    """Those of its Table 1; ShareGPT's prompts are short: half have at most 36 tokens, not the 1730 of QoServe's."""
    trace = generate(f"polyserve-{name}", REQUESTS)
    for tokens, printed in zip((trace.prompt_tokens, trace.output_tokens), POLYSERVE_TRACES[name], strict=True):
        found = np.quantile(tokens, POLYSERVE_LEVELS)
        assert found == pytest.approx(printed, rel=0.04, abs=1)
        assert (tokens.min(), tokens.max()) == (1, printed[-1])
    assert abs(np.corrcoef(trace.prompt_tokens, trace.output_tokens)[0, 1]) < 0.02


def test_splitwise_is_the_conversation_trace_of_azure():
    trace = generate("azure-conv", REQUESTS)
    prompts, outputs = POLYSERVE_TRACES["splitwise"]
    assert np.quantile(trace.prompt_tokens, POLYSERVE_LEVELS) == pytest.approx(prompts, rel=0.02)
    assert np.quantile(trace.output_tokens, POLYSERVE_LEVELS) == pytest.approx(outputs, rel=0.02)
