"""Speculative decoding (docs/feature_rules.md): what is drafted, accepted and taken for it."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegym.baselines.registry import router_names, scheduler, scheduler_names
from servegym.errors import DeploymentError, ExperimentError
from servegym.evaluation.bounds.clairvoyant import tdg_upper_bound
from servegym.evaluation.identity import deployment_digest
from servegym.latency_models.forms import forms
from servegym.latency_models.model import LatencyModel
from servegym.simulator.features.speculating import speculating_pool
from servegym.simulator.features.speculation import Speculation, speculation_of
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.gains import Gain
from servegym.simulator.records import batches
from servegym.simulator.records.types import BATCH, SCHEDULED, TBT_BINS, TOKEN
from servegym.simulator.runs.simulation import Simulation
from tests.models import models
from tests.random_scheduler import POLICY
from tests.seeds import drawn
from tests.simulator.whole_runs import finished
from tests.strategies import cluster_scenarios, scenarios, sessions_of

ARRAYS = ("requests", "outcomes", "engines", "timeline", "tbt_histogram", "status")
UNIT = {"a_p": 0, "b_p": 0, "c_p": 0, "a_d": 0, "b_d": 0, "t_c": 1.0}


def served(columns: dict, speculation: Speculation | None, policy="vllm-v1", blocks=100, **more) -> Simulation:
    """A batch takes 1 s, whatever is in it, or what `times` say too."""
    device = LatencyModel.from_values("linear", UNIT | more.pop("times", {}))
    deployment = Deployment(
        device, device, blocks, block_tokens=more.pop("block_tokens", 16), speculation=speculation, watermark=0.0
    )
    chosen = (scheduler(policy) if isinstance(policy, str) else policy).with_settings(**more.pop("settings", {}))
    return finished(Scenario(Workload.from_columns(columns), deployment, chosen, **more))


def lines(simulation: Simulation, kind: int) -> list[tuple[float, int, int]]:
    """(time, request, tokens) of the timeline."""
    events = simulation.arrays.timeline[: simulation.arrays.status[0].timeline_used]
    return [(float(line.time_s), int(line.request), int(line.tokens)) for line in events if line.kind == kind]


# By hand


@pytest.mark.nojit
def test_tokens_come_out_together_and_count_each_for_itself():
    columns = {"arrival_s": [0.0], "prompt_tokens": 4, "output_tokens": 6, "ttft_slo_s": 2.0, "tpot_slo_s": 0.5}
    one = Speculation(2, 1.0, draft_s=0.25, draft_s_per_request=0.125)
    simulation = served(columns, one, gain=Gain(first_weight=1.0))
    # 1 s of prefill; two drafts, 1.75 s; of the two that are missing one can be a draft, 1.375 s.
    assert lines(simulation, SCHEDULED) == [(0.0, 0, 4), (1.0, 0, 3), (2.75, 0, 2)]
    assert [time_s for time_s, _, _ in lines(simulation, TOKEN)] == [1.0, 2.75, 2.75, 2.75, 4.125, 4.125]
    result = simulation.result()
    (row,) = result.requests.to_dict("records")
    # Deadlines 2, 2.5, 3, 3.5, 4, 4.5: the second and the fifth come too late.
    assert (row["finish_s"], row["on_time_tokens"], row["gain"], row["longest_tbt_s"]) == (4.125, 4, 4.0, 1.75)
    histogram = simulation.arrays.tbt_histogram
    assert histogram.shape == (TBT_BINS,) and (histogram[0], histogram.sum()) == (3, 5)
    assert (result.summary["drafted_tokens"], result.summary["accepted_share"]) == (3, 1.0)
    assert result.engines[["drafted_tokens", "accepted_tokens", "num_output_tokens"]].iloc[0].tolist() == [3, 3, 6]


@pytest.mark.nojit
def test_what_is_rejected_is_computed_again_in_its_place():
    columns = {"arrival_s": [0.0], "prompt_tokens": 4, "output_tokens": 4}
    simulation = served(columns, Speculation(3, (0.0, 1.0, 1.0)), block_tokens=1, blocks=7)
    # All seven blocks are full with the two drafts of the second iteration; the third needs none more.
    assert [tokens for _, _, tokens in lines(simulation, SCHEDULED)] == [4, 3, 2, 1]
    assert [time_s for time_s, _, _ in lines(simulation, TOKEN)] == [1.0, 2.0, 3.0, 4.0]
    assert simulation.arrays.engines[0].totals.peak_blocks == 7
    assert simulation.arrays.engines[0].free_blocks == 7
    assert simulation.result().summary["accepted_share"] == 0.0


@pytest.mark.nojit
def test_a_decode_evicts_for_its_drafts():
    columns = {"arrival_s": [0.0, 0.0], "prompt_tokens": 2, "output_tokens": 4}
    more = {"block_tokens": 1, "blocks": 6, "settings": {"reserve_full": 0}}
    plain, drafting = served(columns, None, **more), served(columns, Speculation(3, 0.0), **more)
    # Two decodes fit with a token each; with two drafts the first needs five blocks, and takes those of the second.
    assert [evictions for _, evictions in enumerate(plain.arrays.outcomes["evictions"])] == [0, 1]
    assert lines(drafting, SCHEDULED)[:3] == [(0.0, 0, 2), (0.0, 1, 2), (1.0, 0, 3)]
    assert drafting.arrays.outcomes["evictions"].tolist() == [0, 1]
    assert plain.result().requests["finish_s"].tolist() != drafting.result().requests["finish_s"].tolist()


@pytest.mark.nojit
@pytest.mark.parametrize(("free", "chunks"), [(False, [6]), (True, [6, 6])])
def test_drafts_count_in_the_token_budget(free, chunks):
    columns = {"arrival_s": [0.0, 0.0], "prompt_tokens": 3, "output_tokens": 9}
    one = Speculation(5, 0.0, free_verification=free)
    simulation = served(columns, one, settings={"max_num_batched_tokens": 6})
    second = [tokens for time_s, _, tokens in lines(simulation, SCHEDULED) if time_s == 1.0]
    assert second == chunks


@pytest.mark.nojit
def test_drafts_are_cut_to_the_time_there_is():
    columns = {"arrival_s": [0.0], "prompt_tokens": 3, "output_tokens": 9, "tpot_slo_s": 1.5, "ttft_slo_s": 9.0}
    # A decode takes 1 s and each draft 0.2 s of verification: two of four are within 1.5 s.
    more = {"times": {"c_p": 0.2}, "settings": {"time_budget_s": 1.5, "most_drafts": 4}}
    chunks = [tokens for _, _, tokens in lines(served(columns, Speculation(9, 0.0), POLICY, **more), SCHEDULED)]
    assert chunks == [2, 1, *[3] * 6, 2, 1]
    more["settings"] = {"time_budget_s": 1.5, "untimed_decodes": 1, "most_drafts": 4}
    chunks = [tokens for _, _, tokens in lines(served(columns, Speculation(9, 0.0), POLICY, **more), SCHEDULED)]
    assert chunks == [2, 1, *[5] * 4, 4, 3, 2, 1]


@pytest.mark.nojit
def test_a_draft_is_a_chunk_whose_context_the_decode_has_read():
    times = {"a_p": 2**-8, "b_p": 2**-7, "c_p": 2**-6, "a_d": 2**-5, "b_d": 2**-4}
    columns = {"arrival_s": [0.0], "prompt_tokens": 4, "output_tokens": 4}
    simulation = served(columns, Speculation(2, 1.0), times=times)
    prefill_s = 1 + 16 * 2**-8 + 4 * 2**-6
    decode_s = 1 + 4 * 2**-5 + 2**-4 + 4 * 2**-8 + 2 * 5 * 2**-7 + 2 * 2**-6
    last_s = [time_s for time_s, _, _ in lines(simulation, TOKEN)]
    assert last_s == [prefill_s, *[prefill_s + decode_s] * 3]


@pytest.mark.slow
def test_what_is_accepted_is_drawn_by_position():
    n = 400
    columns = {"arrival_s": np.zeros(n), "prompt_tokens": 4, "output_tokens": 201}
    simulation = served(columns, Speculation(2, (0.8, 0.25)), blocks=100_000, draft_seed=3)
    tokens = lines(simulation, TOKEN)
    at_once: dict[tuple[int, float], int] = {}
    for time_s, r, _ in tokens:
        at_once[r, time_s] = at_once.get((r, time_s), 0) + 1
    # Those at the end of an answer, with fewer drafts, are a hundredth.
    sizes = np.bincount(list(at_once.values()), minlength=4)
    assert sizes[2:].sum() / sizes.sum() == pytest.approx(0.8, abs=0.015)
    assert sizes[3] / sizes[2:].sum() == pytest.approx(0.25, abs=0.015)
    other = served(columns, Speculation(2, (0.8, 0.25)), blocks=100_000, draft_seed=4)
    assert lines(other, TOKEN) != tokens


@pytest.mark.nojit
@pytest.mark.parametrize("policy", ["sarathi-fcfs", "sjf", "edf", "vllm-fcfs"])
def test_whether_a_guess_is_right_is_no_matter_of_the_scheduler(policy):
    """With one draft each guess that is tried is right or not, whoever tries it: a request takes as many iterations."""
    rng = np.random.default_rng(0)
    columns = {"arrival_s": np.sort(rng.uniform(0, 9, 12)), "prompt_tokens": rng.integers(1, 60, 12)}
    columns["output_tokens"] = rng.integers(1, 30, 12)
    one = Speculation(1, 0.5, free_verification=True)  # else budgets may leave no room for a draft
    steps = [
        np.bincount([r for _, r in {(time_s, r) for time_s, r, _ in lines(run, TOKEN)}])
        for run in (served(columns, one, name, draft_seed=7) for name in ("vllm-v1", policy))
    ]
    np.testing.assert_array_equal(*steps)


# What holds for all

ACCEPTANCES = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1))
COSTS_S = st.one_of(st.just(0.0), st.sampled_from([1 / 64, 1 / 8]), st.floats(0, 1 / 8))


@st.composite
def speculations(draw: st.DrawFn) -> Speculation:
    k = draw(st.integers(1, 7))
    acceptance = draw(st.one_of(ACCEPTANCES, st.lists(ACCEPTANCES, min_size=k, max_size=k + 1).map(tuple)))
    return Speculation(k, acceptance, draw(COSTS_S), draw(COSTS_S), draw(st.booleans()))


def with_speculation(scenario: Scenario, pools: list[Speculation | None], seed: int = 0) -> Scenario:
    """One for each pool."""
    deployment = scenario.deployment
    made = tuple(dataclasses.replace(pool, speculation=one) for pool, one in zip(deployment.pools, pools, strict=True))
    changed = made[0] if isinstance(deployment, Deployment) else dataclasses.replace(deployment, pools=made)
    return dataclasses.replace(scenario, deployment=changed, draft_seed=seed)


@st.composite
def drafting(draw: st.DrawFn, drawn: st.SearchStrategy[Scenario]) -> Scenario:
    scenario = draw(drawn)
    some = st.one_of(speculations(), speculations(), st.none())
    pools = [draw(some) for _ in scenario.deployment.pools]
    return with_speculation(scenario, pools, draw(st.integers(0, 2**32)))


def check(simulation: Simulation) -> None:
    """Nothing is lost, made up or gained too much."""
    scenario, arrays, result = simulation.scenario, simulation.arrays, simulation.result()
    n, totals, pools = len(scenario.workload), arrays.engines["totals"], scenario.deployment.pools
    assert result.summary["finished"] == n
    np.testing.assert_array_equal(arrays.requests["num_output_tokens"], scenario.workload.table["output_tokens"])
    assert (arrays.requests["blocks"] == 0).all()
    assert (arrays.engines["free_blocks"] == arrays.engines["total_blocks"]).all()
    assert (totals["peak_blocks"] <= arrays.engines["total_blocks"]).all()
    assert (totals["accepted_tokens"] <= totals["drafted_tokens"]).all()
    assert totals["num_output_tokens"].sum() == scenario.workload.table["output_tokens"].sum()
    assert result.summary["gain"] <= result.summary["ideal_gain"] * (1 + 1e-9)
    assert (result.requests["on_time_tokens"] <= result.requests["output_tokens"]).all()
    for engine, pool in zip(arrays.engines, arrays.engines["pool"], strict=True):
        if pools[pool].speculation is None:
            assert engine.totals.drafted_tokens == 0
    most = 1 + max(0 if pool.speculation is None else int(pool.speculation.k) for pool in pools)
    tokens = [(r, time_s) for time_s, r, _ in lines(simulation, TOKEN)]
    assert len(tokens) == scenario.workload.table["output_tokens"].sum()
    if all(pool.role == "both" for pool in pools):  # else KV may arrive at once, and be decoded at once
        assert np.unique([f"{pair}" for pair in tokens], return_counts=True)[1].max() <= most


@pytest.mark.parametrize("name", scheduler_names())
@drawn(15, slow=True)
def test_all_is_served_under_any_scheduler(name, data):
    simulation = Simulation(data.draw(drafting(scenarios(name))), True)
    simulation.run()
    check(simulation)


@pytest.mark.parametrize("name", router_names())
@drawn(15, slow=True)
def test_all_is_served_under_any_router(name, data):
    drawn = cluster_scenarios(name)
    simulation = Simulation(data.draw(drafting(st.one_of(drawn, sessions_of(drawn)))), True)
    simulation.run()
    check(simulation)


@pytest.mark.parametrize("name", scheduler_names())
@drawn(15, slow=True)
def test_what_is_never_accepted_and_costs_nothing_changes_no_byte(name, data):
    """As long as memory is not short: drafts hold blocks."""
    scenario = data.draw(scenarios(name))
    room = dataclasses.replace(scenario.deployment, total_blocks=scenario.deployment.total_blocks + 5000)
    scenario = dataclasses.replace(scenario, deployment=room)
    nothing = Speculation(data.draw(st.integers(1, 7)), 0.0, free_verification=True)
    plain, drafts = Simulation(scenario), Simulation(with_speculation(scenario, [nothing]))
    summaries = [run.run().summary for run in (plain, drafts)]
    for array in ("requests", "outcomes", "tbt_histogram", "status"):
        assert getattr(plain.arrays, array).tobytes() == getattr(drafts.arrays, array).tobytes(), array
    for field in ("busy_s", "iterations", "scheduled_tokens", "rounds", "estimate_scale", "moving_s"):
        assert plain.arrays.engines[field].tobytes() == drafts.arrays.engines[field].tobytes(), field
    of_memory = {"wall_s", "kv_use_mean", "kv_use_peak", "drafted_tokens", "accepted_share"}
    plain_figures, figures = ({k: repr(v) for k, v in one.items() if k not in of_memory} for one in summaries)
    assert plain_figures == figures


@pytest.mark.slow
@settings(max_examples=50)
@given(data=st.data())
def test_the_same_seed_gives_the_same_bytes_in_one_go_and_step_by_step(data):
    scenario = data.draw(drafting(cluster_scenarios(data.draw(st.sampled_from(router_names())))))
    whole, stepped = Simulation(scenario, True), Simulation(scenario, True)
    whole.run()
    while stepped.advance_to(7):
        pass
    for name in ARRAYS[:-1]:
        assert getattr(whole.arrays, name).tobytes() == getattr(stepped.arrays, name).tobytes(), name


@pytest.mark.slow
@pytest.mark.parametrize("form", sorted(forms()))
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_drafts_never_shorten_a_batch(form, data):
    model = data.draw(models(form, additive=True))
    estimator = LatencyModel.from_values("linear", UNIT)
    one = data.draw(speculations())
    pool = speculating_pool(Deployment(model, estimator, 10, speculation=one))
    times = []
    decodes = data.draw(st.lists(st.tuples(st.integers(0, one.k), st.integers(0, 200)), min_size=1, max_size=4))
    prefills = data.draw(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), max_size=2))
    for share in (1, 0):
        batch = np.zeros(1, BATCH)
        batch["drafts"]["known"] = 1.0
        for drafts, cached in decodes:
            batches.add(batch[0], 1 + share * drafts, cached, True)
        for tokens, cached in prefills:
            batches.add(batch[0], tokens, cached, False)
        times.append(pool.device.batch_s(batch[0], pool.device.coefficients))
    drafted = [drafts for drafts, _ in decodes]
    cost_s = max(drafted) * one.draft_s + sum(drafted) * one.draft_s_per_request
    assert times[0] >= times[1] + cost_s - 1e-9
    if one.free_verification:
        assert times[0] == pytest.approx(times[1] + cost_s, rel=1e-12)
    assert times[1] == model.batch_s(batch[0], model.coefficients)


# What is refused


@pytest.mark.parametrize(("given", "message"), [
    ({"k": 0, "acceptance": 0.5}, "k is 0; it should be a whole number from 1 to 64"),
    ({"k": 2.5, "acceptance": 0.5}, "k is 2.5; it should be a whole number from 1 to 64"),
    ({"k": True, "acceptance": 0.5}, "k is True; it should be a whole number"),
    ({"acceptance": 0.5}, "k is None; it should be a whole number from 1 to 64"),
    ({"k": 2}, "acceptance is None; it should be a probability, from 0 to 1"),
    ({"k": 2, "acceptance": 1.5}, "acceptance is 1.5; it should be a probability, from 0 to 1"),
    ({"k": 2, "acceptance": [0.5, -0.1]}, "acceptance is -0.1; it should be a probability, from 0 to 1"),
    ({"k": 2, "acceptance": float("nan")}, "acceptance is nan; it should be a probability"),
    ({"k": 3, "acceptance": [0.9, 0.5]}, "acceptance has 2 positions, and k is 3; it should have one for each"),
    ({"k": 1, "acceptance": []}, "acceptance has 0 positions, and k is 1"),
    ({"k": 1, "acceptance": 1, "draft_s": -1}, "draft_s is -1; it should be a time from 0"),
    ({"k": 1, "acceptance": 1, "draft_s_per_request": float("inf")}, "draft_s_per_request is inf"),
    ({"k": 1, "acceptance": 1, "free_verification": 1}, "free_verification is 1; it should be true or false"),
    ({"depth": 1}, "unknown 'depth'; it has k, acceptance"),
    ("k=4", "acceptance is None; it should be a probability"),
    ("", "'' should be key=value, the key one of k, acceptance"),
    ("k=4,speed=2", "'speed=2' should be key=value"),
    ("k=many,acceptance=1", "k is 'many'; it should be a whole number"),
    ("k=4,acceptance=0.5/x", "acceptance is '0.5/x'; it should be a number"),
    ("k=4,acceptance=1,free_verification=1", "free_verification is '1'; it should be yes or no"),
])  # fmt: skip
def test_bad_input_is_one_line(given, message):
    with pytest.raises(DeploymentError, match=r"^speculation") as error:
        speculation_of(given)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["k=4,acceptance=0.7", "k=2,acceptance=0.8/0.5,draft_s=0.002,free_verification=yes"])
def test_as_a_text(text):
    one = speculation_of(text)
    assert one.label == text and speculation_of(one.label) == one
    assert speculation_of("none") is None


def test_there_is_no_bound_on_what_speculates():
    columns = {"arrival_s": [0.0], "prompt_tokens": 4, "output_tokens": 4}
    scenario = served(columns, Speculation(1, 0.5)).scenario
    with pytest.raises(ExperimentError, match="engines speculate") as error:
        tdg_upper_bound(scenario)
    assert "\n" not in str(error.value)


def test_a_deployment_is_another_with_other_speculation():
    columns = {"arrival_s": [0.0], "prompt_tokens": 4, "output_tokens": 4}
    several = [None, Speculation(1, 0.5), Speculation(1, 0.25), Speculation(2, 0.5), Speculation(1, 0.5, 1e-3)]
    assert len({deployment_digest(served(columns, one).scenario.deployment) for one in several}) == 5
