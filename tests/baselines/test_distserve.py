"""DistServe by hand: whole prompts by arrival, or chunks by deadline; and on one prefill and one decode engine."""

import dataclasses

import pytest

from servegym.baselines.registry import scheduler
from servegym.simulator.inputs.cluster import Cluster, Link
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import SECONDS, decode, formed, ranked, state
from tests.timelines import iterations

CHUNKED = pytest.mark.parametrize("name", ["distserve-cp2k", "distserve-cp8k"])


def limited(name: str, **settings: int):
    return scheduler(name).with_settings(**settings)


@pytest.mark.nojit
def test_prompts_are_taken_whole_in_order_of_arrival():
    rows = [state(4, arrival_s=1.0), state(5, arrival_s=0.0), state(3, arrival_s=2.0)]
    assert formed(limited("distserve", max_num_batched_tokens=9), *rows, now_s=2.0).batch == [(1, 5), (0, 4)]
    assert formed(limited("distserve", max_num_batched_tokens=12), *rows, now_s=2.0).batch == [(1, 5), (0, 4), (2, 3)]


@pytest.mark.nojit
def test_what_does_not_fit_is_not_passed_over():
    rows = [state(4), state(7), state(1)]
    assert formed(limited("distserve", max_num_batched_tokens=9), *rows).batch == [(0, 4)]
    assert formed(limited("distserve", max_num_batched_tokens=9, prefill_batch_size=1), state(1), state(1)).batch == [
        (0, 1)
    ]


@pytest.mark.nojit
def test_a_longer_prompt_runs_alone():
    assert formed(limited("distserve", max_num_batched_tokens=9), state(20), state(1)).batch == [(0, 20)]


@pytest.mark.nojit
def test_decodes_run_where_there_is_no_prompt():
    policy = limited("distserve", decode_batch_size=2)
    assert formed(policy, decode(), state(4)).batch == [(1, 4)]
    assert formed(policy, decode(arrival_s=2.0), decode(), decode(), now_s=2.0).batch == [(1, 1), (2, 1)]


@pytest.mark.nojit
def test_limits():
    limits = ranked(scheduler("distserve"), state(3), decode()).limits
    assert (limits.max_num_batched_tokens, limits.sequence_budget, limits.max_num_seqs) == (8192, 128, 0)  # 0: not set
    assert ranked(scheduler("distserve"), decode()).limits.sequence_budget == 1024
    for name, tokens in (("distserve-cp2k", 2048), ("distserve-cp8k", 8192)):
        limits = ranked(scheduler(name), state(3)).limits
        assert (limits.max_num_batched_tokens, limits.sequence_budget, limits.whole_prompts) == (tokens, 1024, 0)


@pytest.mark.nojit
@CHUNKED
def test_the_earliest_deadline_has_the_next_chunk(name):
    rows = [state(9, 0, 4, ttft_slo_s=30.0), state(3, ttft_slo_s=10.0), state(4, ttft_slo_s=20.0)]
    assert formed(limited(name, max_num_batched_tokens=8), *rows).batch == [(1, 3), (2, 4), (0, 1)]
    assert formed(limited(name, max_num_batched_tokens=3), *rows).batch == [(1, 3)]


@pytest.mark.nojit
@CHUNKED
def test_ties_in_deadline_go_by_place_and_decodes_first(name):
    rows = [state(9), state(9), decode(ttft_slo_s=5000.0)]
    assert formed(limited(name, max_num_batched_tokens=11), *rows).batch == [(2, 1), (0, 9), (1, 1)]


@pytest.mark.nojit
@CHUNKED
def test_a_deadline_of_the_whole_answer_counts(name):
    rows = [state(2, ttft_slo_s=30.0), state(2, ttft_slo_s=1.0, ttlt_slo_s=40.0)]
    assert formed(limited(name, max_num_batched_tokens=2), *rows).batch == [(0, 2)]


def first_token_times(policy: str, **settings: int) -> list[float]:
    """One prefill and one decode engine, 1 s a token: a prompt of 40, and at 5 s one of 4 that is due in 9 s."""
    workload = Workload.from_columns(
        {
            "arrival_s": [0.0, 5.0], "prompt_tokens": [40, 4], "output_tokens": [3, 3], "ttft_slo_s": [100.0, 9.0],
            "tpot_slo_s": 100.0,
        }
    )  # fmt: skip
    engine = Deployment(SECONDS, SECONDS, total_blocks=1000, block_tokens=1, watermark=0.0)
    chosen = limited(policy, **settings)
    pools = tuple(dataclasses.replace(engine, role=role, scheduler=chosen) for role in ("prefill", "decode"))
    cluster = Cluster(pools, Link(bytes_per_token=1, bytes_per_s=1e9))
    result = Simulation(Scenario(workload, cluster, chosen)).run()
    assert (result.requests["finish_s"] > 0).all()
    return result.requests["ttft_s"].tolist()


def test_an_urgent_prompt_waits_for_a_chunk_and_not_for_a_prompt():
    """A batch takes 1 s more than its tokens. Whole: at 41 and 46. In chunks of 10: the first ends at 11, and the next
    has the 4 tokens and 6 of the other: at 22; 24 are left, in three batches: at 22 + 11 + 11 + 5.
    """
    assert first_token_times("distserve") == pytest.approx([41.0, 41.0])
    assert first_token_times("distserve-cp2k", max_num_batched_tokens=10) == pytest.approx([49.0, 22.0 - 5.0])
    assert first_token_times("distserve-cp8k") == first_token_times("distserve")


def test_decodes_are_scheduled_on_the_decode_engine():
    engine = Deployment(SECONDS, SECONDS, total_blocks=1000, block_tokens=1, watermark=0.0)
    chosen = scheduler("distserve")
    pools = tuple(dataclasses.replace(engine, role=role, scheduler=chosen) for role in ("prefill", "decode"))
    workload = Workload.from_columns({"arrival_s": 0.0, "prompt_tokens": [2, 3], "output_tokens": 4})
    scenario = Scenario(workload, Cluster(pools, Link(bytes_per_token=1, bytes_per_s=1e9)), chosen)
    batches = iterations(Simulation(scenario, record_timeline=True).run())
    assert [batch.batch for batch in batches if batch.engine == 0] == [[(0, 2), (1, 3)]]
    decodes = [batch.batch for batch in batches if batch.engine == 1]
    assert len(decodes) >= 3
    assert {tokens for batch in decodes for _, tokens in batch} == {1}
