"""The order of what happens: ends, arrivals, starts; and the histogram of token intervals."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from servegym.errors import DeploymentError
from servegym.simulator.batching.ends import tbt_bin
from servegym.simulator.records.types import TBT_BINS
from servegym.simulator.runs.figures import bin_middle
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.arrays import as_bytes
from tests.simulator.forming import linear
from tests.simulator.scenes import requests, scene

pytestmark = pytest.mark.nojit


def lines(simulation: Simulation) -> list[tuple]:
    """(time, kind, engine, request, tokens) of a timeline."""
    table = simulation.result().timeline
    return list(zip(table.time_s, table.kind, table.engine, table.request, table.tokens, strict=True))


def test_one_request_line_by_line():
    # Prefill of 4: 0 to 1 + 4 = 5, token 1. A decode of 1 + 1 = 2 s: token 2 at 7, the end: 5 blocks in use.
    simulation = Simulation(scene(requests(prompt_tokens=[4], output_tokens=[2])), record_timeline=True)
    result = simulation.run()
    assert lines(simulation) == [
        (0, "arrival", 0, 0, 0), (0, "batch_start", 0, -1, 1), (0, "scheduled", 0, 0, 4), (5, "token", 0, 0, 1),
        (5, "batch_end", 0, -1, 4), (5, "batch_start", 0, -1, 1), (5, "scheduled", 0, 0, 1), (7, "token", 0, 0, 1),
        (7, "finish", 0, 0, 0), (7, "batch_end", 0, -1, 5),
    ]  # fmt: skip
    row = result.requests.iloc[0]
    assert (row.admitted_s, row.first_token_s, row.finish_s, row.ttft_s, row.tpot_s, row.ttlt_s) == (0, 5, 7, 5, 2, 7)
    # 4 blocks for 5 s and 5 for 2 s, of 1000, over 7 s.
    assert result.engines.kv_use_mean[0] == pytest.approx(30 / 7 / 1000)
    assert result.engines.utilisation[0] == 1


def test_an_arrival_at_the_end_of_an_iteration_joins_the_next():
    workload = requests(arrival_s=[0.0, 5.0], prompt_tokens=[4, 3], output_tokens=[2, 1])
    simulation = Simulation(scene(workload), record_timeline=True)
    simulation.run()
    at_5 = [line[1:4] for line in lines(simulation) if line[0] == 5]
    assert at_5 == [
        ("token", 0, 0),
        ("batch_end", 0, -1),
        ("arrival", 0, 1),
        ("batch_start", 0, -1),
        ("scheduled", 0, 1),
        ("scheduled", 0, 0),
    ]  # fmt: skip  (deadline 1005 before 1000 + 1000)


def test_ends_at_one_instant_go_by_engine_and_engines_take_turns():
    # Requests 0 and 2 -> engine 0 (2 + 3 tokens, until 6), 1 and 3 -> engine 1 (4 + 1, until 6).
    workload = requests(prompt_tokens=[2, 4, 3, 1])
    simulation = Simulation(scene(workload, engines=2), record_timeline=True)
    simulation.run()
    happened = [line[1:4] for line in lines(simulation)]
    assert happened[:4] == [("arrival", 0, 0), ("arrival", 1, 1), ("arrival", 0, 2), ("arrival", 1, 3)]
    assert [line for line in happened if line[0] == "batch_start"] == [("batch_start", 0, -1), ("batch_start", 1, -1)]
    assert [line[1:] for line in happened if line[0] == "token"] == [(0, 0), (0, 2), (1, 1), (1, 3)]
    assert simulation.arrays.status[0].now_s == 6


def test_idle_between_arrivals():
    simulation = Simulation(scene(requests(arrival_s=[0.0, 50.0], prompt_tokens=[4, 2])))
    result = simulation.run()
    assert result.requests.first_token_s.tolist() == [5, 53]
    assert result.engines.busy_s[0] == 8 and result.engines.utilisation[0] == pytest.approx(8 / 53)


@pytest.mark.parametrize("engines", [1, 2, 3])
def test_iterations_that_take_no_time(engines):
    """All happens at one instant, and still in one order, stepping or not, in a long timeline or a short one."""
    scenario = scene(requests(prompt_tokens=[1, 2, 3], output_tokens=[3, 3, 3]), device=linear(), engines=engines)
    ran, walked, short = (Simulation(scenario, record_timeline=True) for _ in range(3))
    ran.run()
    while walked.step():
        pass
    short.arrays = short.arrays._replace(timeline=short.arrays.timeline[:2].copy())
    short.run()
    assert as_bytes(walked.arrays) == as_bytes(ran.arrays)
    assert lines(short) == lines(ran)
    assert ran.arrays.status[0].now_s == 0 and ran.arrays.status[0].finished == 3
    assert ran.result().summary["throughput_tokens_per_s"] == 0  # nine tokens in no time


def test_until():
    scenario = scene(requests(arrival_s=[0.0, 9.0], prompt_tokens=[4, 2], output_tokens=[3, 1]), until_s=6.0)
    simulation = Simulation(scenario)
    result = simulation.run()
    assert result.summary["requests"] == 1 and result.summary["finished"] == 0
    assert result.summary["tokens_emitted"] == 1 and result.summary["ideal_gain"] == 3
    # The second iteration, 5 to 7, has not ended.
    assert result.engines.utilisation[0] == 1 and result.engines.busy_s[0] == 5
    assert not simulation.step() and simulation.arrays.status[0].now_s == 5
    # What happens at that very time still happens.
    at_its_end = scene(scenario.workload, until_s=7.0)
    assert Simulation(at_its_end).run().summary["tokens_emitted"] == 2
    nothing = scene(requests(arrival_s=[9.0], prompt_tokens=[2]), until_s=3.0)
    summary = Simulation(nothing).run().summary
    assert summary["requests"] == 0 and summary["tdg_ratio"] is None and summary["slo_attainment"] is None


@pytest.mark.parametrize("until_s", [-1.0, math.nan])
def test_until_is_a_time(until_s):
    with pytest.raises(DeploymentError, match=r"until_s is .*; it should be a time of 0 or more"):
        scene(requests(prompt_tokens=[2]), until_s=until_s)


def test_a_result_stays_as_it_is_when_the_simulation_goes_on():
    simulation = Simulation(scene(requests(prompt_tokens=[4], output_tokens=[3])))
    simulation.step()
    simulation.step()
    middle = simulation.result()
    end = simulation.run()
    assert middle.summary["tokens_emitted"] == 1 and middle.summary["finished"] == 0 and middle.engines.busy_s[0] == 5
    assert end.summary["tokens_emitted"] == 3 and end.summary["finished"] == 1


def test_a_controller_may_set_parameters_at_a_decision():
    # A batch of one request at a time from the second decision on: prompts of 2 and 3 tokens with two tokens each.
    simulation = Simulation(scene(requests(prompt_tokens=[2, 3], output_tokens=[2, 2])))
    lengths = []
    while simulation.step():
        if simulation.arrays.engines[0].iterations == 1:
            assert simulation.arrays.status[0].deciding_engine == 0
            simulation.arrays.parameters[0, 1] = 1
        lengths.append(int(simulation.arrays.engines[0].last_batch_length))
    lengths.append(int(simulation.arrays.engines[0].last_batch_length))
    assert lengths == [0, 2, 1, 1]
    simulation.reset()
    assert simulation.arrays.parameters[0, 1] == 0


@given(st.floats(2.0**-20, 2.0**12, exclude_max=True))
@example(2.0**-20)
@example(1.0)
@example(np.nextafter(1.0, 0.0))
@example(np.nextafter(4096.0, 0.0))
def test_the_middle_of_a_bin_is_within_a_64th(interval_s):
    assert abs(bin_middle(int(tbt_bin(interval_s))) - interval_s) <= interval_s / 64


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_bins_are_in_order_and_outliers_fall_into_the_last(a, b):
    low, high = sorted((a, b))
    assert 0 <= tbt_bin(low) <= tbt_bin(high) < TBT_BINS
    assert tbt_bin(0.0) == 0 and tbt_bin(1e9) == TBT_BINS - 1
