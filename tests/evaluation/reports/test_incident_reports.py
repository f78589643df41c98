"""Reports on runs in which engines fail, return, are drained and moved, requests are held, and prefills suspended."""

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from servegym.baselines.registry import scheduler
from servegym.evaluation.reports.iterations import iterations, pieces
from servegym.evaluation.reports.memory import kv_blocks
from servegym.evaluation.reports.phases import phases
from servegym.evaluation.reports.plots import batches_over_time, kv_blocks_over_time, requests_over_time
from servegym.evaluation.reports.simulate_report import simulate_report
from servegym.simulator.features.operators import Operators
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.inputs.cluster import Cluster, Link
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation
from tests.evaluation.reports.runs import cramped
from tests.evaluation.reports.test_perfetto import check_trace, trace_of
from tests.simulator.fleets import fail, run
from tests.simulator.random_policies import RANDOM_ROUTER, RANDOM_SCALER, RANDOM_SCHEDULER
from tests.simulator.replay import replay
from tests.simulator.scenes import requests, scene
from tests.simulator.test_cluster_transfers import pool
from tests.simulator.test_refusing import ROUTER, served, three
from tests.simulator.whole_runs import finished

ENGINES = 5
LAYERS = Operators(4, np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]))


def troubled(seed: int = 0, until_s: float = np.inf) -> Simulation:
    """40 requests on two prefill and three decode engines, all of which fail, some twice, and return."""
    alone = cramped(seed=seed).scenario
    urgent = RANDOM_SCHEDULER.with_settings(chunk_tokens=40, decode_tier=3)
    pools = (
        dataclasses.replace(alone.deployment, engines=2, role="prefill", operators=LAYERS),
        dataclasses.replace(alone.deployment, engines=3, role="decode", total_blocks=90,
                            scheduler=scheduler("vllm-v1"), tier=0),
    )  # fmt: skip
    rng = np.random.default_rng(seed)
    incidents = [Incident(float(time_s), e % ENGINES, "fail") for e, time_s in enumerate(rng.uniform(0.1, 1.5, 8))]
    incidents += [Incident(0.4, 4, "drain"), *(Incident(t, e, "return") for t in (0.8, 2.0) for e in range(ENGINES))]
    scenario = Scenario(
        alone.workload, Cluster(pools, Link(1.0, 1000.0, 0.002, shared=True), 0.01, tiers=(0.02, 0.05)), urgent,
        until_s=until_s, router=RANDOM_ROUTER, scaler=RANDOM_SCALER.with_settings(interval_s=0.3),
        incidents=tuple(incidents),
    )  # fmt: skip
    return finished(scenario)


@pytest.fixture(scope="module", params=[(0, np.inf), (1, np.inf), (2, 1.0)], ids=str)
def simulation(request: pytest.FixtureRequest) -> Simulation:
    return troubled(*request.param)


@pytest.fixture(scope="module")
def result(simulation: Simulation) -> Result:
    return simulation.result()


def suspended_by_hand() -> Result:
    """Request 0 (4 tokens) from 0 s; 1 (1 token), more important, comes at 1.2 s. Layers end at 1.25, 2.5, 3.75, 5 s:
    suspended at 1.25 s, resumed at 3.25 s, done at 7 s."""
    workload = requests(arrival_s=[0.0, 1.2], prompt_tokens=[4, 1], priority=[1, 0])
    scenario = scene(workload, RANDOM_SCHEDULER.with_settings(preemptible=2), total_blocks=10)
    deployment = dataclasses.replace(scenario.deployment, operators=LAYERS)
    return Simulation(dataclasses.replace(scenario, deployment=deployment), record_timeline=True).run()


def test_there_is_all_kind_of_trouble_in_these_runs() -> None:
    kinds = Counter(kind for seed in (0, 1) for kind in troubled(seed).result().timeline["kind"])
    for kind in ("suspended", "resumed", "recalled", "held", "failed", "returned", "drained", "moved", "stopped"):
        assert kinds[kind] > 0, kind


def test_pieces_by_hand() -> None:
    table = pieces(suspended_by_hand())
    assert list(table.itertuples(index=False, name=None)) == [
        (0, 0, 0.0, 1.25, "suspended"), (1, 0, 1.25, 3.25, "ended"), (0, 0, 3.25, 7.0, "ended"),
    ]  # fmt: skip
    columns = ["start_s", "end_s", "ran_s", "suspensions", "kv_blocks", "prefill_tokens"]
    assert iterations(suspended_by_hand())[columns].to_numpy().tolist() == [
        [0.0, 7.0, 5.0, 1, 4, 4], [1.25, 3.25, 2.0, 0, 5, 1],
    ]  # fmt: skip


def test_phases_by_hand() -> None:
    """As in the simulator's test of a prefill engine that fails: its KV is lost on its way at 10 s."""
    workload = requests(prompt_tokens=[2], output_tokens=[4])
    result = run(workload, pool("both", 2), incidents=(fail(5.5, 0), fail(5.5, 1), Incident(9.0, 1, "return"))).result()
    assert phases(result).to_numpy().tolist() == [
        [0, 0, "prefill", 0.0, 3.0], [0, 0, "decode", 3.0, 5.5], [0, -1, "held", 5.5, 9.0],
        [0, 1, "prefill", 9.0, 14.0], [0, 1, "decode", 14.0, 16.0],
    ]  # fmt: skip
    alone = run(workload, pool("both"), incidents=(fail(5.5), Incident(9.0, 0, "return"))).result()
    assert phases(alone).to_numpy().tolist()[2:] == [
        [0, 0, "waiting", 5.5, 9.0], [0, 0, "prefill", 9.0, 14.0], [0, 0, "decode", 14.0, 16.0],
    ]  # fmt: skip


