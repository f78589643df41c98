"""Specs: what they build, what they read and write, and what they refuse."""

import dataclasses
import json
import re
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import yaml

import servegym
from experiments.pages.spec import BEGIN, END, schema, tables
from servegym.errors import DeploymentError, SpecError
from servegym.latency_models.profile import load_profile
from servegym.scenarios.building import saturation_of
from servegym.scenarios.demand import BURST, STEADY, Demand
from servegym.scenarios.documents import load_spec, load_words
from servegym.scenarios.fleets import deployment_of, title_of
from servegym.scenarios.parts import Fleet, Imperfection, Policies
from servegym.scenarios.presets import EPISODES, PRESETS
from servegym.scenarios.ranges import Range
from servegym.scenarios.spec import LEAVES, PARTS, ServingSpec, overridden
from servegym.scenarios.values import Pool
from servegym.simulator.features.front_end import FrontEnd
from servegym.simulator.features.speculation import Speculation
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.fleet.startup import Startup
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.costs import Costs
from servegym.traces.workloads import build_workload

DOCS = Path(__file__).parents[2] / "docs"
PROFILE = load_profile("a100-llama3-8b")
SMALL = ServingSpec(Demand(rate_per_s=5.0, requests=20))
RICH = ServingSpec(
    Demand(
        trace=("azure-conv", "sharegpt"), load=Range(0.3, 1.6), requests=Range(20, 40), slo_scale=(0.5, 2.0), cv=2.0,
        load_profile=BURST,
    ),
    Fleet(
        prefill=2, decode=1, link_gb_per_s=10.0, incidents=("fail:1@3", Incident(9.0, 1, "return")),
        front_end=FrontEnd(0.1, 0.25, 1 / 3, one_process=True),
    ),
    Policies(scheduler=("edf", "sjf"), router="min-load", decode_scheduler="vllm-v1"),
    Imperfection(noise=0.1, correction=True, predictor="length_error=0.2"),
    gain="ta-slo:first_weight=2",
)  # fmt: skip
POOLS = (Pool("h100-llama3-8b", 2, "prefill"), Pool("a100-llama3-8b", 3, "decode", "vllm-v1"))


def test_requests_are_those_of_build_workload():
    workload = SMALL.build(seed=3).workload
    same = build_workload("azure-conv", requests=20, rate_per_s=5.0, seed=3, idle_tpot_s=PROFILE.idle_tpot_s)
    assert workload.digest == same.digest != SMALL.build(seed=4).workload.digest
    assert SMALL.replaced(seed=3).build().workload.digest == same.digest


def test_engines_are_those_of_the_profile():
    scenario = SMALL.replaced(engines=2, host_memory_gib=4, incidents=["fail:1@3"], noise=0.1).build(seed=5)
    pool = scenario.deployment.pools[0]
    assert (pool.engines, pool.name, pool.host) == (2, "2 x a100-llama3-8b", PROFILE.host_memory(4, 25.0))
    assert scenario.incidents == (Incident(3.0, 1, "fail"),) and scenario.router is None
    assert (scenario.disturbance.noise, scenario.disturbance.seed) == (0.1, 5)
    assert SMALL.replaced(noise=0.1, noise_seed=7).build(seed=5).disturbance.seed == 7


def test_prefill_and_decode_engines():
    cluster = deployment_of(ServingSpec().replaced(prefill=2, decode=1, link_gb_per_s=10.0, signal_delay_s=0.1))
    assert isinstance(cluster, Cluster) and cluster.name == "2 prefill + 1 decode x a100-llama3-8b"
    assert [(pool.role, pool.engines, pool.scheduler and pool.scheduler.name) for pool in cluster.pools] == [
        ("prefill", 2, None), ("decode", 1, "vllm-fcfs"),
    ]  # fmt: skip
    assert cluster.link.bytes_per_token / cluster.link.bytes_per_s == PROFILE.kv.bytes_per_token / 10e9


