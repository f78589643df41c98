"""Cases of a search: their ledgers are of everything that changes a run or its score."""

import dataclasses
import json

import pytest

from servegym.baselines import registry
from servegym.evaluation.headroom.cases import Case
from servegym.evaluation.headroom.study import Headroom
from servegym.evaluation.panels.panel import load_panel
from servegym.simulator.policies import gains
from servegym.simulator.policies import policy as policies
from servegym.simulator.runs import slos


def case_of(kind: str, **words) -> Case:
    panel = load_panel({"scheduler": "headroom", "router": "session_fleet"}[kind])
    words = {"requests": 30, "trace": "azure-code"} | words
    spec = panel.spec.replaced(**words)
    one = dataclasses.replace(panel, spec=spec, seeds=1)
    return Headroom(one, ("edf",) if kind == "scheduler" else ("min-load",), kind).cases[0]


def with_default(kind: str, name: str, parameter: str, value: float) -> policies.Policy:
    """A policy that ships, with another default and the same source."""
    policy = policies.get_policy(kind, name)
    changed = [dataclasses.replace(one, default=value) if one.name == parameter else one for one in policy.parameters]
    return dataclasses.replace(policy, parameters=tuple(changed))


def differing(one: Case, other: Case) -> list[str]:
    return [key for key in one.identity if one.identity[key] != other.identity[key]]


@pytest.mark.parametrize("kind", ["scheduler", "router"])
def test_it_is_json_and_the_same_each_time(kind):
    one = case_of(kind, slo="ttft_s=2,tpot_s=0.06")
    json.dumps(one.identity, allow_nan=False)  # as the ledger writes it
    assert case_of(kind, slo="ttft_s=2,tpot_s=0.06").file == one.file
    assert "workload" in differing(one, case_of(kind, slo="ttft_s=2,tpot_s=0.05"))


def test_what_an_slo_is_changes_a_search_of_routers(monkeypatch):
    """Its score has attainment in it; that of schedulers is gain alone."""
    before = {kind: case_of(kind) for kind in ("scheduler", "router")}

    def within_slos(table, ttft_s, tpot_s, ttlt_s):
        return ttft_s <= table["ttft_slo_s"]

    monkeypatch.setattr(slos, "within_slos", within_slos)
    assert differing(before["router"], case_of("router")) == ["score"]
    assert differing(before["scheduler"], case_of("scheduler")) == []


def test_so_does_another_gain_of_a_token(monkeypatch):
    before = case_of("scheduler")
    monkeypatch.setitem(gains.FUNCTIONS, "tdg", gains.FUNCTIONS["tempo"])
    assert differing(before, case_of("scheduler")) == ["score"]


@pytest.mark.parametrize(("kind", "other", "name", "parameter", "value", "words"), [
    ("scheduler", "router", "prefix-affinity", None, 7.0, {"engines": 2, "router": "prefix-affinity"}),
    ("router", "scheduler", "slide-batching", "eta", 0.05, {"scheduler": "slide-batching"}),
    ("router", "router", "polyserve", None, 0.5, {}),
])  # fmt: skip
def test_and_another_default_of_the_other_policies_or_of_a_start(
    kind, other, name, parameter, value, words, monkeypatch
):
    before = case_of(kind, **words)
    parameter = parameter or next(
        one.name for one in registry.router(name).parameters if not one.choices and isinstance(one.default, float)
    )
    changed = with_default(other, name, parameter, value)
    monkeypatch.setitem(policies._registry, (other, name), changed)
    found = differing(before, case_of(kind, **words))
    assert "parameters" in found and set(found) <= {"parameters", "starts"}
