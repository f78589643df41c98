"""LoRA adapters, worked by hand: each case with its working (scenes.py has what they are set in)."""

from collections.abc import Callable

from .adapters import Adapters
from .engines import Engine
from .requests import Request
from .scenes import by_place, formed, state


def at_most(max_loras: int) -> Callable[[Engine], None]:
    def set_adapters(engine: Engine) -> None:
        engine.adapters = Adapters(max_loras, max_loras, 0.0, 0.0)

    return set_adapters


def of(adapter: int, *tokens: int) -> Request:
    return state(*tokens, adapter=adapter)


def test_a_request_whose_adapter_is_one_too_many_is_passed_over():
    queue = [of(1, 3), of(2, 3), of(3, 3), of(2, 4), of(0, 5)]
    assert formed(by_place(), *queue, before=at_most(2))[0] == [(0, 3), (1, 3), (3, 4), (4, 5)]
    assert formed(by_place(), *queue, before=at_most(1))[0] == [(0, 3), (4, 5)]
    assert formed(by_place(), *queue, before=at_most(3))[0] == [(0, 3), (1, 3), (2, 3), (3, 4), (4, 5)]


def test_a_running_one_too():
    # It keeps its memory, and others are not closed out.
    queue = [of(1, 3), of(2, 3, 1, 3), of(1, 4)]
    assert formed(by_place(), *queue, before=at_most(1))[0] == [(0, 3), (2, 4)]


def test_what_ranks_first_runs_alone_where_nothing_fits_whatever_its_adapter():
    assert formed(by_place(whole_prompts=True, max_num_batched_tokens=2), of(7, 3), before=at_most(1))[0] == [(0, 3)]


def test_adapters_of_a_batch_are_not_given_up_for_each_other():
    one = Adapters(2, 2, 8.0, 2.0)
    assert one.use([1, 2]) == 20.0 and one.in_device == [1, 2]
    assert one.use([3, 1]) == 10.0 and one.in_device == [1, 3]  # 2 is given up, though used later than 1 before
    assert one.use([0, 3]) == 0.0 and (one.loads, one.activations) == (3, 3)