@pytest.mark.slow
def test_pools_of_several_devices():
    spec = SMALL.replaced(pools=POOLS)
    assert title_of(spec) == "2 prefill x h100-llama3-8b + 3 decode x a100-llama3-8b" and spec.fleet.total == 5
    cluster = spec.build().deployment
    assert [pool.scheduler and pool.scheduler.name for pool in cluster.pools] == [None, "vllm-v1"]
    assert cluster.pools[0].total_blocks == load_profile("h100-llama3-8b").kv.total_blocks
    alone = [saturation_of(SMALL.replaced(device=pool.device, engines=pool.engines)) for pool in POOLS]
    assert saturation_of(spec) == pytest.approx(sum(alone)) and saturation_of(spec) > max(alone)
    with pytest.raises(SpecError, match="the same model"):
        deployment_of(SMALL.replaced(pools=[POOLS[0], Pool("a100-qwen1.5-7b", 1, "decode")]))


def test_the_load_goes_over_time_and_slos_are_scaled():
    plain = SMALL.build().workload.table
    changed = SMALL.replaced(load_profile=BURST, cv=2.0, slo_scale=3.0).build().workload.table
    assert (changed["prompt_tokens"] == plain["prompt_tokens"]).all()
    assert (changed["arrival_s"] != plain["arrival_s"]).any() and (np.diff(changed["arrival_s"]) > 0).all()
    assert (changed["ttft_slo_s"] == 3 * plain["ttft_slo_s"]).all()


def test_what_is_served_at_its_own_times(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,5\n4,100,5\n")
    spec = ServingSpec().replaced(trace=str(path))
    assert spec.build().workload.table["arrival_s"].tolist() == [0, 4]
    with pytest.raises(SpecError, match="at its own times; give load or rate_per_s too"):
        spec.replaced(cv=2.0).build()


def test_a_distribution_draws_one_value_of_each_field():
    spec = SMALL.replaced(engines=[1, 3], scheduler=("edf", "sjf"), noise=Range(0.1, 0.2))
    assert spec.is_distribution and not SMALL.is_distribution
    assert spec.varied == ("engines", "scheduler", "noise")
    drawn = [spec.build(seed) for seed in range(30)]
    assert {scenario.deployment.engines for scenario in drawn} == {1, 3}
    assert {scenario.scheduler.name for scenario in drawn} == {"edf", "sjf"}
    noises = [scenario.disturbance.noise for scenario in drawn]
    assert 0.1 <= min(noises) < max(noises) <= 0.2
    again = spec.build(7)
    assert again.workload.digest == drawn[7].workload.digest and again.disturbance == drawn[7].disturbance
    assert spec(np.random.default_rng(1)).workload.digest == spec(np.random.default_rng(1)).workload.digest


@pytest.mark.parametrize("spec", [ServingSpec(), RICH, EPISODES, SMALL.replaced(pools=POOLS)])
def test_json_and_yaml_and_back(spec, tmp_path):
    document = json.loads(json.dumps(spec.to_json(), allow_nan=False))
    assert ServingSpec.from_json(document) == ServingSpec.from_json(spec.overrides()) == spec
    jsonschema.validate(document, schema())
    jsonschema.validate(spec.overrides(), schema())
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(document))
    jsonschema.validate(yaml.safe_load(path.read_text()), schema())
    assert load_spec(path) == spec
    path.with_suffix(".json").write_text(json.dumps(document))
    assert load_spec(path.with_suffix(".json")) == spec


@pytest.mark.parametrize(
    "document",
    [{"engine": 2}, {"fleet": {"load": 1}}, {"load": -1}, {"load": {"low": 1}}, {"engines": 0}, {"trace": 3}],
)
def test_the_schema_and_the_checks_refuse_the_same(document):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema())
    with pytest.raises(SpecError):
        ServingSpec.from_json(document)


