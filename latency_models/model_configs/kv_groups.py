"""KV memory in blocks, by kinds of layers, as vLLM groups them (vllm/v1/core/kv_cache_utils.py).

Layers of one kind share a table of blocks. A block has the same size in bytes for all kinds, and contains a page for
each layer of a group; so groups have the same number of layers, and a block has more tokens of layers that keep less of
each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from servegym.errors import ProfileError
from servegym.latency_models.model_configs.kinds import Attention, Latent, State
from servegym.latency_models.model_configs.reading import Architecture
from servegym.simulator.memory.kv_groups import KvCacheGroup

BLOCK_TOKENS = 16
PADDED = 1.5  # groups are padded, not split, if no kind has more layers than this factor times the rarest kind


@dataclass(frozen=True)
class Kept:
    """A layer's memory of a request on one device. token_bytes: for a token. window: only the last tokens are kept; 0:
    all are. state_bytes: of a state of fixed size, without tokens. local: windows begin at multiples of their length.
    checkpoints: states that vLLM also writes inside a chunk.
    """

    token_bytes: int = 0
    window: int = 0
    state_bytes: int = 0
    local: bool = False
    checkpoints: bool = False


@dataclass(frozen=True)
class Group:
    """A KV cache group. layers: number of layers of one kind, with one table of blocks. block_tokens: tokens of a
    block; of states only with prefix caching."""

    kept: Kept
    layers: int
    block_tokens: int

    def blocks(self, tokens: int, chunk: int = 1) -> int:
        """Return the most blocks that a request of `tokens` tokens holds while it computes `chunk` of them at once."""
        if self.kept.state_bytes:
            return 1
        if not self.kept.window:
            return -(-tokens // self.block_tokens)
        if self.kept.local:
            return -(-min(self.kept.window + chunk, tokens) // self.block_tokens)
        held = min(self.kept.window - 1 + chunk, tokens)
        whole = -(-tokens // self.block_tokens)
        return min(whole, -(-held // self.block_tokens) + 1)  # a window may begin inside a block


@dataclass(frozen=True)
class Groups:
    """The KV cache groups of a model. page_bytes: of a block in one layer. blocks: number that fits the KV memory."""

    groups: tuple[Group, ...]
    page_bytes: int
    blocks: int

    def in_profile(self, of_request: int, step_tokens: int) -> dict[str, Any]:
        """Make the blocks and groups of `kv` of a profile. block_tokens: mean tokens of a block for such requests."""
        kept = ((group.block_tokens, group.kept) for group in self.groups)
        groups = [
            KvCacheGroup(tokens, one.window, one.local, one.state_bytes > 0, one.checkpoints) for tokens, one in kept
        ]
        return {
            "block_tokens": max(1, self.tokens(of_request, step_tokens) // self.blocks),
            "total_blocks": self.blocks,
            "groups": [asdict(group) for group in groups],
        }

    def request_blocks(self, tokens: int, chunk: int = 1) -> int:
        return sum(group.blocks(tokens, chunk) for group in self.groups)

    def tokens(self, of_request: int, step_tokens: int) -> int:
        """Count the tokens that fit, in requests of `of_request` tokens; one of them computes `step_tokens` at once."""
        beside = self.request_blocks(of_request, step_tokens) - self.request_blocks(of_request)
        return int(max(0, self.blocks - beside) / self.request_blocks(of_request) * of_request)


def kept_by(model: Architecture, devices: int) -> list[Kept]:
    """List the memory of each layer that keeps anything, on one device."""
    kept = []
    for layer in model.layers:
        mixer = layer.mixer
        if isinstance(mixer, State):
            kept.append(Kept(state_bytes=mixer.bytes(devices), checkpoints=mixer.kind == "Mamba-2"))
        elif isinstance(mixer, Attention):
            kept.append(Kept(int(model.token_bytes(mixer, devices)), mixer.window, local=mixer.local))
        elif isinstance(mixer, Latent):
            kept.append(Kept(int(model.token_bytes(mixer, devices))))
    return kept


def grouped(layers: Sequence[Kept], available_bytes: int, where: str = "model") -> Groups:
    """Group layers as vLLM does. Raises ProfileError for layers that it cannot group."""
    kinds = {kept: layers.count(kept) for kept in dict.fromkeys(layers)}
    if not kinds:
        raise ProfileError(f"{where}: no layer keeps anything")
    if all(not kept.window and not kept.state_bytes for kept in kinds):  # one table; pages may differ
        page = sum(BLOCK_TOKENS * kept.token_bytes * count for kept, count in kinds.items())
        whole = Group(Kept(sum(kept.token_bytes * count for kept, count in kinds.items())), len(layers), BLOCK_TOKENS)
        return Groups((whole,), page, available_bytes // page)
    if all(kept.state_bytes for kept in kinds):
        available_bytes -= sum(layer.state_bytes for layer in layers)  # vLLM's null block, as large as a request
    tokens, page = _pages(kinds, where)
    least, most = min(kinds.values()), max(kinds.values())
    size = most if most < PADDED * least else least
    groups = []
    for kept, count in kinds.items():
        number = -(-count // size)
        groups += [Group(kept, len(range(i, count, number)), tokens[kept]) for i in range(number)]
    return Groups(tuple(groups), page, available_bytes // (page * max(group.layers for group in groups)))


def _pages(kinds: dict[Kept, int], where: str) -> tuple[dict[Kept, int], int]:
    """Return the tokens of a block for each kind, and the bytes of any block in a layer.

    With states, a block of layers that keep tokens is as long as the state requires, in steps of 16 tokens; pages of
    states are padded.
    """
    by_token = [kept for kept in kinds if not kept.state_bytes]
    state = max((kept.state_bytes for kept in kinds), default=0)
    if not by_token:
        return dict.fromkeys(kinds, BLOCK_TOKENS), state
    least = min(kept.token_bytes for kept in by_token)
    block = BLOCK_TOKENS * max(1, -(-state // (BLOCK_TOKENS * least)))
    page = block * max(kept.token_bytes for kept in by_token)
    for kept in by_token:
        if page % (block * kept.token_bytes):
            raise ProfileError(
                f"{where}: layers keep {kept.token_bytes} and {page // block} bytes of a token; vLLM has no blocks for "
                "both"
            )
    return {kept: page // kept.token_bytes if kept in by_token else block for kept in kinds}, page
