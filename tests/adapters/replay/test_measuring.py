"""A replay's figures against ones worked out by hand, and against a simulation of the same tokens."""

import math

import numpy as np
import pytest

from servegym.adapters.replay.measuring import UNKNOWN, Measured
from servegym.adapters.replay.records import CUT_OFF, FAILED, FINISHED, NOT_SENT, Record, Replayed
from servegym.adapters.replay.sending import timed
from servegym.api import simulate
from servegym.errors import ReplayError
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.gains import Gain

THREE = Workload.from_columns(
    {
        "arrival_s": [0.0, 1.0, 2.0], "prompt_tokens": [8, 8, 8], "output_tokens": [3, 2, 4],
        "weight": [2.0, 1.0, 1.0], "priority": [0, 1, 1], "ttft_slo_s": 1.0, "tpot_slo_s": 0.5,
        "ttlt_slo_s": [math.inf, math.inf, 3.0],
    }
)  # fmt: skip
# Request 0 has deadlines 1, 1.5, 2: its second token is late. Request 1: 2, 2.5; its first token comes at the deadline,
# which is late. Request 2 has until 5 for all four, of which three come.
RECORDS = [
    Record(0.0, 0.001, [0.5, 1.6, 1.9], FINISHED),
    Record(1.0, 1.003, [2.0, 2.25], FINISHED),
    Record(2.0, 2.0, [4.0, 4.0, 4.5], CUT_OFF, "short"),
]


def measured(records=RECORDS, workload=THREE, **settings):
    return Measured(workload, Replayed(records, 9.0), Gain(first_weight=3.0, **settings))


def test_figures_by_hand():
    summary = measured().summary
    assert summary["requests"] == 3
    assert summary["finished"] == 2
    assert summary["tokens_emitted"] == 8
    assert summary["gain"] == (2 * 3 + 2) + 1 + (3 + 1 + 1)
    assert summary["ideal_gain"] == 2 * (3 + 2) + (3 + 1) + (3 + 3)
    assert summary["tdg_ratio"] == pytest.approx(14 / 20)
    # Request 0: TTFT 0.5 and TPOT 0.7, too slow; request 1: TTFT 1.0, not below the SLO; request 2 never ended.
    assert summary["slo_attainment"] == 0
    assert summary["on_time_token_share"] == pytest.approx(6 / 9)
    assert summary["ttft_s"]["p50"] == pytest.approx(1.0)
    assert summary["tpot_s"]["p50"] == pytest.approx((0.7 + 0.25) / 2)
    assert summary["ttlt_s"]["p90"] == pytest.approx(1.25 + 0.9 * (1.9 - 1.25))
    assert summary["span_s"] == 4.5
    assert summary["throughput_tokens_per_s"] == pytest.approx(8 / 4.5)
    assert summary["wall_s"] == 9.0
    assert summary["lateness_s"] == {"mean": pytest.approx(0.004 / 3), "max": pytest.approx(0.003)}
    assert summary["statuses"][FINISHED] == 2
    assert summary["reasons"] == {"short": 1}


def test_tables():
    result = measured()
    requests, tokens = result.requests, result.tokens
    assert requests["status"].tolist() == [FINISHED, FINISHED, CUT_OFF]
    assert requests["gain"].tolist() == [8, 1, 5]
    assert requests["longest_tbt_s"].tolist() == pytest.approx([1.1, 0.25, 0.5])
    assert np.isnan(requests["finish_s"][2])
    assert tokens["request"].tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
    assert tokens["token"].tolist() == [1, 2, 3, 1, 2, 1, 2, 3]
    assert tokens["time_s"].tolist() == [0.5, 1.6, 1.9, 2.0, 2.25, 4.0, 4.0, 4.5]


def test_requests_that_were_not_sent_do_not_count():
    summary = measured([*RECORDS[:1], Record(1.0, 1.0, [], FAILED, "gone"), Record(2.0)]).summary
    assert summary["requests"] == 2
    assert summary["statuses"][NOT_SENT] == 1
    assert summary["ideal_gain"] == 14


def test_nothing_came_at_all():
    summary = measured([Record(0.0, status=FAILED) for _ in range(3)]).summary
    assert summary["tdg_ratio"] == 0
    assert summary["ttft_s"]["p50"] is None
    nothing = measured([Record(0.0) for _ in range(3)]).summary
    assert nothing["requests"] == 0
    assert nothing["tdg_ratio"] is None


def test_the_tokens_of_a_simulation_have_its_figures():
    simulated = simulate("azure-conv", scheduler="sarathi-fcfs", requests=40, rate_per_s=12, record_timeline=True)
    lines = simulated.timeline
    out = lines[lines["kind"] == "token"]
    workload = simulated.scenario.workload
    records = [
        Record(float(arrival_s), float(arrival_s), out["time_s"][out["request"] == r].tolist(), FINISHED)
        for r, arrival_s in enumerate(workload.table["arrival_s"])
    ]
    result = Measured(workload, Replayed(records, 1.0))
    for name, value in simulated.summary.items():
        if name == "gain":  # a sum in another order
            assert result.summary[name] == pytest.approx(value)
        elif name not in (*UNKNOWN, "wall_s"):
            assert result.summary[name] == value, name
    columns = [name for name in result.requests if name in simulated.requests]
    assert len(columns) > 20
    assert result.requests[columns].equals(simulated.requests[columns])


def test_the_deadlines_of_a_turn_count_from_its_own_arrival():
    columns = {"arrival_s": [0.0, 0], "prompt_tokens": 8, "output_tokens": 2, "ttft_slo_s": 1.0, "tpot_slo_s": 0.5}
    table = Workload.from_columns(columns, turns=SessionDependencies(np.array([-1, 0]), np.array([0.0, 2.0])))
    records = [
        Record(0.0, 0.0, [0.5, 0.75], FINISHED, came_s=0.0, ended_s=0.75),
        Record(5.0, 5.25, [5.75, 6.75], FINISHED, came_s=2.75, ended_s=6.75),  # it waited for room; a token is late
    ]
    result = measured(records, table)
    assert result.summary["gain"] == 3 + 1 + 3
    requests = result.requests
    assert requests["arrival_s"].tolist() == [0, 5] and requests["came_s"].tolist() == [0, 2.75]
    assert requests["ttft_s"].tolist() == [0.5, 0.75] and requests["lateness_s"].tolist() == [0, 0.25]
    assert requests["attained"].tolist() == [True, False]
    assert requests["after"].tolist() == [-1, 0]


def test_timing_begins_at_0_and_keeps_slos():
    later = timed(THREE.replace(arrival_s=[5.0, 6.0, 9.0]), 2.0)
    assert later.table["arrival_s"].tolist() == [0, 0.5, 2]
    assert later.table["ttft_slo_s"].tolist() == [1, 1, 1]
    columns = {"arrival_s": [5.0, 0], "prompt_tokens": 8, "output_tokens": 2}
    turns = timed(
        Workload.from_columns(columns, turns=SessionDependencies(np.array([-1, 0]), np.array([0, 3.0]))), 2.0
    ).turns
    assert turns.after.tolist() == [-1, 0] and turns.think_s.tolist() == [0, 1.5]
    for speed in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ReplayError, match="speed"):
            timed(THREE, speed)
