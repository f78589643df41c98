"""What reports make of the timeline of a run with drafts: the simulator's own memory, phases and tokens."""

import dataclasses

import numpy as np
import pytest

from servegym.evaluation.reports.iterations import iterations
from servegym.evaluation.reports.memory import kv_blocks
from servegym.scenarios.demand import Demand
from servegym.scenarios.parts import Fleet, Policies
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation


def result(**fleet) -> Result:
    """Short of memory: requests are evicted too."""
    policies = Policies(scheduler="vllm-v1:reserve_full=0", router="min-load" if "prefill" in fleet else None)
    demand = Demand(rate_per_s=40.0, requests=60)
    spec = ServingSpec(demand, Fleet(speculation="k=5,acceptance=0.9/0.7/0.5/0.3/0.1", **fleet), policies)
    scenario = spec.build(seed=1)
    most = int((scenario.workload.table["prompt_tokens"] + scenario.workload.table["output_tokens"]).max())
    deployment = scenario.deployment
    blocks = {"total_blocks": -(-2 * most // 16)}
    pools = tuple(dataclasses.replace(pool, **blocks) for pool in deployment.pools)
    changed = pools[0] if len(pools) == 1 else dataclasses.replace(deployment, pools=pools)
    return Simulation(dataclasses.replace(scenario, deployment=changed), record_timeline=True).run()


@pytest.mark.parametrize("fleet", [{}, {"prefill": 1, "decode": 2}], ids=["alone", "pools"])
def test_memory_and_phases_are_the_simulators_own(fleet) -> None:
    run = result(**fleet)
    assert run.summary["accepted_share"] > 0.3 and (fleet or run.summary["evictions"] > 0)
    for engine, (time_s, blocks) in zip(run.arrays.engines, kv_blocks(run), strict=True):
        seconds = np.diff(np.r_[time_s, run.summary["span_s"]]) @ blocks
        assert blocks[-1] == 0 and seconds == pytest.approx(engine.totals.block_seconds)
    table = iterations(run)
    decodes = run.summary["drafted_tokens"] + table["decode_requests"].sum()
    assert table["decode_tokens"].sum() == decodes
    # Each token of an answer is the first of a prefill (again, after an eviction), a decode's own, or an accepted one.
    accepted = run.engines["accepted_tokens"].sum()
    firsts = run.summary["tokens_emitted"] - table["decode_requests"].sum() - accepted
    assert 60 <= firsts <= 60 + run.summary["evictions"]
