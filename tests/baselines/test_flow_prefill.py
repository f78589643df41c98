"""FlowPrefill by hand: a batch takes 1 s + 1 s a token and has 4 layers, a block holds one token."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from servegym.baselines.registry import scheduler
from servegym.latency_models.model import LatencyModel
from servegym.simulator.features.operators import Operators
from servegym.simulator.features.suspended_batches import STREAM
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.random import uniform
from servegym.simulator.records.types import TIMELINE_KINDS
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import SECONDS, decode, formed, linear, ranked, state
from tests.simulator.scenes import requests, scene
from tests.simulator.whole_runs import finished

pytestmark = pytest.mark.nojit
FOUR_LAYERS = Operators(4, np.array([[1.0, 0, 0, 0]]))


def policy(**settings: Any):
    return scheduler("flow-prefill").with_settings(**settings)


def batch(*rows: dict, model: LatencyModel = SECONDS, now_s: float = 0.0, **settings: Any) -> list[tuple[int, int]]:
    return formed(policy(**settings), *rows, model=model, now_s=now_s).batch


def ran(
    workload: Workload, operators: Operators = FOUR_LAYERS, model: LatencyModel = SECONDS, blocks: int = 1000,
    **settings: Any,
) -> Simulation:  # fmt: skip
    whole = scene(workload, policy(**settings), model, blocks)
    (engine,) = whole.deployment.pools
    deployment = dataclasses.replace(engine, operators=operators, estimator=model)
    return finished(dataclasses.replace(whole, deployment=deployment))


def lines(simulation: Simulation, *kinds: str) -> list[tuple[float, str, int]]:
    """(time, kind, request) of the lines of these kinds."""
    used = simulation.arrays.timeline[: simulation.arrays.status[0].timeline_used]
    rows = [(float(line.time_s), TIMELINE_KINDS[line.kind], int(line.request)) for line in used]
    return [row for row in rows if row[1] in kinds]


def commands(simulation: Simulation) -> list[tuple[float, str, int]]:
    """What the paper's scheduler says: submit (here: what is in it), preempt, resume."""
    return lines(simulation, "scheduled", "suspended", "resumed")


def finish_times(simulation: Simulation) -> list[float]:
    return simulation.arrays.outcomes["finish_s"].tolist()


def test_the_example_of_figure_8():
    # A: 8 s, layers end at 2, 4, 6, 8. B comes at 3 with the earlier deadline: A stops at 4, B runs until 6, A goes on.
    simulation = ran(requests(arrival_s=[0, 3], prompt_tokens=[7, 1], ttft_slo_s=[100, 10]))
    assert commands(simulation) == [
        (0, "scheduled", 0), (4, "suspended", 0), (4, "scheduled", 1), (6, "resumed", 0),
    ]  # fmt: skip
    assert finish_times(simulation) == [10, 6]
    engine = simulation.arrays.engines[0]
    # Rounds: A comes, B comes, B is done. (When A is done nothing is left to be decided.)
    assert (engine.rounds, engine.totals.suspensions, engine.totals.blocking_s, engine.totals.longest_blocking_s) == (
        3, 1, 1, 1,
    )  # fmt: skip


def test_boundaries():
    workload = requests(arrival_s=[0, 3], prompt_tokens=[7, 1], ttft_slo_s=[100, 10])
    # Two operators, 1/8 and 7/8 of a layer of 2 s: they end at 0.25, 2, 2.25, 4, 4.25, ...
    operators = Operators(4, np.array([[1.0, 0, 0, 0], [7.0, 0, 0, 0]]))
    suspended = {b: lines(ran(workload, operators, boundary=b), "suspended") for b in ("operator", "layer", "none")}
    assert suspended == {"operator": [(4, "suspended", 0)], "layer": [(4, "suspended", 0)], "none": []}
    earlier = requests(arrival_s=[0, 2.125], prompt_tokens=[7, 1], ttft_slo_s=[100, 10])
    assert lines(ran(earlier, operators), "suspended") == [(2.25, "suspended", 0)]
    assert lines(ran(earlier, operators, boundary="layer"), "suspended") == [(4, "suspended", 0)]


