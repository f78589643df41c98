"""Gain functions (ProServe, Table 1) by hand: prompt 4, three tokens, at 5, 7 and 9."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.errors import GainError
from servegym.simulator.policies.gains import FUNCTIONS, Gain, gain_of
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.scenes import requests, scene
from tests.strategies import scenarios

pytestmark = pytest.mark.nojit

FAR = {"ttft_slo_s": 100.0, "tpot_slo_s": 100.0}


def earned(gain: Gain, **slos: float) -> float:
    """Of one request of weight 2 with tokens at 5, 7 and 9."""
    workload = requests(prompt_tokens=[4], output_tokens=[3], weight=2.0, **(FAR | slos))
    return Simulation(scene(workload, gain=gain)).run().summary["gain"]


@pytest.mark.parametrize(("slos", "gain"), [
    ({}, 2 * (4 + 0.5 + 0.5)),
    ({"ttft_slo_s": 5.5, "tpot_slo_s": 1.75}, 2 * (4 + 0.5)),  # deadlines 5.5, 7.25, 9: 9 is not before 9
    ({"ttft_slo_s": 5.0, "tpot_slo_s": 2.25}, 2 * (0.5 + 0.5)),  # 5, 7.25, 9.5
    ({"ttft_slo_s": 1.0, "tpot_slo_s": 1.0, "ttlt_slo_s": 8.0}, 2 * (4 + 0.5)),  # 8 for all three
])  # fmt: skip
def test_tdg(slos, gain):
    assert earned(Gain(first_weight=4.0, decode_weight=0.5), **slos) == gain


def test_an_unbuffered_first_token_moves_the_later_deadlines():
    unbuffered = Gain(first_weight=4.0, decode_weight=0.5, buffered_first_token=False)
    # TTFT SLO 6, TPOT SLO 2.25: deadlines 6, 8.25, 10.5; from a first token at 5 on: 7.25 and 9.5.
    assert earned(unbuffered, ttft_slo_s=6.0, tpot_slo_s=2.25) == 2 * (4 + 0.5 + 0.5)
    # 1.75: 6.75 and 8.5 are missed by 7 and 9; with the buffer 7.75 and 9.5 are not.
    assert earned(unbuffered, ttft_slo_s=6.0, tpot_slo_s=1.75) == 2 * 4
    assert earned(Gain(first_weight=4.0, decode_weight=0.5), ttft_slo_s=6.0, tpot_slo_s=1.75) == 2 * (4 + 0.5 + 0.5)
    # A late first token (at 5, SLO 4) moves nothing: 4, 7.25, 10.5.
    assert earned(unbuffered, ttft_slo_s=4.0, tpot_slo_s=3.25) == 2 * (0.5 + 0.5)
    # A TTLT class keeps the deadline of all its tokens.
    assert earned(unbuffered, ttft_slo_s=1.0, tpot_slo_s=1.0, ttlt_slo_s=50.0) == 2 * (4 + 0.5 + 0.5)


@pytest.mark.parametrize(("slos", "gain"), [
    ({}, 2 * (4 + 0.5 + 0.5)),
    ({"ttft_slo_s": 5.0}, 2 * (0.5 + 0.5)),
    ({"tpot_slo_s": 2.0}, 2 * 4),  # intervals of 2 are not below 2, whatever was saved before
    ({"ttft_slo_s": 1.0, "tpot_slo_s": 1.0, "ttlt_slo_s": 8.0}, 2 * (4 + 0.5)),
])  # fmt: skip
def test_ta_slo(slos, gain):
    assert earned(Gain("ta-slo", first_weight=4.0, decode_weight=0.5), **slos) == gain


@pytest.mark.parametrize(("slos", "gain"), [
    ({}, 4 + 8 * 3),  # whatever the weight
    ({"ttft_slo_s": 4.0}, 4 * 4 / 5 + 8 * 3),  # TTFT 5
    ({"tpot_slo_s": 1.0}, 4 + 8 * (1 + 1 + 3 / 4)),  # at 5, 7 and 9: 0, 2 and 4 are due, 1, 2 and 3 are out
    ({"ttft_slo_s": 4.0, "tpot_slo_s": 1.0}, 4 * 4 / 5 + 8 * (1 + 2 / 3 + 3 / 5)),  # 1, 3 and 5 are due
    ({"ttft_slo_s": 1.0, "tpot_slo_s": 1.0, "ttlt_slo_s": 9.0}, 4 + 8 * 3),
    ({"ttlt_slo_s": 6.0}, (4 + 8 * 3) * 6 / 9),
])  # fmt: skip
def test_tempo(slos, gain):
    assert earned(Gain("tempo"), **slos) == pytest.approx(gain, rel=1e-12)


@pytest.mark.parametrize(("slos", "attained"), [
    ({}, True),
    ({"ttft_slo_s": 5.0}, False),
    ({"tpot_slo_s": 2.0}, False),
    ({"ttft_slo_s": 5.5, "tpot_slo_s": 2.25}, True),
    ({"ttft_slo_s": 1.0, "tpot_slo_s": 1.0, "ttlt_slo_s": 9.5}, True),
    ({"ttlt_slo_s": 9.0}, False),
])  # fmt: skip
def test_gains_by_request(slos, attained):
    assert earned(Gain("weighted-slo"), **slos) == 2 * attained
    assert earned(Gain("vanilla-slo"), **slos) == attained


def test_one_token_has_no_tpot():
    workload = requests(prompt_tokens=[4], output_tokens=[1], ttft_slo_s=5.5, tpot_slo_s=0.001)
    assert Simulation(scene(workload, gain=Gain("vanilla-slo"))).run().summary["gain"] == 1


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
@given(data=st.data())
def test_no_gain_is_above_the_ideal_one(name, data):
    scenario = dataclasses.replace(data.draw(scenarios("edf", most_requests=6)), gain=Gain(name))
    result = Simulation(scenario, record_timeline=True).run()
    lines = result.timeline
    assert (result.requests["gain"] >= 0).all()
    assert (result.requests["gain"] <= result.requests["ideal_gain"] * (1 + 1e-12)).all()
    total = result.summary["gain"]
    assert lines.value[lines.kind == "token"].sum() == pytest.approx(total, abs=1e-9)
    assert result.arrays.status[0].gain == pytest.approx(total, abs=1e-9)
    if name == "vanilla-slo":
        assert total == result.requests["attained"].sum()
    assert (result.summary["tdg_ratio"] is None) == (name != "tdg")


def test_the_first_weight_is_by_default_the_ratio_of_mean_lengths():
    workload = requests(prompt_tokens=[4, 8], output_tokens=[1, 3], weight=[1.0, 2.0])
    first, decode = Gain(decode_weight=0.5).token_gains(workload.table)
    assert first.tolist() == [3, 6] and decode.tolist() == [0.5, 1.0]  # 6 / 2
    ideal = {"tdg": [3, 8], "tempo": [12, 32], "weighted-slo": [1, 2], "vanilla-slo": [1, 1], "session-slo": [1, 2]}
    for name, gains in ideal.items():
        assert Gain(name, decode_weight=0.5).ideal(workload).tolist() == gains, name


def test_a_ratio_of_nothing():
    gain = Gain(first_weight=0.0)
    summary = Simulation(scene(requests(prompt_tokens=[4]), gain=gain)).run().summary
    assert summary["ideal_gain"] == 0 and summary["tdg_ratio"] is None


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
@pytest.mark.parametrize("field", ["first_weight", "decode_weight"])
def test_weights_are_finite_and_not_negative(field, value):
    with pytest.raises(GainError, match=f"gain tdg: {field} is {value}; it should be 0 or more"):
        Gain(**{field: value})


def test_an_unknown_gain():
    with pytest.raises(GainError, match=r"unknown gain function 'tgd' .*there are: .*tdg"):
        Gain("tgd")


def test_a_gain_in_words():
    assert gain_of("tdg") == Gain()
    assert gain_of("tdg:first_weight=2,buffered_first_token=no") == Gain(first_weight=2, buffered_first_token=False)
    assert gain_of("weighted-slo:decode_weight=0.5") == Gain("weighted-slo", decode_weight=0.5)
    assert gain_of("tdg:buffered_first_token=yes") == Gain()


@pytest.mark.parametrize(("text", "right"), [
    ("nope", "ta-slo"),
    ("tdg:nope=1", "first_weight, decode_weight, buffered_first_token"),
    ("tdg:first_weight", "key=value"),
    ("tdg:first_weight=x", "a number, 0 or more"),
    ("tdg:first_weight=-1", "0 or more"),
    ("tdg:decode_weight=nan", "0 or more"),
    ("tdg:buffered_first_token=1", "yes or no"),
    ("ta-slo:first_weight=0,decode_weight=0", "one of them should be above 0"),
])  # fmt: skip
def test_a_gain_in_wrong_words(text, right):
    with pytest.raises(GainError, match=right):
        gain_of(text)
