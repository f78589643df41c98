"""Names of what vLLM's blocks hold are those of docs/feature_rules.md, one to one with its hashes."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.engines.cached_blocks import name_of, names_by_key
from experiments.engines.prefix_parity import (
    Memory,
    first_difference,
    in_order,
    overwritten_between,
    page_with,
    plain_name,
)
from experiments.engines.vllm_driving import Drive, Step
from servegym.errors import VllmError
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.prefixes import Prompts
from servegym.simulator.records.named_blocks import NAMES_OF_A_CHUNK


def workload_of(chunk_tokens: int, *chunks: list[int]) -> Workload:
    """A request for each list of chunks."""
    sizes = {"prompt_tokens": np.full(len(chunks), 400), "output_tokens": np.ones(len(chunks), int)}
    offsets = np.cumsum([0, *map(len, chunks)])
    prompts = Prompts(chunk_tokens, offsets, np.concatenate([np.array(each, "i4") for each in chunks]))
    return Workload(Workload.from_columns({"arrival_s": np.arange(len(chunks))} | sizes).table, "", {}, prompts)


def test_a_block_is_named_by_the_chunk_in_which_it_ends_or_is_its_requests_own() -> None:
    workload = workload_of(32, [0, 1], [0, 2])
    assert [name_of(workload, 1, i, 16) for i in range(5)] == [(0, 0), (0, 1), (2, 2), (2, 3), (-2, 4)]
    assert [name_of(workload, 0, i, 64) for i in range(2)] == [(1, 0), (-1, 1)]


@given(st.integers(0, 2**31 - 2), st.integers(0, NAMES_OF_A_CHUNK - 1), st.booleans())
def test_the_simulators_names_are_read_back(number: int, i: int, own: bool) -> None:
    name = (number + 1) * NAMES_OF_A_CHUNK + i
    assert plain_name(-name if own else name) == ((-1 - number if own else number), i)


def test_hashes_that_do_not_stand_for_one_name_are_refused() -> None:
    workload = workload_of(16, [0, 1], [0, 2])
    requests = [SimpleNamespace(block_hashes=[b"a", b"b"]), SimpleNamespace(block_hashes=[b"a", b"c", b"d"])]
    assert names_by_key(requests, workload, 16) == {b"a": (0, 0), b"b": (1, 1), b"c": (2, 1), b"d": (-2, 2)}
    with pytest.raises(VllmError, match=r"block 1 of request 1 is \(2, 1\)"):
        names_by_key([requests[0], SimpleNamespace(block_hashes=[b"a", b"b"])], workload, 16)
    with pytest.raises(VllmError, match="two hashes"):
        names_by_key([requests[0], SimpleNamespace(block_hashes=[b"x"])], workload, 16)


def test_what_is_overwritten_is_told_from_the_blocks_before_and_after_in_the_order_of_the_queue() -> None:
    a, b, c, d = (n * NAMES_OF_A_CHUNK for n in range(1, 5))
    before, now = Memory([a, b, 0, c, d], [3, 2, 0], 0), Memory([0, b, a, d, 0], [4], 3)
    # Block 4 was held: it was freed in this step, and overwritten after those that were free.
    assert overwritten_between(before, now) == [(2, 0), (0, 0), (3, 0)]
    step = Step(0.0, 1.0, [], set(), 0, free=[(2, 0), None, (0, 0)], overwritten=[(2, 0), (9, 9), (0, 0), (3, 0)])
    assert in_order(step) == [(2, 0), (0, 0), (3, 0), (9, 9)]


def test_a_step_differs_where_only_the_order_of_free_blocks_or_of_what_is_lost_does() -> None:
    def step(free: list[tuple[int, int] | None], overwritten: list[tuple[int, int]]) -> Step:
        return Step(0.0, 1.0, [(0, 5)], set(), 3, {0: 0}, free, overwritten)

    a, b = (1, 0), (2, 0)
    same, turned = step([a, b, None], [a, b]), step([b, a, None], [a, b])
    late = step([a, b, None], [b, a])
    assert first_difference(Drive([same, same], []), [same, same]) is None
    assert first_difference(Drive([same, turned], []), [same, same]) == 1
    assert first_difference(Drive([late], []), [same]) == 0
    assert first_difference(Drive([same], []), [same, same]) == 1


def test_a_version_takes_its_own_place_in_the_page() -> None:
    page = "# Parity\n\nWords.\n"
    for version in ("0.33.0", "0.28.0"):
        page = page_with(page, version, f"## vLLM {version}\n\nold\n")
    page = page_with(page, "0.33.0", "## vLLM 0.33.0\n\nnew\n")
    assert page == "# Parity\n\nWords.\n\n## vLLM 0.28.0\n\nold\n\n## vLLM 0.33.0\n\nnew\n"
    assert page_with(page, "0.28.0", "## vLLM 0.28.0\n\nold\n") == page
