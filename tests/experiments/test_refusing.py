"""What the page of refusing says of its hypotheses, and that shares are of all requests."""

import numpy as np

from experiments import refusing
from experiments.refusing import OVERLOAD, SERVED, answers, figures_of, routers, rows_of
from servegym.baselines.registry import router
from tests.simulator.test_refusing import ROUTER
from tests.simulator.test_sessions import served, workload_of


def outcomes(tdg: float, attainment: float) -> dict[str, np.ndarray]:
    """What refusing has more than each other router, on three seeds."""
    other = np.tile([0.5, 0.3, 0.4, 16.0, 0.1, 0.0], (3, 1))
    other[:, :2] += [[0.0, 0.0], [0.02, 0.03], [-0.02, 0.01]]
    plain, ours, affinity, mooncake = (policy.label for policy in routers(0.3))
    more = np.array([tdg, attainment, 0.0, -9.0, -0.1, 0.2])
    return {plain: other, ours: other + more, affinity: other, mooncake: other}


def test_verdicts() -> None:
    text = answers({SERVED: outcomes(-0.001, 0.01), OVERLOAD: outcomes(0.1, 0.15)}, 0.3).splitlines()
    assert text[0] == f"- 1. {OVERLOAD}: attainment +0.150: fails; TDG +0.100: holds."
    assert text[1] == f"- 2. {SERVED}: attainment +0.010: holds; TDG -0.001: holds."
    beside = f"- 3. {OVERLOAD}, beside `prefix-affinity:refuse=1`: attainment +0.150: holds, TDG"
    assert text[2].startswith(beside)
    assert answers({SERVED: outcomes(-0.006, 0.0)}, 0.3).endswith("TDG -0.006: fails.")


def test_a_row_has_all_figures() -> None:
    row = rows_of(outcomes(0.1, 0.3)).splitlines()[-4]
    assert row.startswith("| `predicted-cost` | 0.500 ± 0.050 | 0.313 ± 0.038 |") and row.count("|") == 8


def test_turns_after_a_refused_one_are_requests_that_were_refused() -> None:
    scenario = served(workload_of([0] * 3, [-1, 0, 1], prompt_tokens=[4, 7, 4]), engines=2).scenario
    policies = (ROUTER, router("min-load"))
    refused, plain = (figures_of(policy, scenario) for policy in policies)
    assert refused[refusing.REFUSED] == 2 / 3 and plain[refusing.REFUSED] == 0 == refused[refusing.STARVED]
