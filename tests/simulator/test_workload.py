"""Workloads: what is taken, what is refused, and what the message names."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.errors import ServegymError, WorkloadError
from servegym.simulator.inputs.workload import DEFAULTS, FIELDS, WEIGHTS, Workload
from servegym.simulator.records.types import WORKLOAD
from tests.strategies import workloads

pytestmark = pytest.mark.nojit

THREE = {"arrival_s": [0.0, 1.0, 1.0], "prompt_tokens": [4, 5, 6], "output_tokens": [1, 2, 3]}


def test_columns_and_defaults():
    workload = Workload.from_columns(THREE | {"weight": 2.0}, name="mine", provenance={"from": "here"})
    assert len(workload) == 3 and workload.name == "mine" and workload.provenance == {"from": "here"}
    assert workload.table["prompt_tokens"].tolist() == [4, 5, 6] and workload.table["weight"].tolist() == [2, 2, 2]
    for field, default in DEFAULTS.items():
        if field != "weight":
            np.testing.assert_array_equal(workload.table[field], np.full(3, default))
    assert set(DEFAULTS) | set(THREE) == set(FIELDS)


def test_a_table_is_not_to_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        Workload.from_columns(THREE).table["weight"] = 3


@pytest.mark.parametrize(("field", "value", "right"), [
    ("arrival_s", -1.0, "a time from 0 to 1e+12 s"),
    ("arrival_s", np.nan, "a time from 0 to 1e+12 s"),
    ("arrival_s", np.inf, "a time from 0 to 1e+12 s"),
    ("arrival_s", 0.5, r"not before the request above it (sort by arrival)"),
    ("prompt_tokens", 0, "1 to 16777216"),
    ("prompt_tokens", -3, "1 to 16777216"),
    ("prompt_tokens", 2**24 + 1, "1 to 16777216"),
    ("output_tokens", 0, "1 to 16777216"),
    ("output_tokens", 2**24 + 1, "1 to 16777216"),
    ("weight", 0.0, WEIGHTS),
    ("weight", -1.0, WEIGHTS),
    ("weight", np.inf, WEIGHTS),
    ("weight", np.nan, WEIGHTS),
    ("ttft_slo_s", 0.0, "above 0 and finite"),
    ("ttft_slo_s", np.nan, "above 0 and finite"),
    ("ttft_slo_s", np.inf, "above 0 and finite"),
    ("tpot_slo_s", 0.0, "above 0 and finite"),
    ("tpot_slo_s", np.inf, "above 0 and finite"),
    ("ttlt_slo_s", 0.0, "above 0"),
    ("ttlt_slo_s", np.nan, "above 0"),
    ("predicted_output_tokens", 0.0, "above 0, or NaN where unknown"),
    ("client", -1, "0 or more"),
    ("application", -1, "0 or more"),
])  # fmt: skip
def test_what_cannot_be_served(field, value, right):
    columns = {key: np.array(column, "f8") for key, column in THREE.items()}
    columns.setdefault(field, np.full(3, DEFAULTS.get(field, 0), "f8"))
    columns[field] = columns[field].copy()
    columns[field][2] = value
    if field == "arrival_s" and np.isfinite(value) and value > 0:
        assert value < columns["arrival_s"][1]
    with pytest.raises(WorkloadError) as error:
        Workload.from_columns(columns, name="mine")
    shown = f"{value}" if WORKLOAD[field].kind == "i" else f"{float(value)}"
    assert str(error.value) == f"workload 'mine', request 2: {field} is {shown}; it should be {right}"
    assert isinstance(error.value, ServegymError)


def test_the_first_bad_request_is_named_and_the_others_are_counted():
    with pytest.raises(WorkloadError, match=r"request 1: weight is 0.0; .* \(2 such requests\)"):
        Workload.from_columns(THREE | {"weight": [1.0, 0.0, 0.0]})


@pytest.mark.parametrize("field", ["prompt_tokens", "output_tokens", "priority", "client", "application", "urgency"])
@pytest.mark.parametrize("value", [1.5, np.nan, np.inf, 2.0**31])
def test_whole_numbers(field, value):
    column = np.array([1.0, value, 1.0])
    with pytest.raises(WorkloadError, match=rf"workload 'workload', request 1: {field} is .*; it is a whole number"):
        Workload.from_columns(THREE | {field: column})


@pytest.mark.parametrize(("columns", "message"), [
    (THREE | {"wait": 1}, r"workload 'workload': unknown column wait; a workload has arrival_s, .*urgency"),
    ({"arrival_s": [0.0]}, "missing columns output_tokens, prompt_tokens;"),
    (THREE | {"weight": [1.0, 2.0]}, "columns differ in length: .*'weight': 2"),
    (THREE | {"prompt_tokens": ["a", "b", "c"]}, "column prompt_tokens is not numeric"),
    (THREE | {"weight": None}, "request 0: weight is nan"),
    ({key: [] for key in THREE}, "workload 'workload' has no requests"),
])  # fmt: skip
def test_bad_columns(columns, message):
    with pytest.raises(WorkloadError, match=message):
        Workload.from_columns(columns)


def test_a_table_of_another_type():
    with pytest.raises(WorkloadError, match="the table has dtype float64, not WORKLOAD"):
        Workload(np.zeros(3))


def test_replace():
    workload = Workload.from_columns(THREE)
    weighted = workload.replace(name="weighted", weight=[3.0, 2.0, 1.0], priority=1)
    assert weighted.name == "weighted" and weighted.table["weight"].tolist() == [3, 2, 1]
    assert weighted.table["priority"].tolist() == [1, 1, 1] and workload.table["weight"].tolist() == [1, 1, 1]
    # New arrivals: sorted again, each with its own columns; those at one time stay in order.
    moved = workload.replace(arrival_s=[5.0, 0.0, 0.0])
    assert moved.table["prompt_tokens"].tolist() == [5, 6, 4]
    with pytest.raises(WorkloadError, match="unknown column wait"):
        workload.replace(wait=1)
    with pytest.raises(WorkloadError, match=r"prompt_tokens has shape \(2,\), not \(3,\)"):
        workload.replace(prompt_tokens=[1, 2])
    with pytest.raises(WorkloadError, match="request 1: output_tokens is 0; it should be 1 to"):
        workload.replace(output_tokens=[1, 0, 1])


def test_rates():
    workload = Workload.from_columns(THREE | {"arrival_s": [2.0, 3.0, 6.0]})
    assert workload.rate_per_s == 0.5  # two gaps in 4 s
    assert Workload.from_columns(THREE | {"arrival_s": 1.0}).rate_per_s == np.inf


@given(workload=workloads(), field=st.sampled_from(FIELDS))
def test_a_digest_tells_requests_apart(workload, field):
    same = workload.replace(name="another name")
    assert same.digest == workload.digest
    column = workload.table[field].copy()
    column[-1] = 7.5 if np.isnan(column[-1]) else 6 if np.isinf(column[-1]) else column[-1] + 1
    assert workload.replace(**{field: column}).digest != workload.digest
