"""Policies as data: parameters, settings, facts, JSON, the registry."""

import dataclasses
import json
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.baselines.registry import scheduler, scheduler_names
from servegym.errors import PolicyError
from servegym.simulator.policies import policy as policies
from servegym.simulator.policies.parameters import current_name
from servegym.simulator.policies.policy import (
    ByWord,
    Fact,
    Parameter,
    Policy,
    StateFields,
    from_json,
    get_policy,
    register,
    registered,
)
from servegym.simulator.records.signatures import router
from servegym.simulator.records.signatures import scheduler as scheduler_kernel
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.forming import linear
from tests.simulator.scenes import requests, scene
from tests.strategies import policies as drawn_policies

pytestmark = pytest.mark.nojit

every_scheduler = pytest.mark.parametrize("name", scheduler_names())


@scheduler_kernel
def first(context, ranks, limits):
    pass


@scheduler_kernel
def second(context, ranks, limits):
    pass


POLICY = Policy(
    "policy", "scheduler", "", "", first,
    parameters=(
        Parameter("whole", 3, "", 1, 8, "tokens", integer=True),
        Parameter("real", 0.5, "", -1, 1),
        Parameter("word", "b", "", choices=("a", "b", "c")),
        Parameter("fact", Fact("min_tpot_slo_s", 0.5), "", 0, 10, "s"),
    ),
)  # fmt: skip


def test_registered_schedulers():
    assert scheduler_names() == sorted(scheduler_names()) and len(scheduler_names()) >= 7
    for name in scheduler_names():
        assert scheduler(name).name == name and scheduler(name).kind == "scheduler"


@every_scheduler
def test_what_a_policy_says_of_itself(name):
    policy = scheduler(name)
    assert policy.doc.endswith(".") and policy.source
    assert len({p.name for p in policy.parameters}) == len(policy.parameters)
    for parameter in policy.parameters:
        assert parameter.doc and parameter.source
        if isinstance(parameter.default, ByWord):
            (deciding,) = [p for p in policy.parameters if p.name == parameter.default.parameter]
            assert set(parameter.default.values) == set(deciding.choices)
        for default in parameter.defaults:
            if parameter.choices:
                assert default in parameter.choices
            elif not isinstance(default, Fact):
                assert parameter.check(default, name) == default
                assert not parameter.log or parameter.low > 0
                assert math.isfinite(parameter.low) and math.isfinite(parameter.high), "a search needs bounds"


@every_scheduler
@given(data=st.data())
def test_json_and_text_name_the_same_policy(name, data):
    policy = data.draw(drawn_policies(name))
    assert from_json(json.loads(json.dumps(policy.to_json()))) == policy
    text = ",".join(f"{key}={value!r}" if isinstance(value, float) else f"{key}={value}"
                    for key, value in policy.settings.items())  # fmt: skip
    assert scheduler(f"{name}:{text}") == policy
    again = pickle.loads(pickle.dumps(policy))
    assert again == policy and again.function is policy.function


def test_settings():
    policy = POLICY.with_settings(whole="4", real=0.25).with_settings(word="c", whole=5.0)
    assert policy.settings == {"whole": 5, "real": 0.25, "word": "c"} and POLICY.settings == {}
    assert isinstance(policy.settings["whole"], int)
    facts = {"min_tpot_slo_s": 0.04}
    assert policy.values(facts.__getitem__) == {"whole": 5, "real": 0.25, "word": "c", "fact": 0.02}
    assert policy.numbers(facts.__getitem__).tolist() == [5, 0.25, 2, 0.02]
    assert POLICY.numbers(facts.__getitem__).tolist() == [3, 0.5, 1, 0.02]
    assert policy.with_settings(fact=0.3).numbers(facts.__getitem__).tolist() == [5, 0.25, 2, 0.3]


def test_a_default_that_depends_on_a_word():
    by_word = ByWord("word", {"a": 1.0, "b": Fact("min_tpot_slo_s", 0.5), "c": 3.0})
    policy = dataclasses.replace(POLICY, parameters=(*POLICY.parameters, Parameter("more", by_word, "", 0, 10)))
    facts = {"min_tpot_slo_s": 0.04}
    for settings, expected in (({}, 0.02), ({"word": "a"}, 1.0), ({"word": "c"}, 3.0), ({"word": "c", "more": 7}, 7.0)):
        made = policy.with_settings(**settings)
        assert made.values(facts.__getitem__)["more"] == expected == made.numbers(facts.__getitem__)[-1]
        assert made.settings == settings, "what is not set stays unset"
    assert policy.parameters[-1].defaults == (1.0, Fact("min_tpot_slo_s", 0.5), 3.0)


