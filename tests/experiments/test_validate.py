"""`python -m experiments validate`: the public measured runs beside the simulation."""

import json
import os

import pytest

from experiments.validate import validate
from servegym.errors import ServegymError, WorkloadError


def test_without_the_data_it_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.delenv("SERVEGYM_DATA", raising=False)
    with pytest.raises(WorkloadError, match="SERVEGYM_DATA is not set"):
        validate(out=tmp_path)
    with pytest.raises(WorkloadError, match="SERVEGYM_DATA is not set"):
        validate(closed_loops=True, out=tmp_path)


def test_closed_loops_have_no_runs_to_name(tmp_path):
    with pytest.raises(ServegymError, match="--closed-loops takes no --run"):
        validate(["llama"], closed_loops=True, out=tmp_path)


@pytest.mark.slow
@pytest.mark.skipif("SERVEGYM_DATA" not in os.environ, reason="SERVEGYM_DATA names no measured runs")
def test_one_measured_run(tmp_path, capsys):
    validate(["rtx4090"], out=tmp_path, json="-")
    document = json.loads(capsys.readouterr().out)
    assert {row["case"] for row in document["errors"]} == {"headline", "no caching", "roofline"}
    assert (tmp_path / "scatter.png").exists()
    with pytest.raises(ServegymError, match="no-such-run"):
        validate(["no-such-run"], out=tmp_path)
