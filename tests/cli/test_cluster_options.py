"""Options of clusters: late signals, prefix stores, scalers, and engines that fail; in simulate and compare."""

import dataclasses
import json

import pytest

from servegym.api import simulate
from servegym.evaluation.compared import COMPARED
from servegym.evaluation.comparison import Comparison
from servegym.latency_models.profile import load_profile
from servegym.scenarios.fleets import deployment_of
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.fleet.startup import Startup
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.costs import Costs
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.memory.prefixes import PrefixStore
from servegym.traces import build_workload

PROFILE = load_profile("a100-llama3-8b")
ARGUMENTS = ("simulate", "--requests", "60", "--rate", "20", "--engines", "3", "--json", "-")
SMALL = ("compare", "--scheduler", "edf", "--load", "1", "--seeds", "1", "--requests", "40", "--json", "-")
FIGURES = ("tdg_ratio", "ttft_s", "tpot_s", "span_s", "iterations", "cached_tokens", "reroutes", "cost_engine_s")


def assert_is(document: dict, summary: dict) -> None:
    assert {name: document[name] for name in FIGURES} == {name: summary[name] for name in FIGURES}


@pytest.fixture
def alike(tmp_path):
    """A trace of 40 prompts that begin with one of two systems' 600 tokens."""
    path = tmp_path / "alike.jsonl"
    rows = [
        {"arrival_s": r / 4, "prompt_tokens": 700 + r, "output_tokens": 20, "prefix_blocks": [r % 2], "priority": 0}
        for r in range(40)
    ]
    path.write_text("".join(json.dumps(row | {"prefix_block_tokens": 600}) + "\n" for row in rows))
    return path


def test_late_signals(servegym):
    router = ("--router", "min-load")
    document = servegym(*ARGUMENTS, *router, "--signal-delay", "0.3").document
    cluster = Cluster((PROFILE.deployment(3),), signal_delay_s=0.3)
    run = {"deployment": cluster, "router": "min-load", "rate_per_s": 20, "requests": 60}
    assert_is(document, simulate("azure-conv", **run).summary)
    assert document["arguments"]["signal_delay_s"] == 0.3
    assert document["ttft_s"] != servegym(*ARGUMENTS, *router).document["ttft_s"]


def test_engines_that_fail_and_return(servegym):
    happen = ("--incident", "fail:1@0.5", "--incident", "return:1@2", "--incident", "drain:0@1")
    document = servegym(*ARGUMENTS, *happen).document
    incidents = (Incident(0.5, 1, "fail"), Incident(2, 1, "return"), Incident(1, 0, "drain"))
    assert_is(document, simulate("azure-conv", engines=3, rate_per_s=20, requests=60, incidents=incidents).summary)
    assert document["reroutes"] > 0 and document["finished"] == 60
    assert document["arguments"]["incidents"] == ["fail:1@0.5", "return:1@2", "drain:0@1"]
    printed = servegym(*ARGUMENTS[:-2], *happen).stdout
    assert "requests taken back" in printed and "engines in service" in printed


def test_engines_that_take_time_to_start(servegym):
    scaler = "target-utilisation:interval_s=0.25,most_requests=8,window_s=1"
    options = ("--router", "min-load", "--scaler", scaler, "--startup", "0.5", "--started", "1", "--price", "3600",
               "--idle-power", "100", "--busy-power", "300")  # fmt: skip
    document = servegym(*ARGUMENTS, *options).document
    fleet = dataclasses.replace(
        PROFILE.deployment(3), startup=Startup(0.5, 1), costs=Costs(3600.0, 100.0, 300.0, most_w=400)
    )
    run = {"deployment": fleet, "router": "min-load", "scaler": scaler, "rate_per_s": 20, "requests": 60}
    summary = simulate("azure-conv", **run).summary
    assert_is(document, summary)
    for name in ("cost", "cost_per_million_tokens", "energy_kwh", "energy_kwh_at_most_per_million_tokens"):
        assert document[name] == summary[name] > 0
    assert document["cost"] == pytest.approx(document["cost_engine_s"])
    printed = servegym(*ARGUMENTS[:-2], *options).stdout
    assert "cost (a million tokens)" in printed and "energy (a million tokens)" in printed
    for wrong, says in ((("--startup", "5"), "--scaler"), (("--started", "2"), "--startup")):
        assert says in servegym(*ARGUMENTS, *wrong).refusal


def test_engines_that_change_their_roles(servegym):
    alone = [word for word in ARGUMENTS if word not in ("--engines", "3")]
    options = ("--prefill", "1", "--decode", "2", "--router", "min-load", "--scaler", "pd-ratio:interval_s=0.5")
    document = servegym(*alone, *options, "--role-change", "0.5").document
    run = {"prefill": 1, "decode": 2, "role_change_s": 0.5, "router": "min-load", "scaler": "pd-ratio:interval_s=0.5"}
    assert_is(document, simulate("azure-conv", rate_per_s=20, requests=60, **run).summary)
    assert "give --prefill P --decode D" in servegym(*ARGUMENTS, "--role-change", "0.5", "--scaler", "pd-ratio").refusal


