"""Designed batches: they fit the engine, fill its space, and are counted as the simulator counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.adapters.profiling.design import REGIMES, Batch, Prefill, Space, design, mean_sums
from servegym.errors import ProfilingError
from servegym.latency_models.fitting import regime

spaces = st.builds(
    Space, batch_tokens=st.integers(2, 10_000), sequences=st.integers(1, 300), context_tokens=st.integers(64, 40_000),
    kv_tokens=st.integers(128, 500_000),
)  # fmt: skip


@given(space=spaces, count=st.integers(1, 40), seed=st.integers(0, 5))
def test_every_batch_fits_the_engine(space, count, seed):
    batches = design(space, count, seed)
    assert len(batches) == count
    for batch in batches:
        computed = sum(each.tokens for each in batch.prefills) + len(batch.decodes)
        assert 1 <= computed <= space.batch_tokens
        assert 1 <= len(batch.prefills) + len(batch.decodes) <= space.sequences
        assert all(each.tokens >= 1 and each.cached >= 0 for each in batch.prefills)
        assert all(each.tokens + each.cached < space.context_tokens for each in batch.prefills)
        assert all(1 <= context < space.context_tokens for context in batch.decodes)
        held = sum(each.tokens + each.cached for each in batch.prefills) + sum(batch.decodes)
        assert held <= space.kv_tokens


def test_it_fills_the_space():
    space = Space(2048, 64, 4096, 131072)
    batches = design(space, 120)
    kinds = [REGIMES[int(regime(batch.sums())[0])] for batch in batches]
    assert {name: kinds.count(name) for name in REGIMES} == dict.fromkeys(REGIMES, 40)
    tokens = np.array([sum(each.tokens for each in batch.prefills) for batch in batches if batch.prefills])
    decodes = np.array([len(batch.decodes) for batch in batches if batch.decodes])
    cached = np.array([batch.prefills[0].cached for batch in batches if batch.prefills])
    for values, most in ((tokens, 2048), (decodes, 64)):
        octaves = np.histogram(np.log2(values), bins=4, range=(0, np.log2(most)))[0]
        assert octaves.min() >= 8  # of 80: a quarter of the range each
    assert 0.35 < (cached > 0).mean() < 0.65
    assert cached.max() > 1500


@pytest.mark.parametrize("kind", REGIMES)
@pytest.mark.parametrize("seed", range(3))
def test_each_regime_fills_the_space(kind, seed):
    """By itself: no combination of a regime with some range of a dimension is left out."""
    space = Space(2048, 64, 4096, 2**20)
    batches = [batch for batch in design(space, 120, seed) if REGIMES[int(regime(batch.sums())[0])] == kind]

    def quarters(values: list[float], least: float, most: float) -> np.ndarray:
        return np.histogram(np.log(values), bins=4, range=(np.log(least), np.log(most)))[0]

    if kind != "prefill":
        assert quarters([len(batch.decodes) for batch in batches], 1, 64).min() >= 4  # of 40
        assert quarters([float(np.mean(batch.decodes)) for batch in batches], 15, 4096 / 1.5).min() >= 4
    if kind != "decode":
        assert quarters([sum(each.tokens for each in batch.prefills) for batch in batches], 1, 2048).min() >= 4
        assert min(np.bincount([len(batch.prefills) for batch in batches], minlength=5)[1:]) >= 4
        assert quarters([max(1, batch.prefills[0].cached) for batch in batches], 1, 4096)[2:].min() >= 4


def test_more_batches_begin_as_fewer():
    space = Space()
    assert design(space, 50, 3)[:20] == design(space, 20, 3)
    assert design(space, 20, 3) != design(space, 20, 4)


def test_sums_by_hand():
    sums = Batch((Prefill(10, 4), Prefill(3)), (7, 20)).sums()[0]
    assert sums["prefill_requests"] == 2
    assert sums["prefill_tokens"] == 13
    assert sums["prefill_tokens_squared"] == 109
    assert sums["prefill_tokens_cached"] == 40
    assert sums["prefill_cached_tokens"] == 4
    assert sums["longest_prefill_tokens"] == 10
    assert sums["decode_requests"] == 2
    assert sums["decode_cached_tokens"] == 27
    assert sums["longest_decode_cached"] == 20


def test_wrong_settings():
    with pytest.raises(ProfilingError, match="sequences"):
        Space(sequences=0)
    with pytest.raises(ProfilingError, match="batches"):
        design(Space(), 0)


def test_the_means_of_batches():
    sums = mean_sums([Batch((Prefill(10, 4),), (7, 20)), Batch((), (8, 22, 30))])[0]
    assert (sums["prefill_tokens"], sums["prefill_tokens_cached"], sums["longest_prefill_tokens"]) == (5, 20, 5)
    assert (sums["decode_requests"], sums["decode_cached_tokens"]) == (2.5, 43.5)
