"""LoRA adapters that are drawn for requests."""

import numpy as np
import pytest

from servegym.traces import build_workload
from servegym.traces.workloads import with_adapters


def test_shares_are_those_of_zipf():
    workload = build_workload("azure-conv", requests=20000, rate_per_s=1.0)
    drawn = with_adapters(workload, 4, 1.0, np.random.default_rng(0)).table["adapter"]
    shares = np.array([1, 1 / 2, 1 / 3, 1 / 4]) / (25 / 12)
    assert np.bincount(drawn, minlength=5) / 20000 == pytest.approx([0, *shares], abs=0.012)  # 3.4 standard errors
    equal = with_adapters(workload, 4, 0.0, np.random.default_rng(0)).table["adapter"]
    assert np.bincount(equal)[1:] / 20000 == pytest.approx(np.full(4, 0.25), abs=0.012)


def test_a_session_has_one_adapter():
    workload = build_workload("chat-sessions", requests=300, rate_per_s=1.0)
    given = with_adapters(workload, 9, 0.0, np.random.default_rng(0))
    session, adapter = given.turns.session, given.table["adapter"]
    assert len(np.unique(session)) < 300 and (adapter == adapter[session]).all() and len(np.unique(adapter)) == 9
