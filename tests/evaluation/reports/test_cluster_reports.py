"""Reports on clusters: which engine did what when, and the way of the KV between engines."""

import dataclasses
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from servegym.baselines.registry import router, scheduler
from servegym.evaluation.reports.perfetto import write_perfetto
from servegym.evaluation.reports.phases import phases
from servegym.evaluation.reports.simulate_report import simulate_report
from servegym.evaluation.reports.urgency import urgency
from servegym.simulator.inputs.cluster import Cluster, Link
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation
from tests.evaluation.reports.runs import cramped
from tests.evaluation.reports.test_perfetto import check_trace, trace_of
from tests.simulator.forming import SECONDS
from tests.simulator.scenes import requests


def disaggregated(scheduler_name: str = "slide-batching", until_s: float = np.inf) -> Result:
    """40 requests on two prefill engines and three decode engines of other sizes, over one slow link."""
    alone = cramped().scenario
    prefill = dataclasses.replace(alone.deployment, engines=2, role="prefill")
    decode = dataclasses.replace(
        alone.deployment, engines=3, role="decode", total_blocks=90, scheduler=scheduler("vllm-v1")
    )
    cluster = Cluster((prefill, decode), Link(1.0, 1000.0, 0.002, shared=True), 0.01)
    scenario = Scenario(
        alone.workload, cluster, scheduler(scheduler_name), until_s=until_s, router=router("min-load")
    )  # fmt: skip
    return Simulation(scenario, record_timeline=True).run()


def by_hand() -> Result:
    """A prefill of 4 tokens to 5 s; its KV is sent from 5 to 11 s (2 s + 1 s a token); decodes to 13 and to 15 s."""
    pool = Deployment(SECONDS, SECONDS, 10, block_tokens=1, watermark=0.0)
    pools = (dataclasses.replace(pool, role="prefill"), dataclasses.replace(pool, role="decode"))
    workload = requests(prompt_tokens=[4], output_tokens=[3])
    scenario = Scenario(workload, Cluster(pools, Link(1.0, 1.0, 2.0)), scheduler("edf"), router=router("min-load"))
    return Simulation(scenario, record_timeline=True).run()


def test_engines_by_pool_role_and_requests() -> None:
    result = disaggregated()
    table, prompts = result.engines, result.scenario.workload.table
    assert list(table["role"]) == ["prefill"] * 2 + ["decode"] * 3
    assert list(table["pool"]) == [0, 0, 1, 1, 1]
    assert table["requests"][:2].sum() == 40
    assert table["requests"][2:].sum() == (prompts["output_tokens"] > 1).sum()
    assert (table["requests"] > 0).all()
    together = cramped(engines=3).engines
    assert list(together["requests"]) == [14, 13, 13] and set(together["role"]) == {"both"}


def test_phases_by_hand() -> None:
    table = phases(by_hand())
    assert list(table[["engine", "phase", "start_s", "end_s"]].itertuples(index=False, name=None)) == [
        (0, "prefill", 0.0, 5.0),
        (1, "transfer", 5.0, 11.0),
        (1, "decode", 11.0, 15.0),
    ]


def test_a_trace_by_hand(tmp_path: Path) -> None:
    events = trace_of(by_hand(), tmp_path)["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["prefill engine 0 (cluster)", "decode engine 1 (cluster)"]
    track = [(event["pid"], event["ph"], event["name"], event["ts"]) for event in events if event["ph"] in "ben"]
    assert track == [
        (1, "b", "request 0", 0.0), (1, "b", "prefill", 0.0), (1, "e", "prefill", 5e6),
        (1, "n", "first token", 5e6), (1, "e", "request 0", 5e6),
        (2, "b", "request 0", 5e6), (2, "b", "transfer", 5e6), (2, "e", "transfer", 11e6),
        (2, "b", "decode", 11e6), (2, "e", "decode", 15e6), (2, "n", "finished", 15e6), (2, "e", "request 0", 15e6),
        (2, "n", "sent", 5e6),
    ]  # fmt: skip
    counters = defaultdict(list)
    for event in events:
        if event["ph"] == "C" and event["name"] != "requests in batch":
            counters[event["pid"], event["name"]].append((event["ts"], *event["args"].values()))
    assert counters[1, "KV blocks"] == [(0.0, 4), (11e6, 0)]
    assert counters[2, "KV blocks"] == [(5e6, 4), (11e6, 5), (13e6, 6), (15e6, 0)]
    assert counters[1, "queue"] == [(0.0, 1), (5e6, 0)]
    assert counters[2, "queue"] == [(11e6, 1), (15e6, 0)]


@pytest.mark.parametrize("until_s", [np.inf, 0.7])
@pytest.mark.parametrize("name", ["slide-batching", "vllm-fcfs", "fastserve-mlfq"])
def test_a_trace_is_valid_and_complete(name: str, until_s: float, tmp_path: Path) -> None:
    result = disaggregated(name, until_s)
    document = trace_of(result, tmp_path)
    check_trace(document)
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == result.summary["iterations"]
    assert {event["pid"] for event in document["traceEvents"]} == {1, 2, 3, 4, 5}
    finishes = [event for event in document["traceEvents"] if event["name"] == "finished"]
    assert len(finishes) == result.summary["finished"]
    transfers = [event for event in document["traceEvents"] if event["name"] == "transfer" and event["ph"] == "b"]
    if until_s == np.inf:
        assert len(transfers) == (result.scenario.workload.table["output_tokens"] > 1).sum()


def test_urgency_of_pools_with_schedulers_of_their_own() -> None:
    counts = urgency(disaggregated())
    of_prefill = counts["engine"] < 2
    assert (counts["urgent"] + counts["normal"])[of_prefill].min() > 0
    assert (counts["urgent"] + counts["normal"])[~of_prefill].max() == 0  # vllm-v1 tells none


def test_a_page_about_a_cluster(tmp_path: Path) -> None:
    page = simulate_report(disaggregated(), tmp_path / "cluster.html").read_text("utf-8")
    for words in ("slide-batching on cluster", "min-load", "decode", "vllm-v1", "bytes_per_s", "requests served"):
        assert words in page
    assert json.loads(write_perfetto(disaggregated(), tmp_path / "t.json").read_text())["otherData"]
