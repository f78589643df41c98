"""Router lora-affinity on paper (docs/systems/routers.md)."""

import pytest

from servegym.simulator.features.adapters import Adapters
from servegym.simulator.fleet.incidents import Incident
from tests.baselines.router_cases import asked, engine, engines_of_adapters, waits

pytestmark = pytest.mark.nojit


def sent(
    adapters: list[int], max_loras: int, settings: str = "", gap_s: float = 100.0, incidents: tuple[Incident, ...] = ()
) -> list[int]:
    """Where requests with these adapters go, of two engines that are idle when each comes."""
    return engines_of_adapters("lora-affinity" + settings, adapters, Adapters(max_loras, 0.0, 0.0), gap_s, incidents)


def test_an_adapter_goes_where_it_is() -> None:
    # 1 and 2: room at both, so by turns. 3: room at none, a tie, to the one that was sent one longest ago: the first,
    # which gives 1 up. Then 1 finds neither: the second was sent one longer ago.
    assert sent([1, 2, 1, 2, 2, 3, 1], max_loras=1) == [0, 1, 0, 1, 1, 0, 1]


def test_room_is_worth_less_than_the_adapter_and_more_than_none() -> None:
    assert sent([1, 1, 1, 2, 2], max_loras=2) == [0, 0, 0, 1, 1]  # 2: 0.8 at both
    # 1 and 2 at the first, 3 and 4 at the second; 5 goes to the one that was sent one longest ago, and 3 is given up.
    assert sent([1, 3, 2, 4, 1, 5, 1, 2], max_loras=2) == [0, 1, 0, 1, 0, 1, 0, 0]


def test_the_model_itself_goes_by_load() -> None:
    assert sent([0, 0, 0, 0], max_loras=1) == [0, 1, 0, 1]


def test_a_long_queue_outweighs_it() -> None:
    # All at once: the first engine's queue grows with each request, and 1 - 0.8 is less than a queue of one.
    assert sent([1, 1, 1, 1], max_loras=1, gap_s=0.0) == [0, 1, 0, 1]
    assert sent([1, 1, 1, 1], max_loras=1, settings=":queue_weight=0.1,kv_weight=0", gap_s=0.0) == [0, 0, 0, 0]


def test_a_failed_engine_has_none() -> None:
    incidents = (Incident(150.0, 0, "fail"), Incident(160.0, 0, "return"))
    # 1 at the first, 2 at the second; then 2 has its engine, and 1, lost with the first, finds room there.
    assert sent([1, 2, 2, 1], max_loras=1, incidents=incidents) == [0, 1, 1, 0]


def test_queues_and_free_memory() -> None:
    busy, full = engine(waits(50), waits(50)), engine(free_blocks=1000)
    assert asked("lora-affinity", waits(1), busy, engine()) == 1
    assert asked("lora-affinity", waits(1), full, engine()) == 1
    # 0 + 1 against 1 + 0.2 with queues of 2 and 0; the queue at weight 0.1: 1 against 0.1 + 0.2.
    assert asked("lora-affinity", waits(1), busy, full) == 1
    assert asked("lora-affinity:queue_weight=0.1", waits(1), busy, full) == 0
