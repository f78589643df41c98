"""What a second worker adds: that all of a comparison is in it, and what the figures are made of."""

import pytest

from experiments.benchmarks.scenarios import Sizes
from experiments.benchmarks.workers import Taken, beside_one, compared
from servegym.cli.runners import runner_of
from servegym.evaluation.compared import COMPARED
from servegym.evaluation.comparison import Comparison
from servegym.evaluation.running import cores


def test_a_comparison_is_done_whole():
    asked = {"requests": 20, "scheduler": ["sarathi-fcfs", "edf"], "load": [0.5]}
    comparison = Comparison(COMPARED.with_overrides(asked), 2)
    taken = compared(comparison, workers=2)
    assert "workloads" in vars(comparison) and "identity" in vars(comparison)
    assert 0 < taken.before_cpu_s < taken.cpu_s


def test_figures_are_of_pairs():
    asked = []

    def work(workers: int) -> Taken:
        asked.append(workers)
        return {1: Taken(10.0, 10.0, before_cpu_s=1.0), 2: Taken(6.0, 11.0)}[workers]

    speedup, cost, possible = beside_one("it", "work", work, Sizes(repetitions=2))
    assert asked == [1, 1, 2, 1, 2]
    assert speedup.value == pytest.approx(10 / 6) and speedup.at_least == 1.8
    assert cost.value == pytest.approx(1.1)
    assert possible.value == pytest.approx(10 / (1.1 * (1.0 + 9.0 / 2)))


def test_commands_use_the_cores_there_are():
    with runner_of(None, None) as runner, runner_of(3, None) as three:
        assert (runner.jobs, three.jobs) == (cores(), 3)