def test_files_that_are_no_specs(tmp_path):
    path = tmp_path / "mine.yaml"
    for text, says in (
        ("a: [\n", "mine.yaml is no YAML"), ("- 1\n", "should be keys with values"),
        ("engine: 2\n", "unknown field of a spec 'engine'"),
        ("engines: 0\n", "mine.yaml: engines is 0"), ("load: lite\n", "a load of 'lite'"),
        ("fleet: {pools: []}\n", "mine.yaml: pools is an empty list"), ("engines: 010\n", "010 is 8 in YAML"),
        ("fleet:\n  engines: 2\n  engines: 3\n", "line 3: the key 'engines' is given twice"),
        ("idle_w: 100\n", "idle_w is given and busy_w is not"),
        ("busy_w: 100\n", "busy_w is given and idle_w is not"),
        ("fleet: {pools: [{engines: two}]}\n", "mine.yaml: a pool: engines is 'two'; it should be a whole number"),
        ("fleet: {pools: [{engines: 2.5}]}\n", r"mine.yaml: a pool: engines is 2\.5; it should be a whole number"),
        ("fleet: {pools: [{engines: 0}]}\n", "mine.yaml: a pool has 0 engines; it should be a whole number, 1 or more"),
        ("fleet: {pools: [{tier: 1x}]}\n", "a pool: tier is '1x'; it should be a whole number"),
        ("fleet: {pools: [{tier: 1.5}]}\n", r"a pool: tier is 1\.5; it should be a whole number"),
        ("load: 1.4.2\n", r"mine.yaml: a load of '1\.4\.2': it should be a number above 0"),
        ("rate_per_s: 1e3x\n", "mine.yaml: rate_per_s is '1e3x'; it should be a number above 0"),
        ("rate_per_s: {low: 1, high: 1x}\n", "mine.yaml: rate_per_s: a range from 1 to '1x'; it should be above 0"),
        ("gain: {first_weight: 1x}\n", "mine.yaml: gain: first_weight is '1x'; it should be a number"),
        ("gain: {first_weight: true}\n", "mine.yaml: gain: first_weight is True; it should be a number"),
        ("predictor: {batch_size: 1x}\n", "mine.yaml: predictor: batch_size is '1x'; it should be a whole number"),
        ("incidents: [{time_s: 1, engine: 0x, kind: fail}]\n", "an incident: engine is '0x'; it should be a whole"),
        ("incidents: [{time_s: 1, engine: 0.5, kind: fail}]\n", r"an incident: engine is 0\.5; it should be a whole"),
        ("load_profile: [['0.5', '1']]\n", "mine.yaml: a load profile of"),
        ("fleet: {pools: [{engines: 1, devise: x}]}\n", "unknown key of a pool 'devise'.*did you mean 'device'"),
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(SpecError, match=says):
            load_words(path)
    with pytest.raises(SpecError, match="No such file"):
        load_words(tmp_path / "none.yaml")
    with pytest.raises(SpecError, match=r"unknown preset 'nowhere'; there are: .*, or the path of a file"):
        load_words("nowhere")


def test_a_preset_by_its_name():
    spec = load_spec("session-fleet")
    assert spec == ServingSpec().with_overrides(PRESETS["session-fleet"].overrides).replaced(load_profile=STEADY)
    assert spec.demand.load_profile == ServingSpec().demand.load_profile  # and is in no title
    assert spec.fleet.total == 4 and spec.demand.rate_per_s == 12.0


def test_what_is_said_last_counts():
    pairs = ServingSpec().replaced(prefill=2, decode=1, decode_scheduler="edf", link_gb_per_s=3.0, load=1.0)
    alike = pairs.replaced(engines=4, rate_per_s=2.0)
    assert alike == ServingSpec(Demand(rate_per_s=2.0), Fleet(engines=4))
    assert alike.replaced(prefill=1, decode=1).fleet == Fleet(prefill=1, decode=1)
    assert alike.replaced(pools=POOLS).fleet == Fleet(pools=POOLS)
    assert overridden({"load": 1.0, "prefill": 2, "decode": 1, "slo": "qoserve"}, {"rate_per_s": 2, "engines": 3}) == {
        "slo": "qoserve", "rate_per_s": 2, "engines": 3,
    }  # fmt: skip


@pytest.mark.parametrize(("words", "says"), [
    ({"load": 1.0, "rate_per_s": 2.0}, "load and rate_per_s .* are both given"),
    ({"engines": 2, "prefill": 1, "decode": 1}, "give one of the two"),
    ({"pools": POOLS, "engines": 2}, "pools are given, and engines"),
    ({"pools": [{"engine": 2}]}, "a pool .engine.*did you mean .engines"),
    ({"signal_delay_s": 0.1}, "there is one engine, without a router"),
    ({"decode_scheduler": "edf"}, "edf is the scheduler of decode engines, and there are none"),
    ({"link_gb_per_s": 3.0}, "a link between prefill and decode engines"),
    ({"window": "last"}, "window is 'last'"),
    ({"keep_slos": "no"}, "keep_slos is 'no'; it should be true or false"),
    ({"correction": 3}, "correction is 3"),
    ({"noise": 11}, "noise is 11; it should be a number from 0 to 10"),
    ({"incidents": ["fail:2@3"], "engines": 2}, "numbered 0 to 1"),
    ({"demand": Fleet()}, "demand is Fleet"),
])  # fmt: skip
def test_what_does_not_go_together(words, says):
    with pytest.raises(SpecError, match=says) as error:
        ServingSpec().replaced(**words)
    assert "\n" not in str(error.value)


def test_engines_that_take_time_to_start_and_what_they_cost():
    costs = {"price_per_hour": 2, "idle_w": 100, "busy_w": 500}
    spec = SMALL.replaced(engines=3, startup_s=40, started=1, scaler="target-utilisation", **costs)
    pool = spec.build().deployment.pools[0]
    assert pool.startup == Startup(40.0, 1)
    assert pool.costs == Costs(**costs, most_w=400)  # what is known of an A100 beside
    assert SMALL.build().deployment.costs == Costs(most_w=400) and SMALL.build().deployment.startup is None
    with pytest.raises(DeploymentError, match="4 engines are started at first; there are 3"):
        spec.replaced(started=4).build()
    for words, says in (
        ({"scaler": None}, "nothing starts them; name a scaler"),
        ({"engines": 1}, "give 2 engines or more"),
        ({"startup_s": None}, "engines are always up; give startup_s"),
        ({"startup_s": -1}, "a number of 0 or more"), ({"startup_s": float("inf")}, "a number of 0 or more"),
        ({"price_per_hour": -1}, "a number of 0 or more"), ({"idle_w": float("nan")}, "a number of 0 or more"),
        ({"started": 0.5}, "a whole number"),
    ):  # fmt: skip
        with pytest.raises(SpecError, match=says) as error:
            spec.replaced(**words)
        assert "\n" not in str(error.value)


def test_engines_that_change_their_roles():
    spec = SMALL.replaced(prefill=1, decode=2, role_change_s=1.5, scaler="pd-ratio")
    assert [pool.role_change_s for pool in spec.build().deployment.pools] == [1.5, 1.5]
    assert spec.to_json()["fleet"]["role_change_s"] == 1.5
    both = [{"engines": 1}, {"engines": 1, "role": "prefill"}, {"engines": 1, "role": "decode"}]
    pools = SMALL.replaced(pools=both, role_change_s=0, scaler="pd-ratio").build().deployment.pools
    assert [pool.role_change_s for pool in pools] == [None, 0.0, 0.0]
    for words, says in (
        ({"scaler": None}, "nothing decides when; name a scaler"),
        ({"prefill": 0, "decode": 0}, "engines have no roles; give --prefill P --decode D"),
        ({"role_change_s": -1}, "a number of 0 or more"), ({"prefix_caching": "on"}, "leave out role_change_s"),
        ({"lockstep": 2}, "leave out role_change_s"), ({"prefix_store_tokens": 10}, "leave out role_change_s"),
    ):  # fmt: skip
        with pytest.raises(SpecError, match=says) as error:
            spec.replaced(**words)
        assert "\n" not in str(error.value)


def test_a_front_end_is_said_or_is_that_of_the_profile():
    front_end = FrontEnd(0.01, 1e-6, one_process=True)
    words = {"request_s": 0.01, "prompt_s_per_token": 1e-6, "one_process": True}
    said = SMALL.replaced(front_end="request_s=0.01,prompt_s_per_token=1e-6,one_process=yes")
    assert said == SMALL.replaced(front_end=words) == SMALL.replaced(front_end=front_end)
    assert said.build().front_end == front_end and SMALL.build().front_end is None
    assert said.to_json()["fleet"]["front_end"] == "request_s=0.01,prompt_s_per_token=1e-06,one_process=yes"
    device = dataclasses.replace(PROFILE, front_end=front_end)
    of_device = SMALL.replaced(device=device)
    assert of_device.build().front_end == front_end
    assert of_device.replaced(front_end="none").build().front_end is None
    assert of_device.replaced(front_end="back_s=1").build().front_end == FrontEnd(back_s=1.0)
    assert dataclasses.replace(SMALL, fleet=Fleet(front_end="back_s=1")).build().front_end == FrontEnd(back_s=1.0)
    for document in (words, {}, {"back_s": 1}):
        jsonschema.validate({"front_end": document}, schema())


@pytest.mark.parametrize("front_end", [{"request_s": -1}, {"speed": 1}, {"one_process": 1}, {"back_s": "soon"}, 3])
def test_a_front_end_that_cannot_be(front_end):
    with pytest.raises(SpecError) as error:
        SMALL.replaced(front_end=front_end)
    assert "\n" not in str(error.value)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"front_end": front_end}, schema())


