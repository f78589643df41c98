"""Two fake engines, shared by the tests of a module."""

from collections.abc import Iterator

import pytest

from tests.adapters.routing.fakes import BASE, FakeEngine


@pytest.fixture(scope="module")
def shared_engines() -> Iterator[list[FakeEngine]]:
    engines = [FakeEngine(), FakeEngine()]
    yield engines
    for engine in engines:
        engine.stop()


@pytest.fixture
def engines(shared_engines: list[FakeEngine]) -> list[FakeEngine]:
    """Both well, and nothing noted yet."""
    for engine in shared_engines:
        engine.mood = "well"
        engine.bodies.clear()
        engine.headers.clear()
        engine.cancelled = 0
        engine.ids, engine.cards, engine.metrics = None, BASE, ""
        engine.keys.clear()
    return shared_engines
