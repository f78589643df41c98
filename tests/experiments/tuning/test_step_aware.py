"""What the page of step-aware batches says of its hypotheses."""

import itertools
from collections.abc import Callable

import pandas as pd
import pytest

from experiments.tuning.step_aware import A100, EARLY, LOADS, POLICIES, STEPPED, answers, by_device, by_load, page


def rows(more: Callable[[str, float, str], float], devices: tuple[str, ...] = (A100, "other")) -> pd.DataFrame:
    """Runs on three seeds; both figures of a policy are 0.5 + more(policy, load, device), and differ by seed."""
    found = []
    for device, load, seed, policy in itertools.product(devices, LOADS, (1, 2, 3), POLICIES):
        figure = 0.5 + more(policy, load, device) * (1 + 0.01 * seed) + 0.01 * seed
        found.append({"family": "azure-conv", "device": device, "load": load, "seed": seed, "candidate": policy,
                      "tdg_ratio": figure, "slo_attainment": figure, "score": figure, "ttft_p99_s": 1.0,
                      "starved": 0.0})  # fmt: skip
    return pd.DataFrame(found)


def better_with_steps(policy: str, load: float, device: str) -> float:
    return 0.1 if "steps=device" in policy else 0.0


def test_all_hold_where_steps_are_better_everywhere() -> None:
    said = answers(rows(better_with_steps), rows(better_with_steps))
    assert all(line.endswith("holds.") for line in said if "Decidedly" not in line)
    assert "- 2. Decidedly lower on held-out traces: nowhere." in said


def test_a_device_on_which_steps_are_worse_is_named() -> None:
    held_out = rows(lambda policy, load, device: (0.1 if device == A100 else -0.05) * ("steps=device" in policy))
    said = answers(rows(better_with_steps), held_out)
    assert f"- 2. Decidedly lower on held-out traces: {', '.join(f'{name} on other' for name in STEPPED)}." in said


def test_what_is_worse_or_no_other_fails_and_what_goes_both_ways_is_undecided() -> None:
    worse = rows(lambda policy, load, device: -0.1 if "steps=device" in policy else 0.0)
    said = answers(worse, worse)
    assert sum(line.endswith("fails.") for line in said) == len(said) - 1
    same = rows(lambda *_: 0.0)
    assert sum(line.endswith("fails.") for line in answers(same, same)) == len(said) - 1
    both_ways = same.copy()
    stepped = both_ways["candidate"].str.contains("steps=device")
    for column in ("score", "tdg_ratio", "slo_attainment"):
        both_ways[column] += stepped * 0.1 * (both_ways["seed"] - 2)
    said = answers(both_ways, both_ways)
    assert sum(line.endswith("undecided.") for line in said) == len(said) - 1


def test_tables_have_a_row_a_device_and_a_policy() -> None:
    found = rows(better_with_steps)
    assert by_device(found)[2].startswith(f"| {A100} | +0.1020 ± ")
    assert [line.split(" | ")[0] for line in by_load(found)[2 : 2 + len(POLICIES)]] == [
        f"| `{name}`" for name in POLICIES
    ]
    assert EARLY in page(found, found, 3, 1000)


@pytest.mark.parametrize("name", STEPPED)
def test_each_scheduler_takes_the_setting(name: str) -> None:
    from servegym.baselines.registry import scheduler

    assert scheduler(STEPPED[name]).chosen()["steps"] == "device"
