"""What the meter of vLLM's engine works out by itself; what needs vLLM is in test_with_vllm.py."""

from hypothesis import given
from hypothesis import strategies as st

from servegym.adapters.profiling.design import Batch, Prefill
from servegym.adapters.profiling.vllm_engine import fewer, prompts_of


def test_a_repeat_has_fewer_tokens_in_its_first_chunk_a_fiftieth_of_it_at_most():
    batch = Batch((Prefill(200, 64), Prefill(90)), (5, 7))
    assert [fewer(batch, repeat).prefills[0] for repeat in range(6)] == [
        Prefill(tokens, 64) for tokens in (200, 199, 198, 197, 196, 196)
    ]
    assert fewer(batch, 3).prefills[1:] == batch.prefills[1:] and fewer(batch, 3).decodes == batch.decodes
    assert fewer(Batch((Prefill(49),)), 5) == Batch((Prefill(49),))
    assert fewer(Batch(decodes=(5,)), 5) == Batch(decodes=(5,))


def test_prompts_by_hand():
    """40 tokens take 5 steps of 8, in which the request before emits 5: with a prompt of 15 it comes to 20. These 55
    take 7 steps: the first would be past 4 by then, and is as short as a prompt can be."""
    assert prompts_of([4, 20, 40], 8) == [(1, 7), (15, 5), (40, 0)]


@given(contexts=st.lists(st.integers(1, 60), min_size=1, max_size=6), room=st.integers(1, 40))
def test_contexts_are_as_wanted_when_the_last_prompt_is_prefilled(contexts, room):
    """By an engine that prefills in order, `room` tokens a step, beside a token of each that decodes."""
    prompts = prompts_of(contexts, room)
    left, reached = [prompt for prompt, _ in prompts], [0] * len(prompts)
    while any(left):
        budget = room
        for i in range(len(prompts)):
            if left[i] == 0:
                reached[i] += 1
                continue
            chunk = min(left[i], budget)
            left[i], reached[i], budget = left[i] - chunk, reached[i] + chunk, budget - chunk
    for (prompt, before), wanted, context in zip(prompts, contexts, reached, strict=True):
        assert prompt + before == wanted or prompt == 1
        assert prompt + before - 1 <= context <= prompt + before  # a step may prefill parts of two
