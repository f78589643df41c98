"""How many random scenarios and examples a test takes: a third of them, or all (`make agreement`).

Of what is done again for every policy, or served by a slow simulator in plain Python: what is wrong with the loop shows
with any of the policies, what is wrong with a policy in most of its scenarios. Of these `make test` takes a few and
leaves the others, which are marked slow, to `make test-all`.
"""

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

ALL = os.environ.get("SERVEGYM_SEEDS") == "all"


def slow_but(fast: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """The values of a parametrised test: those that are not among `fast` marked slow."""
    return [pytest.param(value, marks=() if value in fast else pytest.mark.slow) for value in values]


def seeds(count: int) -> list[Any]:
    """The first third of so many, four at least; all but two are slow."""
    return slow_but((0, 1), range(count if ALL else min(count, max(4, count // 3))))


def cases_and_seeds(cases: Sequence[tuple[str, dict[str, Any]]], count: int) -> list[Any]:
    """Policies with settings, each with so many seeds; or with every third, and those beside it with the next ones.

    All but the first of a policy are slow.
    """
    chosen, names = [], set()
    for place, (name, settings) in enumerate(cases):
        for seed in range(count):
            if ALL or (place + seed) % 3 == 0:
                marks = [pytest.mark.slow] if name in names else []
                names.add(name)
                chosen.append(pytest.param(name, settings, seed, marks=marks, id=f"{name}-{place}-{seed}"))
    return chosen


def every_case(cases: Sequence[tuple[str, dict[str, Any]]], count: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("name", "settings", "seed"), cases_and_seeds(cases, count))


def examples(count: int = 25) -> hypothesis.settings:
    """Of a property that is tried with every policy: a third of so many, five at least."""
    return hypothesis.settings(max_examples=count if ALL else min(count, max(5, count // 3)))


def drawn(count: int = 25, slow: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a test a property of what it draws from `data`, with so many `examples`; slow: mark it so."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        test = examples(count)(hypothesis.given(data=st.data())(test))
        return pytest.mark.slow(test) if slow else test

    return decorate
