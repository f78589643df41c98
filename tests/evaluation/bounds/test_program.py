"""The bound made of multipliers holds whatever the solver's tolerances."""

import numpy as np
import pytest

from servegym.evaluation.bounds.program import Program


def knapsack() -> Program:
    program = Program()
    items = [program.variable(1.0, worth=worth) for worth in (6.0, 10.0, 12.0)]
    used = program.variable(5.0)
    program.balanced([*zip(items, (1.0, 2.0, 3.0), strict=True), (used, -1.0)])
    program.at_most([(used, 1.0)], 5.0)
    return program


def test_it_is_the_optimum_of_a_program_that_is_solved():
    solved = knapsack().solve(10.0)
    assert solved.status == 0
    assert solved.objective == pytest.approx(6 + 10 + 12 * 2 / 3)
    assert solved.upper_bound == pytest.approx(solved.objective)


def test_it_holds_for_any_multipliers(monkeypatch):
    import scipy.optimize

    exact = scipy.optimize.linprog
    rng = np.random.default_rng(0)

    def worse(*arguments, **options):
        found = exact(*arguments, **options)
        for part in (found.ineqlin, found.eqlin):
            part["marginals"] = part["marginals"] + rng.normal(size=len(part["marginals"]))
        return found

    monkeypatch.setattr(scipy.optimize, "linprog", worse)
    bounds = [knapsack().solve(10.0).upper_bound for _ in range(20)]
    assert min(bounds) >= 24 - 1e-9
    assert max(bounds) > 25


def test_without_multipliers_everything_is_had(monkeypatch):
    import scipy.optimize

    class Stopped(dict):
        fun, status, message = None, 1, "time is up"

    monkeypatch.setattr(scipy.optimize, "linprog", lambda *arguments, **options: Stopped())
    solved = knapsack().solve(10.0)
    assert solved.upper_bound == 28 and solved.status == 1