def test_a_trace_by_hand(tmp_path: Path) -> None:
    events = trace_of(suspended_by_hand(), tmp_path)["traceEvents"]
    slices = [
        (event["ts"], event["dur"], event["args"]["iteration"], event["args"]["resumed"], event["args"]["how"])
        for event in events
        if event["ph"] == "X"
    ]
    assert slices == [
        (0.0, 1.25e6, 0, False, "suspended"), (1.25e6, 2e6, 1, False, "ended"), (3.25e6, 3.75e6, 0, True, "ended"),
    ]  # fmt: skip


def test_a_trace_is_valid_and_complete(simulation: Simulation, result: Result, tmp_path: Path) -> None:
    document, log = trace_of(result, tmp_path), replay(simulation)
    check_trace(document)
    events = document["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert len({event["args"]["iteration"] for event in slices}) == result.summary["iterations"]
    assert len(slices) == result.summary["iterations"] + sum(event["args"]["resumed"] for event in slices)
    running = {event["pid"]: event["dur"] for event in slices if event["args"]["how"] == "running"}
    for e in range(ENGINES):
        mine = [event for event in slices if event["pid"] == e + 1]
        starts, ends = np.array([(event["ts"], event["ts"] + event["dur"]) for event in mine]).T
        assert (starts[1:] >= ends[:-1] - 1e-3).all()
        assert (ends - starts).sum() - running.get(e + 1, 0) == pytest.approx(1e6 * log.busy_at[e], abs=0.1)
    kinds = Counter(result.timeline["kind"])
    assert [event["args"]["how"] for event in slices].count("suspended") == kinds["suspended"]
    assert [event["args"]["how"] for event in slices].count("lost") <= kinds["failed"] + kinds["moved"]
    names = Counter(event["name"] for event in events if event["ph"] in "ni")
    for name, kind in (("failed", "failed"), ("returned", "returned"), ("drained", "drained"), ("sent", "sent"),
                       ("taken back", "recalled"), ("evicted", "evicted"), ("finished", "finish")):  # fmt: skip
        assert names[name] == kinds[kind], name
    assert sum(count for name, count in names.items() if name.startswith("to ")) == kinds["moved"]
    counters = [event for event in events if event["ph"] == "C" and event["name"] in ("queue", "held")]
    last = {(event["pid"], event["name"]): event["args"]["requests"] for event in counters}
    assert sum(last.values()) <= result.summary["requests"] - result.summary["finished"]


def test_kv_blocks_are_the_simulators_own(result: Result) -> None:
    span_s = result.summary["span_s"]
    for engine, (time_s, blocks) in zip(result.arrays.engines, kv_blocks(result), strict=True):
        in_use = engine.total_blocks - engine.free_blocks
        assert (blocks[-1] if len(blocks) else 0) == in_use
        seconds = np.diff(np.r_[time_s, span_s]) @ blocks
        assert seconds == pytest.approx(
            engine.totals.block_seconds + in_use * (span_s - engine.totals.blocks_counted_s)
        )
        assert blocks.max(initial=0) <= engine.totals.peak_blocks


def test_phases_fill_the_time_of_each_request(result: Result) -> None:
    table, of = phases(result), result.requests
    lasted_s = (table["end_s"] - table["start_s"]).groupby(table["request"]).sum().reindex(of.index, fill_value=0.0)
    until_s = of["finish_s"].fillna(result.summary["span_s"])
    np.testing.assert_allclose(lasted_s, until_s - of["arrival_s"], atol=1e-9)
    later = table["request"].to_numpy()[1:] == table["request"].to_numpy()[:-1]
    np.testing.assert_array_equal(table["start_s"].to_numpy()[1:][later], table["end_s"].to_numpy()[:-1][later])


def test_pictures_add_up(result: Result) -> None:
    bins, waiting, running = requests_over_time(result)
    table, width_s = phases(result), np.diff(bins.edges_s)
    lasted_s = (table["end_s"] - table["start_s"]).groupby(table["phase"].isin(["waiting", "held"])).sum()
    assert waiting @ width_s == pytest.approx(lasted_s[True]) and running @ width_s == pytest.approx(lasted_s[False])
    bins, blocks = kv_blocks_over_time(result)
    np.testing.assert_allclose(
        blocks @ width_s / bins.span_s, result.engines["kv_use_mean"] * result.arrays.engines["total_blocks"]
    )
    assert max(batches_over_time(result)[1]["prefill_tokens"]) > 0


@pytest.mark.slow
def test_a_page_about_trouble(result: Result, tmp_path: Path) -> None:
    page = simulate_report(result, tmp_path / "trouble.html").read_text("utf-8")
    for words in (
        "random-scaler",
        "fail engine 0 at",
        "requests taken back",
        "in service (s)",
        "tokens lost",
        "0.02, 0.05",
    ):
        assert words in page, words
    plain = simulate_report(cramped(), tmp_path / "plain.html").read_text("utf-8")
    assert "requests taken back" not in plain and "blocking, mean" not in plain


def test_a_request_that_is_refused_was_held_until_then(tmp_path: Path) -> None:
    drained = (Incident(2.0, 1, "drain"),)
    simulation = served(three(), ROUTER.with_settings(after_s=0.75), drained)
    rows = phases(simulation.result()).query("request == 1")
    assert rows[["engine", "phase", "start_s", "end_s"]].to_numpy().tolist() == [[-1, "held", 0.5, 2.0]]
    document = trace_of(simulation.result(), tmp_path)
    check_trace(document)
    named = {event["name"]: event["ts"] for event in document["traceEvents"]}
    assert named["refused"] == 2e6
