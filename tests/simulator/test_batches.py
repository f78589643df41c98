"""Sums of a batch, and the largest chunk that fits a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.simulator.compilation import numba_types as types
from servegym.simulator.compilation.kernels import compiled
from servegym.simulator.records import batches
from servegym.simulator.records import types as layout
from servegym.simulator.records.signatures import ESTIMATOR, array
from tests.strategies import linear_models

pytestmark = pytest.mark.nojit

SUMS = array(layout.BATCH)
shapes = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 90), st.booleans()), max_size=6)


def add_all(sums: np.record, batch: list[tuple[int, int, bool]]) -> None:
    for tokens, cached, decoding in batch:
        batches.add(sums, 1 if decoding else tokens, cached, decoding)


@given(batch=shapes)
def test_sums(batch):
    sums = np.ones(1, layout.BATCH)  # what was there before does not count
    batches.clear(sums[0])
    add_all(sums[0], batch)
    prefills = [(lq, lkv) for lq, lkv, decoding in batch if not decoding]
    decodes = [lkv for _, lkv, decoding in batch if decoding]
    assert sums[0][list(layout.BATCH_SUMS)].tolist() == (
        len(prefills), sum(lq for lq, _ in prefills), sum(lq * lq for lq, _ in prefills),
        sum(lq * lkv for lq, lkv in prefills), sum(lkv for _, lkv in prefills),
        max((lq for lq, _ in prefills), default=0), len(decodes), sum(decodes), max(decodes, default=0),
    )  # fmt: skip
    assert sums[0].drafts.known == 0.0
    copy = np.ones(1, layout.BATCH)
    batches.copy(copy[0], sums[0])
    assert copy.tobytes() == sums.tobytes()


@given(batch=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 90)), max_size=6), k=st.integers(1, 9))
def test_sums_of_drafts(batch, k):
    sums, engine = np.ones(1, layout.BATCH), np.zeros(1, layout.ENGINE)
    engine[0].speculation.k = k
    batches.begin(sums[0], engine[0])
    for drafts, cached in batch:
        batches.add(sums[0], 1 + drafts, cached, True)
    having = [(drafts, cached) for drafts, cached in batch if drafts > 0]
    assert sums[0].drafts.tolist() == (
        1,
        len(having),
        sum(drafts for drafts, _ in having),
        sum(drafts * drafts for drafts, _ in having),
        sum(drafts * (cached + 1) for drafts, cached in having),
        max((drafts for drafts, _ in having), default=0),
    )
    assert (sums[0].decode_requests, sums[0].prefill_tokens) == (len(batch), 0)
    copy = np.zeros(1, layout.BATCH)
    batches.copy(copy[0], sums[0])
    assert copy.tobytes() == sums.tobytes()


@compiled(types.int64(SUMS, types.int64, types.int64, types.boolean, types.float64, ESTIMATOR))
def largest_chunk(sums, most, cached, decoding, time_budget_s, estimator):
    return batches.largest_chunk(sums[0], sums[1], most, cached, decoding, time_budget_s, estimator)


@given(
    model=linear_models(),
    batch=shapes,
    most=st.integers(1, 60),
    cached=st.integers(0, 90),
    time_budget_s=st.one_of(st.integers(0, 640).map(lambda n: n / 64), st.floats(0, 10), st.just(np.inf)),
)
def test_largest_chunk_against_trying_every_one(model, batch, most, cached, time_budget_s):
    sums = np.zeros(2, layout.BATCH)
    add_all(sums[0], batch)
    before = sums[0].tobytes()

    def fits(chunk: int) -> bool:
        longer = sums[:1].copy()
        batches.add(longer[0], chunk, cached, False)
        return model.evaluate(longer)[0] <= time_budget_s

    largest = max((chunk for chunk in range(1, most + 1) if fits(chunk)), default=0)
    assert largest_chunk(sums, most, cached, False, time_budget_s, model.as_estimator()) == largest
    assert sums[0].tobytes() == before
    decode = sums[:1].copy()
    batches.add(decode[0], 1, cached, True)
    fits_decode = int(model.evaluate(decode)[0] <= time_budget_s)
    assert largest_chunk(sums, 1, cached, True, time_budget_s, model.as_estimator()) == fits_decode


@compiled(types.float64(SUMS, types.int64, types.int64, types.boolean, ESTIMATOR))
def estimate_alone(scratch, tokens, cached, decoding, estimator):
    return batches.estimate_alone(scratch[0], tokens, cached, decoding, estimator)


@given(model=linear_models(), tokens=st.integers(1, 60), cached=st.integers(0, 90), decoding=st.booleans())
def test_a_request_alone_is_a_batch_of_its_own(model, tokens, cached, decoding):
    scratch = np.ones(1, layout.BATCH)  # what was there before does not count
    own = np.zeros(1, layout.BATCH)
    add_all(own[0], [(tokens, cached, decoding)])
    assert (
        estimate_alone(scratch, 1 if decoding else tokens, cached, decoding, model.as_estimator())
        == model.evaluate(own)[0]
    )


@given(model=linear_models())
def test_an_empty_batch_costs_the_constant_part(model):
    assert model.evaluate(batches.EMPTY_BATCH)[0] == model.coefficients_by_name["t_c"]