def test_speculation_is_of_every_engine():
    one = Speculation(3, (0.75, 0.5, 0.25), draft_s=0.001)
    words = {"k": 3, "acceptance": [0.75, 0.5, 0.25], "draft_s": 0.001}
    said = SMALL.replaced(speculation="k=3,acceptance=0.75/0.5/0.25,draft_s=0.001")
    assert said == SMALL.replaced(speculation=words) == SMALL.replaced(speculation=one)
    assert said.build().deployment.speculation == one and SMALL.build().deployment.speculation is None
    assert said.to_json()["fleet"]["speculation"] == "k=3,acceptance=0.75/0.5/0.25,draft_s=0.001"
    assert said.replaced(speculation="none").build().deployment.speculation is None
    several = said.replaced(prefill=1, decode=2).build(seed=4)
    assert {pool.speculation for pool in several.deployment.pools} == {one}
    assert (several.draft_seed, said.replaced(noise_seed=7).build(seed=4).draft_seed, SMALL.build(4).draft_seed) == (
        4, 7, 0,
    )  # fmt: skip
    for document in (words, {"k": 1, "acceptance": 0.5, "free_verification": True}):
        jsonschema.validate({"speculation": document}, schema())


@pytest.mark.parametrize(
    "speculation",
    [{"k": 2}, {"acceptance": 0.5}, {"k": 0, "acceptance": 1}, {"k": 2, "acceptance": 1.5}, {"k": 2, "depth": 3}, 3],
)
def test_speculation_that_cannot_be(speculation):
    with pytest.raises(SpecError) as error:
        SMALL.replaced(speculation=speculation)
    assert "\n" not in str(error.value)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"speculation": speculation}, schema())


