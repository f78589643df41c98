"""The schedulers of docs/systems/flowprefill.md, "Baselines"; cases worked by hand, set in scenes.py."""

from .scenes import formed, state
from .schedulers.distserve import DistServe, DistServeChunks, DistServeChunks8K


def test_whole_prompts_in_order_of_arrival():
    queue = [state(3, 1, 3), state(4, arrival_s=1.0), state(5, arrival_s=2.0), state(1, arrival_s=3.0)]
    assert formed(DistServe(9), *queue)[0] == [(1, 4), (2, 5)]
    queue = [state(3, 1, 3), state(4, arrival_s=1.0), state(6, arrival_s=2.0), state(1, arrival_s=3.0)]
    assert formed(DistServe(9), *queue)[0] == [(1, 4)]  # the one that does not fit is not passed over
    assert formed(DistServe(99, prefill_batch_size=1), *queue)[0] == [(1, 4)]


def test_decodes_alone_have_their_own_number():
    assert len(formed(DistServe(decode_batch_size=2), *[state(3, 1, 3) for _ in range(3)])[0]) == 2


def test_chunks_by_deadline():
    queue = [state(9, ttft_slo_s=20), state(9, ttft_slo_s=10), state(3, 1, 3, ttft_slo_s=500)]
    assert formed(DistServeChunks(12), *queue)[0] == [(2, 1), (1, 9), (0, 2)]


def test_defaults():
    kinds = DistServe, DistServeChunks, DistServeChunks8K
    assert [kind().limits([], 0.0).max_num_batched_tokens for kind in kinds] == [
        8192, 2048, 8192
    ]  # fmt: skip
