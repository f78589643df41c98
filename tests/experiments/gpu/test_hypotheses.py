"""Hypotheses about runs on a GPU: errors of simulations, which bounds they miss, and leads over vLLM's own order."""

from types import SimpleNamespace
from typing import Any

import pandas as pd

from experiments.gpu.compare import SERVED, Compared
from experiments.gpu.hypotheses import tables
from experiments.gpu.workloads import STOCK


def result(ttft_s: float, tpot_s: float, tdg: float) -> Any:
    requests = pd.DataFrame({"ttft_s": [ttft_s] * 3, "tpot_s": [tpot_s, tpot_s, None]})
    return SimpleNamespace(summary={"tdg_ratio": tdg}, requests=requests)


def run(policy: str, served: Any, simulated: Any, load: float | None = 1.4) -> Compared:
    return Compared({"trace": "sharegpt", "policy": policy, "load": load}, {SERVED: served, "p": simulated})


def test_a_bound_that_is_missed_is_named() -> None:
    text = tables([run(STOCK, result(1.0, 0.10, 0.90), result(1.2, 0.105, 0.93))])
    assert f"| sharegpt, {STOCK} | p | +20 % | +20 % | +5 % | +5 % | +0.030 | TTFT p50, TTFT p90, TDG |" in text


def test_what_is_within_its_bounds_is_so() -> None:
    text = tables([run(STOCK, result(1.0, 0.10, 0.90), result(0.95, 0.10, 0.89))])
    assert f"| sharegpt, {STOCK} | p | -5 % | -5 % | +0 % | +0 % | -0.010 | none |" in text


def test_a_lead_is_over_stock_on_the_same_device() -> None:
    stock = run(STOCK, result(1.0, 0.1, 0.80), result(1.0, 0.1, 0.90))
    near = run("expected-gain", result(1.0, 0.1, 0.95), result(1.0, 0.1, 1.0))
    assert "| sharegpt | expected-gain | +0.150 | +0.100\\* |" in tables([stock, near])
    better = run("expected-gain", result(1.0, 0.1, 0.91), result(1.0, 0.1, 1.0))
    assert "| sharegpt | expected-gain | +0.110 | +0.100 |" in tables([stock, better])


def test_runs_at_saturation_say_nothing_of_hypotheses() -> None:
    same = result(1.0, 0.1, 0.8)
    assert tables([run(STOCK, same, same, None), run(STOCK, same, same, 0.8)]) == ""
