"""What is tried, and how it becomes a spec."""

from dataclasses import replace

import pytest

from servegym.errors import PolicyError
from servegym.evaluation.recommend.judging import parts_of
from servegym.evaluation.recommend.setups import Setup, setups
from servegym.latency_models.profile import load_profile
from servegym.scenarios.fleets import deployment_of, policy_of
from servegym.scenarios.spec import ServingSpec

PROFILE = load_profile("a100-llama3-8b")


def test_the_default_is_first_and_nothing_is_tried_twice():
    default = Setup(max_num_seqs=100, router="min-load")
    tried = setups(default)
    assert tried[0] == default and len(set(tried)) == len(tried)
    assert all(one.max_num_batched_tokens >= one.max_num_seqs for one in tried)


def test_routers_that_look_at_prefixes_are_tried_where_there_are_some():
    plain, prefixed = ({one.router for one in setups(Setup(), has_prefixes=has)} for has in (False, True))
    assert prefixed - plain == {"prefix-affinity", "kv-aware"} and {"predicted-cost", "lost-gain"} < plain
    assert {one.router for one in setups(Setup(), engines=1)} == {"round-robin"}


def test_schedulers_that_are_named_are_tried_instead():
    tried = setups(Setup(), schedulers=("edf",), routers=("min-load",))
    assert {one.scheduler for one in tried[1:]} == {"edf"} and {one.router for one in tried} == {
        "round-robin",
        "min-load",
    }
    with pytest.raises(PolicyError, match="unknown scheduler"):
        setups(Setup(), schedulers=("edff",))


def test_a_setup_as_a_spec():
    setup = Setup("vllm-v1:policy=priority", "min-load", 4096, 128, "off")
    spec = setup.spec(ServingSpec(), PROFILE, 3)
    deployment, policy = deployment_of(spec), policy_of(spec, "scheduler")
    assert deployment.engines == 3 and deployment.prefix_caching is False
    assert policy.label == "vllm-v1:policy=priority,max_num_batched_tokens=4096,max_num_seqs=128"
    assert policy_of(spec, "router").name == "min-load"


def test_limits_hold_for_a_plug_in_too():
    spec = Setup("edf", max_num_batched_tokens=1024, max_num_seqs=64).spec(ServingSpec(), PROFILE, 1)
    deployment = deployment_of(spec)
    assert (deployment.max_num_batched_tokens, deployment.max_num_seqs) == (1024, 64)


def test_a_threshold_of_long_prefills_is_tried_where_batches_are_larger():
    tried = setups(Setup(), engines=1)
    found = {(one.long_prefill_token_threshold, one.max_num_batched_tokens) for one in tried if one.max_num_seqs == 256}
    assert {(256, 512), (256, 16384), (1024, 2048)} <= found and (1024, 1024) not in found
    assert not any(one.long_prefill_token_threshold for one in tried if one.needs_plug_in)
    setup = Setup(long_prefill_token_threshold=256)
    settings = policy_of(setup.spec(ServingSpec(), PROFILE, 1), "scheduler").settings
    assert settings["long_prefill_token_threshold"] == 256 and "256 tokens of a prompt" in setup.label()


def test_engines_that_prefill_or_decode():
    setup = replace(Setup(), prefill_share=0.25)
    assert [setup.pools(engines) for engines in (2, 3, 8)] == [(1, 1), (1, 2), (2, 6)]
    pools = deployment_of(setup.spec(ServingSpec(), PROFILE, 8)).pools
    assert [(pool.role, pool.engines) for pool in pools] == [("prefill", 2), ("decode", 6)]
    assert "2 prefill + 6 decode" in setup.label(8)
    assert any(one.prefill_share for one in setups(Setup(), disaggregated=True))


def test_what_the_router_and_the_engine_do_alone():
    both = Setup(router="min-load", max_num_seqs=64)
    assert list(parts_of(both, Setup()).values()) == [Setup(router="min-load"), Setup(max_num_seqs=64)]
    assert parts_of(Setup(max_num_seqs=64), Setup()) == {}