def test_prefix_stores_need_prompts_that_begin_alike():
    with pytest.raises(SpecError, match="prefix blocks"):
        SMALL.replaced(prefix_store_tokens=1000).build()


def test_names_of_fields_are_unique_and_have_help():
    fields = [name for part in PARTS.values() for name in part.__dataclass_fields__]
    assert sorted([*fields, "gain"]) == sorted(LEAVES)
    assert all(option.help.endswith(".") for _, option in LEAVES.values())
    assert len([name for name, (_, option) in LEAVES.items() if option.first]) == 9  # and --spec: the ten of --help


def test_the_page_and_the_schema_are_written_anew():
    assert json.loads((DOCS / "spec.schema.json").read_text()) == schema(), "make docs"
    page = (DOCS / "spec.md").read_text("utf-8")
    assert page.partition(BEGIN)[2].partition(END)[0].strip() == tables().strip(), "make docs"


def test_what_the_page_says_runs():
    page = (DOCS / "spec.md").read_text("utf-8")
    names: dict = {}
    exec(re.search(r"```python\n(.*?)```", page, flags=re.DOTALL)[1], names)
    assert names["result"].summary["finished"] == 200 and names["slower"].fleet.engines == 4
    first, pools = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL))
    assert ServingSpec.from_json(first) == names["spec"]
    assert servegym.ServingSpec.from_json(pools).fleet.total == 6


def test_longer_prompts_are_left_out_of_the_requests_and_of_what_the_load_is_relative_to():
    spec = ServingSpec().with_overrides({"trace": "sharegpt", "requests": 200, "load": 1.0, "max_prompt_tokens": 100})
    short, all_of_them = spec.workload(), spec.replaced(max_prompt_tokens=None).workload()
    assert short.table["prompt_tokens"].max() <= 100 < all_of_them.table["prompt_tokens"].max()
    assert short.rate_per_s > 1.2 * all_of_them.rate_per_s
    with pytest.raises(SpecError, match="max_prompt_tokens is 0; it should be a whole number of 1 or more"):
        spec.replaced(max_prompt_tokens=0)
