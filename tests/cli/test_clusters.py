"""Several engines and the router before them, on the command line and from a script."""

import json

import pytest

from servegym.api import simulate
from servegym.baselines.registry import router, scheduler
from servegym.errors import SpecError
from servegym.evaluation.compared import COMPARED
from servegym.evaluation.comparison import Comparison
from servegym.latency_models.profile import load_profile
from servegym.scenarios.fleets import deployment_of
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.inputs.cluster import Cluster

PROFILE = load_profile("a100-llama3-8b")
ARGUMENTS = ("simulate", "--requests", "60", "--rate", "20")


def test_prefill_and_decode_engines_are_those_of_a_script(servegym):
    document = servegym(
        *ARGUMENTS, "--prefill", "2", "--decode", "1", "--router", "min-tokens", "--link-gb-per-s", "0.5", "--json", "-"
    ).document  # fmt: skip
    arguments = document["arguments"]
    assert (document["engines"], arguments["prefill"], arguments["decode"]) == (3, 2, 1)
    assert arguments["router"] == "min-tokens"
    assert arguments["link_gb_per_s"] == 0.5
    cluster = deployment_of(ServingSpec().replaced(prefill=2, decode=1, link_gb_per_s=0.5))
    result = simulate("azure-conv", deployment=cluster, router="min-tokens", rate_per_s=20, requests=60)
    assert document["finished"] == 60
    for figure in ("tdg_ratio", "ttft_s", "tpot_s", "span_s", "iterations"):
        assert document[figure] == result.summary[figure]
    assert isinstance(cluster, Cluster) and [pool.role for pool in cluster.pools] == ["prefill", "decode"]
    assert cluster.link.bytes_per_token / cluster.link.bytes_per_s == PROFILE.kv.bytes_per_token / 0.5e9


def test_the_router_matters_and_is_named(servegym):
    documents = [
        servegym(*ARGUMENTS, "--engines", "3", "--router", name, "--json", "-").document
        for name in ("round-robin", "random:seed=3")
    ]
    assert [document["arguments"]["router"] for document in documents] == ["round-robin", "random:seed=3"]
    assert documents[0]["ttft_s"] != documents[1]["ttft_s"]
    in_turn = simulate("azure-conv", engines=3, rate_per_s=20, requests=60).summary
    assert documents[0]["ttft_s"] == in_turn["ttft_s"]
    assert "router random:seed=3" in servegym(*ARGUMENTS, "--engines", "3", "--router", "random:seed=3").stdout


def test_tables_report_and_timeline_of_a_cluster(servegym, tmp_path):
    done = servegym(*ARGUMENTS, "--prefill", "1", "--decode", "2", "--out", "out", "--csv", "--timeline",
                    "--report", "r.html", "--perfetto", "t.json.gz")  # fmt: skip
    assert done.status == 0, done.stderr
    engines = (tmp_path / "out/engines.csv").read_text().splitlines()
    assert engines[0].startswith("engine,pool,role,tier,requests,") and engines[1].startswith("0,0,prefill,-1,60,")
    timeline = (tmp_path / "out/timeline.csv").read_text()
    assert "departed" in timeline and "received" in timeline
    assert (tmp_path / "t.json.gz").stat().st_size > 0 and (tmp_path / "r.html").stat().st_size > 0


@pytest.mark.slow
def test_what_a_comparison_is_has_its_engines_and_routers():
    """Else results of one would be taken for those of the other."""
    small = COMPARED.replaced(scheduler="edf", load=1.0, requests=20)
    identities = [
        json.dumps(Comparison(small.replaced(**more), 1).identity, sort_keys=True)
        for more in (
            {"engines": 2}, {"engines": 2, "router": "min-load"}, {"engines": 2, "router": "random:seed=1"},
            {"prefill": 1, "decode": 1}, {"prefill": 1, "decode": 1, "link_gb_per_s": 1.0},
            {"prefill": 1, "decode": 1, "decode_scheduler": "edf"},
        )
    ]  # fmt: skip
    assert len(set(identities)) == len(identities)
    assert Comparison(small.replaced(prefill=1, decode=1, router="min-load"), 1).title.startswith(
        "azure-conv on 1 prefill + 1 decode x a100-llama3-8b, router min-load, SLOs proserve"
    )


WRONG = {
    "prefill engines alone": (["simulate", "--prefill", "2"], "no decode engines"),
    "decode engines alone": (["compare", "--decode", "2"], "no prefill engines"),
    "both kinds": (["simulate", "--engines", "2", "--prefill", "1", "--decode", "1"], "--engines is given"),
    "link without its engines": (["simulate", "--link-gb-per-s", "3"], "link"),
    "no link": (["simulate", "--prefill", "1", "--decode", "1", "--link-gb-per-s", "0"], "above 0"),
    "decode scheduler alone": (["compare", "--decode-scheduler", "edf"], "decode engines"),
    "unknown decode scheduler": (
        ["simulate", "--prefill", "1", "--decode", "1", "--decode-scheduler", "nope"], "sarathi-fcfs",
    ),
    "unknown router": (["simulate", "--router", "nope"], "min-load"),
    "unknown router to compare": (["compare", "--engines", "2", "--router", "nope"], "min-load"),
    "router's parameter": (["simulate", "--router", "gorouting:nope=1"], "alpha"),
    "router twice": (["compare", "--engines", "2", "--router", "random", "--router", "random"], "twice"),
    "routers for one engine": (["compare", "--router", "random", "--router", "min-load"], "one engine"),
    "a scheduler as router": (["simulate", "--router", "edf"], "there are: gorouting"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "word"), WRONG.values(), ids=WRONG)
def test_wrong_input_ends_with_status_2_and_says_what_is_right(servegym, arguments, word):
    assert word in servegym(*arguments).refusal


def test_a_script_gives_a_deployment_or_engines():
    cluster = deployment_of(ServingSpec().replaced(prefill=1, decode=1))
    with pytest.raises(SpecError, match="deployment is given"):
        simulate("azure-conv", deployment=cluster, engines=2, requests=5, rate_per_s=1)
    with pytest.raises(SpecError, match="give both"):
        simulate("azure-conv", prefill=1)
    result = simulate("azure-conv", deployment=PROFILE.deployment(2), router=router("min-load"),
                      scheduler=scheduler("edf"), requests=5, rate_per_s=1)  # fmt: skip
    assert result.summary["finished"] == 5
