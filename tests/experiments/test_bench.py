"""`python -m experiments bench`: what it hands to the suite, whose own tests are in tests/experiments/benchmarks."""

import pytest

from experiments.benchmarks import suite


@pytest.mark.parametrize(
    "arguments, asked",
    [
        ([], (None, False, None, None, None, ())),
        (["--quick", "--json", "-"], ("-", True, None, None, None, ())),
        (
            ["--json", "figures.json", "--dynamo", "dynamo/bin/python", "--vidur", "vidur", "--aisimulate", "other"],
            ("figures.json", False, "dynamo/bin/python", "vidur", "other", ()),
        ),
        (["--schedulers"], (None, False, None, None, None, ("schedulers",))),
        (["--sessions"], (None, False, None, None, None, ("sessions",))),
        (["--routers", "--schedulers"], (None, False, None, None, None, ("schedulers", "routers"))),
    ],
)
def test_arguments_reach_the_suite(study, monkeypatch, arguments, asked):
    calls = []
    monkeypatch.setattr(suite, "run", lambda *given: calls.append(given) or {})
    done = study("bench", *arguments)
    assert (done.status, done.stdout, done.stderr) == (0, "", "")
    assert calls == [asked]


def test_policies_of_ones_own_are_loaded_first(study, monkeypatch, tmp_path):
    monkeypatch.setattr(suite, "run", lambda *given: {})
    done = study("bench", "--schedulers", "--load-policies", str(tmp_path / "none.py"))
    assert done.status == 2 and "there is no such file" in done.stderr


def test_a_log_says_what_is_under_way(capsys):
    measured = {"one": lambda sizes: [], "two": lambda sizes: []}
    assert suite.measure(measured, suite.Sizes(), suite.Console(stderr=True, force_terminal=False)) == []
    said = [line for line in capsys.readouterr().err.splitlines() if line]
    assert said == ["measuring: one (1 of 2) ...", "measuring: two (2 of 2) ..."]
