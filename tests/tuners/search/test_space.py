"""Search spaces: read off what policies declare."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegym.baselines import registry
from servegym.baselines.relations import relations_of
from servegym.errors import SearchError
from servegym.simulator.policies.policy import Parameter
from servegym.tuners.search.choosing import Range, build_space, searched_by_default

SLIDE, GO = registry.scheduler("slide-batching"), registry.router("gorouting")
BOTH = {"scheduler": SLIDE, "router": GO}
SHARES = st.floats(0, 1)


def fact(name: str) -> float:
    return {"min_tpot_slo_s": 0.05, "profiled_token_budget": 512.0, "step_tokens": 128.0}[name]


def facts(policies):
    return dict.fromkeys(policies, fact)


def test_the_papers_parameters_are_searched_by_default():
    assert searched_by_default(SLIDE) == ["gamma", "eta"]
    assert searched_by_default(GO) == ["alpha", "lambda", "mu", "eta"]
    assert searched_by_default(registry.scheduler("edf")) == [
        "max_num_batched_tokens",
        "batch_size",
    ]  # none has a source
    assert searched_by_default(SLIDE.with_settings(gamma=2)) == ["eta"]  # what is set is held


@pytest.mark.parametrize("kind", ["scheduler", "router"])
def test_every_policy_with_a_number_has_a_space_that_holds_its_defaults(kind):
    names = registry.scheduler_names() if kind == "scheduler" else registry.router_names()
    for name in names:
        policies = {kind: getattr(registry, kind)(name)}
        if not searched_by_default(policies[kind]):
            with pytest.raises(SearchError, match="nothing to search"):
                build_space(policies)
            continue
        space = build_space(policies)
        defaults = space.defaults(facts(policies))
        own = policies[kind].values(fact)
        settings = space.settings(defaults)[kind]
        assert settings == {parameter: pytest.approx(own[parameter]) for parameter in settings}
        for variable in space.variables:
            for level in variable.levels(3):  # all ends of the range are values that the policy takes
                space.policies_with(space.settings({**defaults, variable.name: level}))


def test_the_same_quantity_in_two_policies_is_one_variable():
    space = build_space(BOTH, {"gamma": Range(), "eta": Range()})
    assert space.names == ["scheduler.gamma", "eta"]
    settings = space.settings({"scheduler.gamma": 2.0, "eta": 0.03})
    assert settings == {"scheduler": {"gamma": 2.0, "eta": 0.03}, "router": {"eta": 0.03}}


def test_one_policy_alone_is_named_by_its_role():
    space = build_space(BOTH, {"scheduler.eta": Range(), "router.eta": Range(0.01, 0.1)})
    assert space.names == ["scheduler.eta", "router.eta"]
    assert (space.variables[1].low, space.variables[1].high) == (0.01, 0.1)
    other = build_space({"scheduler": SLIDE.with_settings(eta=0.02), "router": GO}, {"eta": Range()})
    assert other.names == ["scheduler.eta", "router.eta"]  # they begin with different values, so they are two


def test_two_pools_have_their_parameters_together_or_each_its_own():
    pools = {"scheduler": SLIDE, "decode_scheduler": SLIDE}
    assert build_space(pools, {"gamma": Range()}).names == ["gamma"]
    apart = build_space(pools, {"scheduler.gamma": Range(), "decode_scheduler.gamma": Range()})
    assert apart.settings({"scheduler.gamma": 1.0, "decode_scheduler.gamma": 3.0}) == {
        "scheduler": {"gamma": 1.0},
        "decode_scheduler": {"gamma": 3.0},
    }


@pytest.mark.parametrize("name", ["token_budget", "scheduler.token_budget"])
def test_parameters_may_be_called_by_their_earlier_names(name):
    policies = {"scheduler": registry.scheduler("edf")}
    with pytest.warns(DeprecationWarning, match="token_budget is now called max_num_batched_tokens"):
        assert build_space(policies, {name: Range(8, 64)}).names == ["scheduler.max_num_batched_tokens"]


def test_parameters_are_tied_where_one_says_so():
    sarathi, polyserve = registry.scheduler("sarathi-fcfs"), registry.router("polyserve")
    policies = {"scheduler": sarathi, "router": polyserve}
    assert build_space(policies, {"max_num_batched_tokens": Range()}).names == [
        "scheduler.max_num_batched_tokens",
        "router.max_num_batched_tokens",
    ]
    tied = build_space(
        policies, {"budget": Range(64, 4096, tie=("scheduler.max_num_batched_tokens", "router.max_num_batched_tokens"))}
    )
    assert tied.settings({"budget": 100}) == {
        "scheduler": {"max_num_batched_tokens": 100},
        "router": {"max_num_batched_tokens": 100},
    }


@given(SHARES, SHARES, SHARES)
def test_mu_is_below_lambda_whatever_is_drawn(alpha, at, share):
    space = build_space({"router": GO}, {"alpha": Range(), "lambda": Range(), "mu": Range()})
    low_high = {variable.name: (variable.low, variable.high) for variable in space.variables}
    drawn = {
        name: low + part * (high - low)
        for (name, (low, high)), part in zip(low_high.items(), (alpha, at, share), strict=True)
    }
    found = space.settings(drawn)["router"]
    assert found["mu"] < found["lambda"]
    GO.with_settings(**found)  # each within its own bounds too


def test_a_relation_with_a_number_that_is_held_bounds_the_other():
    assert [(lower, upper) for lower, upper, _ in relations_of(GO)] == [("mu", "lambda")]
    mu = build_space({"router": GO}, {"mu": Range()}).variables[0]
    assert (mu.name, mu.low) == ("router.mu", 0) and 0.79 < mu.high < 0.8
    upper = build_space({"router": GO.with_settings(mu=0.5)}, {"lambda": Range()}).variables[0]
    assert 0.5 < upper.low < 0.51
    with pytest.raises(SearchError, match="leaves nothing to search"):
        build_space({"router": GO}, {"mu": Range(0.85, 0.9)})


def test_changing_one_variable_leaves_the_others():
    space = build_space(BOTH)
    start = space.settings(space.defaults(facts(BOTH)))
    by_name = {variable.name: variable for variable in space.variables}
    changed = space.changed(start, by_name["scheduler.gamma"], 3.0)
    assert changed == {**start, "scheduler": {**start["scheduler"], "gamma": 3.0}}
    moved = space.changed(start, by_name["router.lambda"], 0.4)["router"]
    assert (moved["lambda"], moved["mu"]) == (0.4, 0.05)  # at the same share below it
    assert space.changed(start, by_name["scheduler.gamma"], 1.0) == start


@pytest.mark.parametrize(("tune", "problem"), [
    ({"gama": Range()}, "no policy has a parameter gama; scheduler slide-batching has gamma, eta"),
    ({"scaler.x": Range()}, "there is no scaler in this search; there are scheduler, router"),
    ({"router.gamma": Range()}, "router.gamma: router gorouting has alpha"),
    ({"gamma": Range(0, 3)}, "scheduler.gamma: 0 to 3; it should be a range within 0.1 to 10"),
    ({"gamma": Range(3, 3)}, "3 to 3; it should be a range"),
    ({"gamma": Range(float("-inf"), 3)}, "it should be a range within|has no end"),
    ({"alpha": Range(0, 1, log=True)}, "on a logarithmic scale it should begin above 0"),
    ({"max_num_batched_tokens": Range(1.5, 3)}, "it should begin and end with whole numbers"),
    ({"gamma": Range(choices=("a",))}, "is a number; give it low and high"),
    ({"load": Range(1, 2)}, "it has no low and high"),
    ({"load": Range(choices=("x",))}, "'x'; it should be of a, c, p"),
    ({"seed": Range()}, "a seed is not searched"),
    ({"eta": Range(), "scheduler.eta": Range()}, "scheduler.eta is named twice"),
    ({"both": Range(tie=("scheduler.gamma", "router.eta"))}, "are not the same quantity"),
    ({"both": Range(tie=("router.mu", "router.alpha")), "lambda": Range()}, "it cannot be tied"),
])  # fmt: skip
def test_what_cannot_be_searched_is_refused(tune, problem):
    with pytest.raises(SearchError, match=problem):
        build_space(BOTH, tune)


def test_a_parameter_without_an_end_is_refused():
    import dataclasses

    endless = dataclasses.replace(SLIDE, parameters=(*SLIDE.parameters, Parameter("slack", 1.0, "of mine", low=0)))
    with pytest.raises(SearchError, match=r"scheduler\.slack has no end: 0 to inf; give it a low and a high"):
        build_space({"scheduler": endless}, {"slack": Range()})
    assert build_space({"scheduler": endless}, {"slack": Range(high=5)}).variables[0].high == 5


def test_a_range_without_the_default_is_refused():
    with pytest.raises(SearchError, match=r"scheduler\.gamma: its default 1 is outside of the searched range, 2 to 3"):
        build_space({"scheduler": SLIDE}, {"gamma": Range(2, 3)}).defaults({"scheduler": fact})
    with pytest.raises(SearchError, match=r"scheduler\.load: its default a is outside of the searched range, c, p"):
        build_space({"scheduler": SLIDE}, {"load": Range(choices=("c", "p"))}).defaults({"scheduler": fact})