def test_checks_take_time_and_ranks_are_late():
    # 8 s and a check of 0.5 s at each boundary: 2 layers of operators of 1/4 and 3/4 end at 1.25, 5, 6.25 and 10.
    workload = requests(arrival_s=[0, 1.5], prompt_tokens=[7, 1], ttft_slo_s=[100, 20])
    operators = Operators(2, np.array([[1.0, 0, 0, 0], [3.0, 0, 0, 0]]), check_s=0.5)
    simulation = ran(workload, operators)
    assert lines(simulation, "suspended", "resumed") == [(5, "suspended", 0), (9, "resumed", 0)]
    assert finish_times(simulation) == [14, 9]  # the second: 2 s and 4 checks
    assert lines(ran(workload, operators, boundary="layer"), "suspended") == [(4.5, "suspended", 0)]
    late = ran(workload, dataclasses.replace(FOUR_LAYERS, jitter_s=0.25))
    ((suspended_s, _, _),) = lines(late, "suspended")
    assert suspended_s == pytest.approx(2 + 0.25 * uniform(0, STREAM, 0))
    assert finish_times(late)[0] == pytest.approx(suspended_s + 8)


def test_late_requests_run_last_and_the_latest_deadline_first():
    # 8, 2 and 2 s: the first two cannot make 5 and 1.
    rows = state(7, ttft_slo_s=5), state(1, ttft_slo_s=1), state(1, ttft_slo_s=20)
    assert ranked(policy(), *rows).ranks == [(1, -5), (1, -1), (0, 20)]
    assert ranked(policy(late_order="edf"), *rows).ranks == [(1, 5), (1, 1), (0, 20)]


def test_what_counts_as_late():
    # At 4 the second is late in any case; the first takes 8 s and has 2 left.
    rows = state(1, ttft_slo_s=60), state(7, ttft_slo_s=6), state(1, ttft_slo_s=1)
    assert batch(*rows, now_s=4, batch_token_budget=0) == [(0, 1)]
    assert batch(*rows, now_s=4, batch_token_budget=0, priority="d-edf") == [(1, 7)]
    assert batch(*rows, now_s=4, batch_token_budget=0, priority="edf") == [(2, 1)]


def test_no_slack_is_late():
    rows = state(7, ttft_slo_s=8), state(7, ttft_slo_s=8.5)
    assert batch(*rows) == [(1, 7)]
    assert batch(*rows, now_s=8, priority="d-edf") == [(1, 7)]


def test_ties_go_to_the_earlier_arrival():
    assert batch(state(2, ttft_slo_s=50), state(1, ttft_slo_s=50), batch_token_budget=0) == [(0, 2)]


def test_slack_counts_what_is_left_of_a_running_task():
    # A (8 s) has 1 s of slack at 0 and at 3, when B comes: the whole 8 s would make it late by then.
    simulation = ran(requests(arrival_s=[0, 3], prompt_tokens=[7, 1], ttft_slo_s=[9, 6.5]))
    assert lines(simulation, "suspended") == [] and finish_times(simulation) == [8, 10]


def test_slack_counts_what_is_left_of_a_suspended_task():
    # A is suspended at 4 with 4 s left, B runs until 6. Then A (deadline 13) has 3 s of slack and goes before C (13.5).
    simulation = ran(requests(arrival_s=[0, 3, 4.5], prompt_tokens=[7, 1, 1], ttft_slo_s=[13, 3.5, 9]))
    assert commands(simulation)[2:] == [(4, "scheduled", 1), (6, "resumed", 0), (10, "scheduled", 2)]


def test_a_late_task_gives_way():
    # A (8 s) cannot make 5 and runs all the same, alone, until B can be in time: from 4 to 6.
    simulation = ran(requests(arrival_s=[0, 3], prompt_tokens=[7, 1], ttft_slo_s=[5, 10]))
    assert commands(simulation)[1:] == [(4, "suspended", 0), (4, "scheduled", 1), (6, "resumed", 0)]


