"""Lines below the time of every batch, for each device form."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.evaluation.bounds.least_work import LeastWork, Line, least_work
from servegym.latency_models.model import LatencyModel
from servegym.latency_models.profile import load_profile, profile_names
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.records import batches
from servegym.simulator.records.types import BATCH

BOUNDED = [name for name in profile_names() if load_profile(name).device.form != "slowest"]


def deployment_of(model: LatencyModel, total_blocks: int = 4000) -> Deployment:
    return Deployment(model, load_profile(BOUNDED[0]).estimator, total_blocks)


# Where a token of larger batches takes much less than one of usual batches: the hull runs low.
LOOSE = {"a100-qwen3-30b-a3b": 0.2}
POLYNOMIAL = LatencyModel.from_values("polynomial", {"c_3": 1e-13, "c_2": 2e-9, "c_1": 6e-5, "t_c": 0.01})
DEPLOYMENTS = {name: load_profile(name).deployment() for name in BOUNDED} | {"polynomial": deployment_of(POLYNOMIAL)}

chunks = st.tuples(st.sampled_from([1, 2, 7, 64, 500, 2047, 9000, 40_000]) | st.integers(1, 5000), st.integers(0, 9000))
decodes = st.lists(st.integers(1, 9000), max_size=40)


@pytest.mark.parametrize("name", DEPLOYMENTS)
@given(st.lists(chunks, max_size=12), decodes)
def test_every_line_is_below_every_batch_that_fits_memory(name, prefills, cached):
    deployment = DEPLOYMENTS[name]
    work = least_work([deployment])
    sums = np.zeros(1, BATCH)[0]
    held = 0
    for tokens, before in prefills:
        if held + tokens + before <= work.capacity_tokens:
            batches.add(sums, tokens, before, False)
            held += tokens + before
    for before in cached:
        if held + before + 1 <= work.capacity_tokens:
            batches.add(sums, 1, before, True)
            held += before + 1
    if sums.prefill_requests + sums.decode_requests == 0:
        return
    duration_s = deployment.device.batch_s(sums, deployment.device.coefficients)
    attention_s = (
        work.a_p * sums.prefill_tokens_squared
        + work.b_p * sums.prefill_tokens_cached
        + work.a_d * sums.decode_cached_tokens
    )
    for line in work.lines:
        least_s = line.constant_s + line.prefill_s * sums.prefill_tokens + line.decode_s * sums.decode_requests
        assert least_s + attention_s <= duration_s * (1 + 1e-9)
    assert work.iteration_s <= duration_s * (1 + 1e-9)


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_the_lines_are_close_to_batches_of_usual_sizes(name):
    """Else the bound held and said nothing."""
    deployment = DEPLOYMENTS[name]
    work = least_work([deployment])
    for tokens in (1, 64, 512, 2048):
        sums = np.zeros(1, BATCH)[0]
        batches.add(sums, tokens, 0, False)
        duration_s = deployment.device.batch_s(sums, deployment.device.coefficients)
        core_s = max(line.constant_s + line.prefill_s * tokens for line in work.lines) + work.a_p * tokens**2
        assert core_s > LOOSE.get(name, 0.6) * duration_s


def work_of(a_p: float, b_p: float, a_d: float = 0.0, kept: bool = False) -> LeastWork:
    return LeastWork((Line(0.5, 0.25, 0.125),), a_p, b_p, a_d, 1000, kept)


@pytest.mark.parametrize(("a_p", "b_p"), [(1.0, 0.0), (1.0, 1.0), (1.0, 2.0), (1.0, 5.0), (0.0, 1.0), (0.0, 0.0)])
def test_the_least_attention_of_a_prompt_is_that_of_the_best_chunks(a_p, b_p):
    for n in range(1, 9):
        found = []
        for cuts in itertools.product((False, True), repeat=n - 1):
            lengths = [1]
            for cut in cuts:
                if cut:
                    lengths.append(1)
                else:
                    lengths[-1] += 1
            before = np.cumsum([0, *lengths[:-1]])
            found.append(sum(a_p * t * t + b_p * t * k for t, k in zip(lengths, before, strict=True)))
        assert work_of(a_p, b_p).prompt_attention_s(np.array([float(n)]))[0] == pytest.approx(min(found))


def test_a_later_token_takes_a_decode_or_a_prefill_of_the_whole_context_whichever_is_less():
    (line,) = work_of(0.0, 0.0).lines
    prompt = np.array([9.0])
    assert work_of(0.0, 0.0, a_d=0.1).later_token_s(line, prompt)[0] == pytest.approx(0.125 + 0.9)
    assert work_of(0.0, 0.0, a_d=1.0).later_token_s(line, prompt)[0] == pytest.approx(10 * 0.25)
    # From host memory all but two tokens may come back.
    assert work_of(0.0, 0.0, a_d=1.0, kept=True).later_token_s(line, prompt)[0] == pytest.approx(2 * 0.25)


def test_lines_of_mixed_pools_are_below_the_devices_of_both():
    pools = [DEPLOYMENTS["a100-llama3-8b"], DEPLOYMENTS["h100-llama3-8b"], DEPLOYMENTS["ascend910b-qwen3-8b"]]
    mixed = least_work(pools)
    for pool in pools:
        for tokens, decoded in itertools.product((0, 1, 64, 700, 8192), (0, 1, 50, 200)):
            if tokens + decoded == 0:
                continue
            sums = np.zeros(1, BATCH)[0]
            if tokens:
                batches.add(sums, tokens, 0, False)
            for _ in range(decoded):
                batches.add(sums, 1, 100, True)
            duration_s = pool.device.batch_s(sums, pool.device.coefficients)
            attention_s = mixed.a_p * tokens**2 + mixed.a_d * 100 * decoded
            for line in mixed.lines:
                assert line.constant_s + line.prefill_s * tokens + line.decode_s * decoded + attention_s <= duration_s


def test_two_lines_mix_to_one_through_the_origin():
    work = LeastWork((Line(1.0, 1.0, 1.0), Line(-1.0, 3.0, 3.0)), 0.0, 0.0, 0.0, 1000, False)
    assert work.alone_s_per_token == pytest.approx(2.0)
    assert work.prompt_alone_s(np.array([1.0, 10.0])) == pytest.approx([2.0, 20.0])
    assert work.iteration_s == 2.0