def test_prefix_stores(servegym, alike):
    arguments = ("simulate", "--trace", alike, "--engines", "2", "--router", "prefix-affinity")
    store = ("--prefix-store-tokens", "100000", "--host-bandwidth", "5")
    without = ("--prefix-caching", "off")
    document = servegym(*arguments, *store, "--json", "-").document
    deployment = dataclasses.replace(
        PROFILE.deployment(2), prefix_store=PrefixStore(100_000, PROFILE.kv.bytes_per_token / 5e9)
    )
    workload = build_workload(alike, idle_tpot_s=PROFILE.idle_tpot_s)
    assert_is(document, simulate(workload, deployment=deployment, router="prefix-affinity").summary)
    assert document["cached_tokens"] >= 30 * 600
    assert document["ttft_s"]["p50"] < servegym(*arguments, *without, "--json", "-").document["ttft_s"]["p50"]
    assert "tokens from prefix caches" in servegym(*arguments, *store).stdout


def test_the_same_options_compare(servegym, alike):
    more = ("--engines", "2", "--scaler", "static", "--signal-delay", "0.1", "--incident", "fail:1@2")
    document = servegym(
        *SMALL, "--trace", alike, *more, "--prefix-store-tokens", "50000", "--router", "min-load"
    ).document  # fmt: skip
    comparison = document["comparison"]
    assert comparison["signal_delay_s"] == 0.1 and comparison["prefix_store_tokens"] == 50_000
    assert [scaler["name"] for scaler in comparison["scalers"]] == ["static"]
    assert comparison["incidents"] == ["fail:1@2"]
    row = document["summary"][0]
    serving = ServingSpec().replaced(engines=2, signal_delay_s=0.1, prefix_store_tokens=50_000)
    alone = simulate(
        build_workload(alike, rate_per_s=row["rate_per_s"], idle_tpot_s=PROFILE.idle_tpot_s), scheduler="edf",
        deployment=deployment_of(serving), router="min-load", scaler="static", incidents=[Incident(2, 1, "fail")],
    )  # fmt: skip
    assert row["tdg_ratio"] == alone.summary["tdg_ratio"]


@pytest.mark.slow
def test_what_a_comparison_is_has_these_options():
    """Else results of one would be taken for those of the other."""
    small = COMPARED.replaced(scheduler="edf", load=1.0, requests=20, engines=2)
    identities = [
        json.dumps(Comparison(small.replaced(**more), 1).identity, sort_keys=True)
        for more in (
            {}, {"signal_delay_s": 0.1}, {"incidents": ["fail:1@2"]}, {"incidents": ["fail:1@3"]}, {"noise": 0.1},
            {"scaler": "static"}, {"scaler": "polyserve"}, {"scaler": "polyserve:interval_s=2"},
        )
    ]  # fmt: skip
    assert len(set(identities)) == len(identities)
    both = Comparison(
        small.replaced(router=("random", "min-load"), scaler=("static", "polyserve"), incidents=["fail:1@2"]), 1
    )
    assert list(both.candidates) == [
        f"edf + {router} + {scaler}" for router in ("random", "min-load") for scaler in ("static", "polyserve")
    ]
    assert "scalers static, polyserve, incident fail:1@2" in both.title


def test_prefill_engines_have_the_store_and_all_the_late_signals():
    words = {"prefill": 1, "decode": 1, "signal_delay_s": 0.2, "prefix_store_tokens": 1000, "host_gb_per_s": 10}
    cluster = deployment_of(ServingSpec().replaced(**words))
    assert isinstance(cluster, Cluster) and cluster.signal_delay_s == 0.2
    store = PrefixStore(1000, PROFILE.kv.bytes_per_token / 10e9)
    assert [pool.prefix_store for pool in cluster.pools] == [store, None]
    plain = deployment_of(ServingSpec().replaced(engines=2))
    assert isinstance(plain, Deployment) and plain.prefix_store is None


WRONG = {
    "no kind": (["--incident", "stop:1@2"], "fail, return, drain"),
    "no engine": (["--incident", "fail:x@2"], "KIND:ENGINE@SECONDS"),
    "no such engine": (["--engines", "2", "--incident", "fail:2@2"], "numbered 0 to 1"),
    "no time": (["--incident", "fail:0"], "fail:0@60"),
    "an early time": (["--incident", "fail:0@-1"], "0 or more"),
    "not a time": (["--incident", "fail:0@nan"], "0 or more"),
    "late signals of one engine": (["--signal-delay", "0.1"], "without a router"),
    "negative delay": (["--signal-delay", "-1"], "signal-delay"),
    "endless delay": (["--engines", "2", "--signal-delay", "inf"], "signal_delay_s"),
    "unknown scaler": (["--scaler", "nope"], "static"),
    "a router as scaler": (["--scaler", "min-load"], "unknown scaler"),
    "a scaler's parameter": (["--scaler", "polyserve:nope=1"], "interval_s"),
    "negative store": (["--prefix-store-tokens", "-1"], "prefix-store-tokens"),
    "nothing to store": (["--prefix-store-tokens", "1000"], "prefix blocks"),
    "no speed": (["--prefix-store-tokens", "1000", "--host-bandwidth", "0"], "above 0"),
}  # fmt: skip


@pytest.mark.parametrize("command", ["simulate", "compare"])
@pytest.mark.parametrize(("arguments", "word"), WRONG.values(), ids=WRONG)
def test_wrong_input_ends_with_status_2_and_says_what_is_right(servegym, tmp_path, command, arguments, word):
    assert word in servegym(command, "--requests", "20", *arguments).refusal
    assert not list(tmp_path.iterdir())


def test_a_scaler_named_twice(servegym):
    done = servegym(*SMALL, "--engines", "2", "--scaler", "static", "--scaler", "static")
    assert done.status == 2 and "static is named twice" in done.stderr