def test_labels():
    assert POLICY.label == "policy"
    assert POLICY.with_settings(real=0.25, whole=4, word="a").label == "policy:real=0.25,whole=4,word=a"
    assert str(Fact("min_tpot_slo_s", 0.65)) == "0.65 * min_tpot_slo_s"
    assert str(Fact("profiled_token_budget")) == "profiled_token_budget"


@pytest.mark.parametrize(("settings", "message"), [
    ({"whole": 0}, "policy: whole=0: should be 1 to 8 tokens"),
    ({"whole": 9}, "policy: whole=9: should be 1 to 8 tokens"),
    ({"whole": 2.5}, "policy: whole=2.5: should be a whole number"),
    ({"real": 1.5}, "policy: real=1.5: should be -1 to 1"),
    ({"real": "much"}, "policy: real=much: should be a number"),
    ({"real": None}, "policy: real=None: should be a number"),
    ({"real": math.nan}, "policy: real=nan: should be -1 to 1"),
    ({"word": "d"}, "policy: word=d: should be one of a, b, c"),
    ({"word": 1}, "policy: word=1: should be one of a, b, c"),
    ({"hole": 1}, "policy has no parameter hole; it has whole, real, word, fact"),
    ({"self": 1}, "policy has no parameter self; it has whole, real, word, fact"),
])  # fmt: skip
def test_bad_settings(settings, message):
    with pytest.raises(PolicyError) as error:
        POLICY.with_settings(**settings)
    assert str(error.value) == message


@pytest.mark.parametrize("declared, message", [
    ({"default": 1.0, "low": 5, "high": 10}, "default of a parameter: k=1.0: should be 5 to 10"),
    ({"default": math.nan}, "k=nan: should be a number"),
    ({"default": 1.5, "integer": True}, "k=1.5: should be a whole number"),
    ({"default": "c", "choices": ("a", "b")}, "k=c: should be one of a, b"),
    ({"default": ByWord("way", {"a": 1, "b": 9}), "high": 5}, "k=9: should be -inf to 5"),
    ({"default": Fact("min_tpot_slo_s"), "low": 3, "high": 1}, "parameter k: bounds from 3 to 1; low should be at"),
])  # fmt: skip
def test_a_parameter_has_a_default_that_it_takes(declared, message):
    with pytest.raises(PolicyError, match=message):
        Parameter("k", doc="", **declared)


def test_a_policy_without_parameters_says_so():
    with pytest.raises(PolicyError, match="plain has no parameter x; it has none"):
        Policy("plain", "scheduler", "", "", first).with_settings(x=1)


@pytest.mark.parametrize(("text", "message"), [
    ("edv", "unknown scheduler 'edv' .*there are: .*edf"),
    ("", "unknown scheduler ''"),
    ("edf:batch_size", "scheduler 'edf:batch_size': 'batch_size' should be key=value"),
    ("edf:batch_size=", "edf: batch_size=: should be a number"),
    ("edf:=4", "edf has no parameter ; it has max_num_batched_tokens, batch_size, budget"),
    ("edf:self=1", "edf has no parameter self"),
    ("edf:batch_size=1e9", "edf: batch_size=1e9: should be 0 to 1048576 requests"),
])  # fmt: skip
def test_bad_text(text, message):
    with pytest.raises(PolicyError, match=message):
        scheduler(text)


def test_text():
    assert scheduler("edf") == scheduler("edf:")
    assert scheduler("edf: batch_size = 4 ,max_num_batched_tokens=64").settings == {
        "batch_size": 4,
        "max_num_batched_tokens": 64,
    }
    assert scheduler("slide-batching:load=c,gamma=2").label == "slide-batching:load=c,gamma=2"


@pytest.mark.parametrize("document", [
    {},
    {"kind": "scheduler", "name": "edf"},
    {"kind": "scheduler", "name": "nobody", "settings": {}},
    {"kind": "oracle", "name": "edf", "settings": {}},
    {"kind": "scheduler", "name": "edf", "settings": {"batch_size": -1}},
])  # fmt: skip
def test_bad_json(document):
    with pytest.raises(PolicyError):
        from_json(document)


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(policies, "_registry", dict(policies._registry))


