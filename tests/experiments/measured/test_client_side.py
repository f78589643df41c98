"""What clients add: seconds between them and the queue, found from other models' runs, and giving up."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from experiments.measured import client_side
from experiments.measured.giving_up import with_giving_up
from servegym.evaluation.measured.runs import Run
from servegym.simulator.memory.prefixes import Prompts


def run_of(model, arrival_s, tokens, ttft_s, e2e_s, **words):
    requests = pd.DataFrame({
        "stage": 0, "arrival_s": arrival_s, "prompt_tokens": 16, "output_tokens": tokens, "failed": False,
        "ttft_s": ttft_s, "e2e_s": e2e_s, "itl_s": (np.asarray(e2e_s) - ttft_s) / (np.asarray(tokens) - 1),
    })  # fmt: skip
    return Run("run", "gpu", model, 1, 1, 1, "0.15.1", 8, 64, 100, requests, **words)


def pair(model, client_s, **words):
    """A run, and what was simulated of it: without so many seconds on the client's side."""
    run = run_of(model, [0.0, 1.0], [11, 21], [0.05 + client_s, 0.04 + client_s], [1.05 + client_s, 2.04 + client_s])
    simulated = run.requests.assign(ttft_s=[0.05, 0.04], e2e_s=[1.05, 2.04])
    return replace(run, **words), simulated


def test_a_model_is_judged_by_the_client_side_of_the_others():
    runs = [pair("a", 0.010), pair("b", 0.020), pair("b", 0.020), pair("c", 0.010, over_http=False)]
    runs[2][0].requests.loc[0, "failed"] = True
    judged = client_side.study(runs)
    assert [one.run.model for one in judged] == ["a", "b", "b"]
    assert judged[0].client_s == pytest.approx(0.020, rel=0.1)  # a prior of 10 ms pulls a little
    assert judged[1].client_s == pytest.approx(0.010, rel=0.1)
    assert judged[0].before["ttft"] == pytest.approx(100 * (0.045 / 0.055 - 1))
    assert judged[0].after["ttft"] == pytest.approx(100 * ((0.045 + judged[0].client_s) / 0.055 - 1))
    assert judged[0].before["itl"] == judged[0].after["itl"]
    assert "| run* | " in client_side.section(judged)


def one_after_the_other(run):
    """A server of one request at a time, in order: each token takes 0.1 s."""
    free_s, rows = 0.0, []
    for arrival_s, tokens in zip(run.requests["arrival_s"], run.requests["output_tokens"], strict=True):
        start_s = max(free_s, arrival_s)
        free_s = start_s + 0.1 * tokens
        rows.append((start_s + 0.1 - arrival_s, 0.1, free_s - arrival_s))
    assert run.prefixes is None or len(run.prefixes.offsets) == len(rows) + 1
    return pd.DataFrame(rows, columns=["ttft_s", "itl_s", "e2e_s"])


def test_clients_that_give_up_free_the_engine():
    """20 tokens each, 2 s; clients give up after 3. The second has begun by then, the third and fourth have not."""
    arrival_s = [0.0, 0.1, 0.2, 0.3, 4.0]
    run = run_of("m", arrival_s, [20, 20, 20, 20, 20], [0.1] * 5, [2.0] * 5, timeout_s=3.0)
    run = replace(run, prefixes=Prompts(16, np.arange(6), np.arange(5)))
    found = with_giving_up(run, one_after_the_other, step_s=0.05)
    assert found["given_up"].tolist() == [False, True, True, True, False]
    assert found["e2e_s"].tolist() == pytest.approx([2.0, *[np.nan] * 3, 2.0], nan_ok=True)
    everything = with_giving_up(replace(run, timeout_s=100.0), one_after_the_other)
    assert not everything["given_up"].any()
    assert everything["e2e_s"].to_numpy() == pytest.approx(one_after_the_other(run)["e2e_s"].to_numpy())
