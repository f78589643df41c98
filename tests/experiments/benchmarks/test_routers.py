"""Routers in the middle of a run: that what is timed are their decisions, with a router that knows something."""

from types import SimpleNamespace

import numpy as np
import pytest

from experiments.benchmarks import cluster, routers
from experiments.benchmarks.scenarios import Sizes
from servegym.baselines.registry import router_names
from servegym.errors import ExperimentError
from servegym.latency_models.profile import load_profile
from servegym.scenarios.saturation import saturation_rate_per_s
from servegym.simulator.records.fields import copied

pytestmark = pytest.mark.slow

SIZES = Sizes(repetitions=2, routed_engines=6, routed_requests_per_engine=40, routed_decisions=50)
TOGETHER, OVERLOAD, APART, _ = routers.CASES


@pytest.fixture(scope="module", params=[OVERLOAD, APART], ids=["co-located", "disaggregated"])
def timed(request) -> routers.Timed:
    return routers.Timed("round-robin", request.param, SIZES)


def test_the_run_is_stopped_in_the_middle(timed):
    requests = SIZES.routed_engines * SIZES.routed_requests_per_engine
    assert timed.first == pytest.approx(requests / 2, abs=1)
    assert timed.simulation.router_state.known.snapshots["requests"].sum() > 0
    assert timed.mean_record > 0


def test_requests_are_routed_as_the_event_loop_routes_them(timed):
    run, router_state, now_s = timed.made_ready()
    routers.route_all.entry(run, router_state, now_s, timed.first, SIZES.routed_decisions)
    last, snapshots = timed.first + SIZES.routed_decisions - 1, router_state.known.snapshots
    takers = np.flatnonzero(snapshots["role"] == 2) if (snapshots["role"] == 1).any() else np.arange(len(snapshots))
    assert (
        router_state.route[0].engine == takers[last % len(takers)]
    )  # the second answer, where there are decode engines


def test_a_request_that_is_routed_arrives_now(timed):
    run, _, now_s = timed.made_ready()
    coming = slice(timed.first, timed.first + SIZES.routed_decisions)
    given = timed.simulation.arrays.requests[coming]
    assert (given["arrival_s"] > now_s).any()
    assert (run.requests["arrival_s"][coming] == now_s).all()
    slack_s = run.requests["first_deadline_s"][coming] - now_s
    assert slack_s == pytest.approx(given["first_deadline_s"] - given["arrival_s"])


def test_each_repetition_finds_the_same_books(timed):
    before = copied(timed.simulation.router_state), copied(timed.simulation.arrays)
    assert timed.requests_per_s() > 0
    for copy, now in zip(before, (timed.simulation.router_state, timed.simulation.arrays), strict=True):
        for field in copy._fields:
            if isinstance(getattr(copy, field), np.ndarray):
                assert same(getattr(copy, field), getattr(now, field)), field


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Field by field: the padding between fields means nothing."""
    if one.dtype.names:
        return all(same(one[name], other[name]) for name in one.dtype.names)
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def test_too_few_requests_are_an_error():
    sizes = Sizes(routed_engines=2, routed_requests_per_engine=4, routed_decisions=50)
    with pytest.raises(ExperimentError, match="of 50 requests to route have not arrived"):
        routers.Timed("random", TOGETHER, sizes)


def test_every_router_is_timed_in_every_case():
    figures = {figure.name: figure for figure in routers.measure_all(SIZES)}
    assert set(figures) == {
        f"router_{name.replace('-', '_')}{case.suffix}_requests_per_s"
        for name in router_names()
        for case in routers.CASES
    }
    assert all(0 < figure.low <= figure.value <= figure.high for figure in figures.values())
    assert (
        "3 prefill + 3 decode engines, load 1.4"
        in figures["router_random_disaggregated_overload_requests_per_s"].meaning
    )


SMALL_CLUSTER = SimpleNamespace(cluster_requests=300, cluster_engines=4, cluster_repetitions=2)
MEMORY = {100: 300.0, 300: 350.0}


def test_only_registered_routers_are_measured_in_a_cluster(monkeypatch):
    measured = []
    monkeypatch.setattr(cluster, "router_names", lambda: ["min-load", "random"])
    monkeypatch.setattr(cluster, "serve_in_process", lambda name, engines, requests: measured.append(name))
    monkeypatch.setattr(cluster, "figures_of", lambda name, runs, sizes: [])
    assert cluster.measure(SMALL_CLUSTER) == []
    assert measured == ["min-load", "min-load"] and "polyserve" in cluster.BOUNDS_S


def test_routers_are_compared_in_turns(monkeypatch):
    loops_s = {"min-load": [1.0, 4.0], "polyserve": [3.0, 6.0]}
    served = []

    def serve(name, engines, requests):
        if requests == 300:
            served.append(name)
        loop_s = loops_s[name][served.count(name) - 1]
        return {"loop_s": loop_s, "rate_per_s": 1.0, "peak_mib": MEMORY[requests]}

    monkeypatch.setattr(cluster, "serve_in_process", serve)
    (ratio,) = (figure for figure in cluster.measure(SMALL_CLUSTER) if figure.name == "cluster_polyserve_ratio")
    assert served == ["min-load", "polyserve"] * 2
    assert (ratio.low, ratio.value, ratio.high, ratio.at_most) == (1.5, 2.25, 3.0, 2.0)


def test_memory_is_that_of_the_requests_more(monkeypatch):
    def serve(name, engines, requests):
        return {"loop_s": 9.0, "rate_per_s": 1.0, "peak_mib": MEMORY[requests]}

    monkeypatch.setattr(cluster, "serve_in_process", serve)
    figures = cluster.figures_of("min-load", [serve("min-load", 4, 300)] * 2, SMALL_CLUSTER)
    assert {figure.name: figure.value for figure in figures} == {
        "cluster_minload_s": 9.0,
        "cluster_minload_bound_ratio": 0.2,
        "cluster_minload_rss_mib": 350.0,
        "cluster_minload_rss_mib_per_million": 250_000.0,
    }


def test_the_cluster_is_given_what_it_can_just_serve():
    profile = load_profile(cluster.DEVICE)
    rate_per_s = saturation_rate_per_s(cluster.TRACE, profile, slo=cluster.slo_recipe(profile))
    table = cluster.workload(profile, engines=64, requests=2000).table
    assert 2000 / table["arrival_s"][-1] == pytest.approx(64 * rate_per_s, rel=0.1)
    assert table["prompt_tokens"].max() <= cluster.LONGEST_PROMPT_TOKENS
    assert set(np.unique(table["tpot_slo_s"])) == {0.02, 0.03, 0.05, 0.1}


def test_a_process_that_fails_is_an_error():
    with pytest.raises(ExperimentError, match="unknown router 'none'"):
        cluster.serve_in_process("none", 2, 10)