@router
def routes(context, r, route):
    route.engine = 0


def test_registering(own_registry):
    register(POLICY)
    assert "policy" in policies.policy_names("scheduler")
    assert get_policy("scheduler", "policy:whole=4").settings == {"whole": 4}
    register(dataclasses.replace(POLICY, doc="the same function again: a module that was loaded anew"))
    with pytest.raises(PolicyError, match="there is already a scheduler named policy"):
        register(dataclasses.replace(POLICY, function=second))
    router = register(dataclasses.replace(POLICY, kind="router", function=routes))  # another kind, another name
    assert get_policy("router", "policy") == router


@pytest.mark.parametrize(("changes", "message"), [
    ({"kind": "king"}, "policy policy has kind 'king'; it should be one of scheduler, router, scaler"),
    ({"function": routes}, "its function routes is decorated as something else; it should be decorated with @sched"),
    ({"kind": "router"}, r"test_policies.py, line [0-9]+: its function .* should be decorated with @router"),
    ({"function": routes.py_func}, r"test_policies.py, line [0-9]+: its function routes is not decorated; it should"),
    ({"victims": None}, "its victims None is not decorated; it should be decorated with @victims"),
])  # fmt: skip
def test_what_is_no_policy(changes, message):
    with pytest.raises(PolicyError, match=message):
        dataclasses.replace(POLICY, **changes)


# Facts


def test_facts_of_a_scenario():
    workload = requests(prompt_tokens=[4, 12], tpot_slo_s=[50.0, 99.0])
    assert scene(workload).fact("min_tpot_slo_s") == 50
    with pytest.raises(KeyError):
        scene(workload).fact("mean_joy")


@pytest.mark.parametrize(
    ("tpot_slo_s", "budget"),
    [(50, 48), (49, 48), (48.5, 32), (3, 16)],  # 1 + 48 <= 49 < 1 + 64; at least 16
)
def test_the_profiled_token_budget(tpot_slo_s, budget):
    workload = requests(prompt_tokens=[4, 12], tpot_slo_s=[tpot_slo_s, 99.0])
    scenario = scene(workload, "sarathi-fcfs")
    assert scenario.fact("profiled_token_budget") == budget
    assert Simulation(scenario).arrays.parameters[0, 0] == budget
    assert Simulation(scene(workload, "sarathi-fcfs:max_num_batched_tokens=7")).arrays.parameters[0, 0] == 7


def test_the_profiled_token_budget_has_half_the_mean_prompt_cached():
    # Mean prompt 8, 4 cached: 1 + 32 + 0.25 x 32 x 4 = 65 <= 70 < 1 + 48 x 2.
    model = linear(b_p=0.25, c_p=1, b_d=1, t_c=1)
    scenario = scene(requests(prompt_tokens=[4, 12], tpot_slo_s=70.0), "sarathi-fcfs")
    scenario = dataclasses.replace(scenario, deployment=dataclasses.replace(scenario.deployment, estimator=model))
    assert scenario.fact("profiled_token_budget") == 32


def test_earlier_names_of_parameters_are_understood_with_a_warning():
    with pytest.warns(DeprecationWarning, match="token_budget is now called max_num_batched_tokens"):
        assert scheduler("edf:token_budget=64").settings == {"max_num_batched_tokens": 64}
    with pytest.warns(DeprecationWarning, match="max_sequences is now called max_num_seqs"):
        assert scheduler("vllm-v1").with_settings(max_sequences=3).settings == {"max_num_seqs": 3}
    assert current_name("token_budget", {"token_budget"}) == "token_budget"  # a policy of one's own may have one


def test_policies_that_ship_use_what_they_declare():
    """They are not checked when they are loaded, which would take half a second."""
    assert scheduler_names()
    for policy in registered().values():
        policy.check_uses()


def test_a_scenario_checks_what_its_policies_use():
    declared = scheduler("weighted-vtc")
    undeclared = dataclasses.replace(declared, state=StateFields())
    assert scene(requests(prompt_tokens=[2]), declared)
    with pytest.raises(PolicyError, match=r"scheduler weighted-vtc uses state\.\w+ \(.*\), which it has not declared"):
        scene(requests(prompt_tokens=[2]), undeclared)
