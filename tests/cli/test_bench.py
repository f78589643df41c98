"""`servegym bench`: what it hands to the suite, whose own tests are in tests/benchmarks."""

import pytest

from servegym.experiments.benchmarks import suite


@pytest.mark.parametrize(
    "arguments, asked",
    [
        ([], (None, None, False)),
        (["--quick", "--json", "-"], ("-", None, True)),
        (["--json", "figures.json", "--dynamo", "dynamo/bin/python"], ("figures.json", "dynamo/bin/python", False)),
    ],
)
def test_arguments_reach_the_suite(servegym, monkeypatch, arguments, asked):
    calls = []
    monkeypatch.setattr(suite, "run", lambda *given: calls.append(given) or {})
    done = servegym("bench", *arguments)
    assert (done.status, done.stdout, done.stderr) == (0, "", "")
    assert calls == [asked]