def test_two_suspended_tasks_that_tie_go_before_what_ranks_behind_them():
    # C stops A at 2.25 until A and B (25 tokens) are late for 20, B comes before A, and D stops B at 21.75. W, late
    # for 19, came before all of them and waits on.
    simulation = ran(
        requests(arrival_s=[0, 0, 0, 1, 16], prompt_tokens=[30, 25, 8, 12, 1], ttft_slo_s=[19, 20, 20, 15, 24]),
        batch_token_budget=0,
    )
    assert commands(simulation) == [
        (0, "scheduled", 2), (2.25, "suspended", 2), (2.25, "scheduled", 3), (15.25, "scheduled", 1),
        (21.75, "suspended", 1), (21.75, "scheduled", 4), (23.75, "resumed", 1), (43.25, "resumed", 2),
        (50, "scheduled", 0),
    ]  # fmt: skip


def test_batching_passes_over_what_does_not_fit():
    # H has 10 s: 1 + 2 + 3 tokens fit, 4 more would take exactly 10 s, 3 more do (9 s).
    rows = [state(2, ttft_slo_s=10), *(state(n, ttft_slo_s=s) for n, s in ((3, 20), (4, 30), (3, 40)))]
    assert batch(*rows) == [(0, 2), (1, 3), (3, 3)]
    assert batch(*rows, misfit="stop") == [(0, 2), (1, 3)]
    assert batch(*rows, longest_batched_tokens=3, misfit="stop") == [(0, 2), (1, 3), (3, 3)]  # no candidate: no stop
    assert batch(*rows, longest_batched_tokens=1) == [(0, 2)]
    assert batch(*rows, margin=0.15) == [(0, 2), (1, 3)]  # 8.5 s
    # The sum stays below the budget.
    assert batch(*rows, batch_token_budget=5) == [(0, 2)]
    assert batch(*rows, batch_token_budget=6) == [(0, 2), (1, 3)]
    assert batch(*rows, batch_token_budget=0) == [(0, 2)]


def test_batching_predicts_one_prompt_of_the_summed_tokens():
    # (2 + 3)^2 s, though 2^2 + 3^2 would fit 20.
    model = linear(a_p=1)
    rows = state(2, ttft_slo_s=20), state(3, ttft_slo_s=90)
    assert batch(*rows, model=model) == [(0, 2)]
    assert batch(state(2, ttft_slo_s=25.5), rows[1], model=model) == [(0, 2), (1, 3)]


def test_candidates_come_in_order_the_late_ones_last():
    # H has 8 s for 7 tokens: 3 of its own and one of the 3 tokens that are next in order.
    rows = state(3, ttft_slo_s=8), state(3, ttft_slo_s=3), state(3, ttft_slo_s=30), state(3, ttft_slo_s=25)
    assert batch(*rows) == [(0, 3), (3, 3)]


def test_a_late_leader_runs_alone():
    assert batch(state(3, ttft_slo_s=1), state(1, ttft_slo_s=1.5)) == [(1, 1)]


def test_a_task_has_the_deadline_of_its_leader():
    # H (deadline 10) and the second (100) run together for 8 s; the third, of 50, waits.
    simulation = ran(requests(arrival_s=[0, 0, 1], prompt_tokens=[3, 4, 1], ttft_slo_s=[10, 100, 49]))
    assert commands(simulation) == [(0, "scheduled", 0), (0, "scheduled", 1), (8, "scheduled", 2)]
    # One of 9 does not wait, and both go on together.
    simulation = ran(requests(arrival_s=[0, 0, 1], prompt_tokens=[3, 4, 1], ttft_slo_s=[12, 100, 8]))
    assert commands(simulation)[2:] == [(2, "suspended", 0), (2, "scheduled", 2), (4, "resumed", 0)]
    assert finish_times(simulation) == [10, 10, 4]


def test_chunks():
    # 5 of 7 tokens in a task of 6 s; then 2 left, in 3 s.
    simulation = ran(requests(arrival_s=[0, 1.5], prompt_tokens=[7, 1], ttft_slo_s=[100, 90]), chunk_tokens=5)
    # 6 s in 4 layers of 1.5 s: the round at 1.5 is at a boundary. B until 3.5, the task until 8, 2 tokens until 11.
    assert commands(simulation)[1:] == [
        (1.5, "suspended", 0), (1.5, "scheduled", 1), (3.5, "resumed", 0), (8, "scheduled", 0),
    ]  # fmt: skip
    assert finish_times(simulation) == [11, 3.5]


