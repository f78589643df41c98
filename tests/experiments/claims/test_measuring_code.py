"""Rows are of the code that measured them, as far as it reaches, and of nothing else."""

import functools
import importlib.util
import sys

import pytest

from experiments.claims import qoserve_fig8
from experiments.claims.harness import goodput as search
from experiments.claims.harness.measuring_code import code_digest, reached_code, source_text
from experiments.claims.harness.registry import claims


@pytest.fixture
def written(tmp_path):
    """A function `measure` of a file with this text."""
    names = iter(range(10))

    def load(text):
        name = f"measuring_{next(names)}"
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("measuring", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.measure

    return load


PLAIN = 'TABLE = {"a": (1, 2)}\n\n\ndef measure(cell):\n    return TABLE["a"]\n'


@pytest.mark.parametrize(
    ("text", "is_the_same"),
    [
        ('"""Words."""\n' + PLAIN.replace("    return", '    """More words."""\n    # and why\n    return'), True),
        (PLAIN + "\n\ndef judge(rows):\n    return rows\n", True),
        (PLAIN.replace("(1, 2)", "(1, 3)"), False),
        (PLAIN.replace('TABLE["a"]', 'TABLE["a"] + ()'), False),
    ],
    ids=["words", "what it does not use", "a constant", "code"],
)
def test_words_and_what_is_not_used_do_not_count(written, text, is_the_same):
    assert (code_digest(written(PLAIN)) == code_digest(written(text))) == is_the_same


def test_arguments_that_are_bound_count(written):
    measure = written("def measure(cell, more=0):\n    return more\n")
    assert code_digest(functools.partial(measure, more=1)) != code_digest(functools.partial(measure, more=2))


def test_what_a_claim_measures_with_is_reached():
    found = reached_code(qoserve_fig8.measure)
    assert {
        "servegym.evaluation.bisection.highest_rate",
        "servegym.simulator.runs.slos.violated",
        "servegym.simulator.runs.simulation.Simulation",
        "servegym.simulator.runs.results.Result.summary",
        "experiments.claims.harness.served.begin",
    } <= set(found)
    assert found["experiments.claims.harness.goodput.goodput: PRECISION"] == repr(search.PRECISION)
    assert not any("judge" in name or "picture" in name or name.startswith("servegym.baselines") for name in found)


@pytest.mark.slow
def test_another_search_or_another_constant_of_it_gives_other_rows(monkeypatch):
    before = code_digest(qoserve_fig8.measure)
    with monkeypatch.context() as patch:
        patch.setattr(search, "PRECISION", 1.5)
        assert code_digest(qoserve_fig8.measure) != before
    assert code_digest(qoserve_fig8.measure) == before
    monkeypatch.setattr(search, "failed_counts", search.highest_rate)
    assert code_digest(qoserve_fig8.measure) != before


@pytest.mark.slow
def test_digests_do_not_depend_on_what_was_imported_before():
    """A digest is the same in a process that has done nothing else."""
    import subprocess

    code = (
        "from experiments.claims.harness.measuring_code import code_digest\n"
        "from experiments.claims import proserve_fig19 as claim\n"
        "print(code_digest(claim.serve_day))"
    )
    alone = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert alone == claims()["proserve-fig19"].measure_digest


def test_what_has_no_source_has_no_text():
    made = {}
    exec("def measure(cell):\n    return 1\n", made)
    assert source_text(made["measure"]) == ""
