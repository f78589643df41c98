"""What scripts and notebooks give to `simulate`, and to specs: paths, arrays, and values of wrong types."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import servegym
from servegym.errors import SpecError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    pd.DataFrame({"arrival_s": range(20), "prompt_tokens": 50, "output_tokens": 10}).to_csv(path, index=False)
    return path


def test_a_trace_may_be_a_path(path):
    digests = {
        servegym.simulate(trace).scenario.workload.digest for trace in (path, str(path))
    } | {
        servegym.ServingSpec(servegym.Demand(trace=path, window="first")).workload().digest,
        servegym.simulate(trace=path).scenario.workload.digest,
    }  # fmt: skip
    assert len(digests) == 1
    spec = servegym.ServingSpec(servegym.Demand(trace=(path, "sharegpt")), servegym.Fleet(device=path))
    assert spec.demand.trace == (str(path), "sharegpt") and spec.fleet.device == str(path)
    assert servegym.Pool(path).device == str(path)


def test_numbers_may_be_an_array():
    spec = servegym.ServingSpec().replaced(load=np.array([0.9, 1.0]), requests=np.int64(5), trace=np.array(["a", "b"]))
    assert (spec.demand.load, spec.demand.requests, spec.demand.trace) == ((0.9, 1.0), 5, ("a", "b"))
    with pytest.raises(SpecError, match=r"load is \(\[1\], \[2\]\); it should be a number"):
        servegym.ServingSpec().replaced(load=np.array([[1], [2]]))


@pytest.mark.parametrize("given, message", [
    ({"workload": 3}, "trace is 3; it should be a name, or several"),
    ({"workload": pd.DataFrame({"arrival_s": [0, 1]})}, "trace is a DataFrame; it should be the name of a file, such "
     "as one that its to_parquet writes"),
    ({"gain": 3}, "gain is 3; it should be text, keys with values, or a Gain"),
    ({"predictor": 3}, "predictor is 3; it should be text, keys with values, or a Predictor"),
    ({"until_s": "1"}, "until_s is '1'; it should be a time of 0 or more"),
])  # fmt: skip
def test_values_of_wrong_types_are_refused_in_one_line(given, message):
    with pytest.raises(SpecError, match=message) as refused:
        servegym.simulate(**given)
    assert "\n" not in str(refused.value)
