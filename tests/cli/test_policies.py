"""`servegym policies`."""

import pytest

from servegym.baselines.registry import registered, shipped
from servegym.simulator.policies.parameters import ByWord, Fact, Parameter


def test_all_are_listed(servegym, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = servegym("policies")
    lines = done.stdout.splitlines()
    assert done.status == 0 and max(map(len, lines)) <= 80
    names = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
    assert names[:-1] == [policy.name for policy in registered()]
    assert all(f"learned:{name}" in done.stdout for name in shipped())
    document = servegym("policies", "--json", "-").document
    assert [(one["kind"], one["name"]) for one in document["policies"]] == [
        (one.kind, one.name) for one in registered()
    ]


def test_the_parameters_of_one_in_each_kind(servegym):
    done = servegym("policies", "polyserve")
    heads = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert heads == ["Scheduler polyserve", "Router polyserve", "Scaler polyserve"]
    assert "memory_reserve          0.05 (0 to 0.9): share of KV memory left free" in done.stdout
    (one,) = servegym("policies", "slide-batching", "--json", "-").document["policies"]
    gamma = next(row for row in one["parameters"] if row["name"] == "gamma")
    assert gamma["default"] and gamma["range"] and gamma["meaning"]


OWN = """
from servegym.policy import Parameter, Parameters, Policy, register, score

P = Parameters(Parameter("patience", 2.0, "how long a request may wait", 0, 9, "s"))


@score(P)
def patient(request, engine, now_s, estimates, p):
    return request.arrival_s + p.patience


register(Policy("patient", "scheduler", "Patient.", "ours", patient, parameters=P))
"""


def test_the_parameters_of_a_policy_of_ones_own(servegym, tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    done = servegym("policies", "patient", "--load-policies", "mine.py")
    assert "patience  2 s (0 to 9): how long a request may wait" in done.stdout


def test_an_unknown_name(servegym):
    assert "did you mean 'polyserve'" in servegym("policies", "polyserv").refusal


@pytest.mark.parametrize(("default", "text"), [
    (0.5, "0.5"), (1e8, "1e+08"), ("fcfs", "fcfs"), (Fact("step_tokens", 2), "2 * step_tokens"),
    (ByWord("budget", {"fixed": 1, "slack": Fact("step_tokens")}), "budget=fixed: 1, budget=slack: step_tokens"),
])  # fmt: skip
def test_defaults_as_text(default, text):
    from servegym.cli.policies import default_text

    choices = (default,) if isinstance(default, str) else ()
    assert default_text(Parameter("x", default, "", choices=choices)) == text
