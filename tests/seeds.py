"""How many random scenarios and examples a test takes: a third of them, or all (`make agreement`).

Of what is done again for every policy, or served by a slow simulator in plain Python: what is wrong with the loop shows
with any of the policies, what is wrong with a policy in most of its scenarios.
"""

import os
from collections.abc import Sequence
from typing import Any

import hypothesis
import pytest

ALL = os.environ.get("SERVEGYM_SEEDS") == "all"


def seeds(count: int) -> range:
    """The first third of so many, four at least."""
    return range(count if ALL else min(count, max(4, count // 3)))


def every_case(cases: Sequence[tuple[str, dict[str, Any]]], count: int) -> pytest.MarkDecorator:
    """Policies with settings, each with so many seeds; or with every third, and those beside it with the next ones."""
    chosen = {
        f"{name}-{place}-{seed}": (name, settings, seed)
        for place, (name, settings) in enumerate(cases)
        for seed in range(count)
        if ALL or (place + seed) % 3 == 0
    }
    return pytest.mark.parametrize(("name", "settings", "seed"), chosen.values(), ids=chosen)


def examples(count: int = 25) -> hypothesis.settings:
    """Of a property that is tried with every policy: a third of so many, five at least."""
    return hypothesis.settings(max_examples=count if ALL else min(count, max(5, count // 3)))