def test_what_finds_no_room_suspends_none():
    # 9 blocks, 7 with A. B (3 tokens) has no room and the earlier deadline: it waits. C (1 token) has.
    workload = requests(arrival_s=[0, 3, 4.5], prompt_tokens=[7, 3, 1], ttft_slo_s=[100, 30, 40])
    simulation = ran(workload, blocks=9)
    assert commands(simulation) == [
        (0, "scheduled", 0), (6, "suspended", 0), (6, "scheduled", 2), (8, "resumed", 0), (10, "scheduled", 1),
    ]  # fmt: skip
    assert simulation.arrays.engines[0].totals.suspensions == 1 and finish_times(simulation) == [10, 14, 8]


def test_a_batch_ends_where_memory_does():
    rows = state(3, ttft_slo_s=30), state(4, ttft_slo_s=40), state(1, ttft_slo_s=50)
    assert formed(policy(), *rows, blocks=5).batch == [(0, 3)]
    assert formed(policy(), *rows, blocks=7).batch == [(0, 3), (1, 4)]


def test_decodes_run_when_no_prefill_can():
    assert batch(decode(), decode()) == [(0, 1), (1, 1)]
    # 4 blocks: the prompt of 5 tokens would not fit even alone beside the decode, which goes on.
    assert formed(policy(tbt_share=0.0), decode(), state(5), blocks=6, now_s=500).batch == [(0, 1)]


def test_decodes_have_their_turns():
    # Prompts of 2 and 11 tokens, 2 + 2 tokens out, TPOT SLO 8 s, whose half is a slice of prefill and the decodes.
    # 0-3: the first prompt; its decode is due, 3-5 (2 s); it is done. The second prompt takes 12 s in 4 layers.
    first = requests(arrival_s=0.0, prompt_tokens=[2, 11], output_tokens=[3, 1], ttft_slo_s=[5, 500], tpot_slo_s=8)
    simulation = ran(first, batch_token_budget=0, tbt_share=0.5)
    # 3-5 a decode; a slice of 4 - 2 = 2 s from 5 on ends with the layer, at 8; 8-10 the last decode.
    assert commands(simulation) == [
        (0, "scheduled", 0), (3, "scheduled", 0), (5, "scheduled", 1), (8, "suspended", 1), (8, "scheduled", 0),
        (10, "resumed", 1),
    ]  # fmt: skip
    assert finish_times(simulation) == [10, 19]


def test_a_slice_is_never_nothing():
    # The decodes alone take longer than their share: a slice of 1 s, that is a layer of 3 s, between each two of them.
    # Layers end at 8, 13, 18 and 23; after 5 decodes by then 4 more, from 23 to 31.
    workload = requests(arrival_s=0.0, prompt_tokens=[2, 11], output_tokens=[9, 1], ttft_slo_s=[5, 500], tpot_slo_s=1)
    simulation = ran(workload, batch_token_budget=0, least_slice_s=1.0)
    assert [time_s for time_s, _, _ in lines(simulation, "suspended")] == [8, 13, 18]
    assert finish_times(simulation) == [31, 23]


def test_a_slice_counts_from_the_last_decodes():
    # Decodes at 3-5; one slice of 4 s for three prompts of 2 s: at 5, at 7; at 9 it is the decodes' turn.
    workload = requests(
        arrival_s=0.0, prompt_tokens=[2, 1, 1, 1], output_tokens=[3, 1, 1, 1], ttft_slo_s=[5, 99, 99, 99], tpot_slo_s=6
    )
    simulation = ran(workload, batch_token_budget=0, tbt_share=1.0)
    assert [(time_s, r) for time_s, _, r in commands(simulation)] == [(0, 0), (3, 0), (5, 1), (7, 2), (9, 0), (11, 3)]
