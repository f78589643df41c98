"""The blocks that groups of layers hold of a request: "KV cache groups" of docs/feature_rules.md."""

from dataclasses import dataclass

from .requests import INF


@dataclass(frozen=True)
class KvGroup:
    block_tokens: int
    window: int = 0  # 0: all tokens
    local: bool = False
    state: bool = False
    checkpoints: bool = False

    def held(self, processed: int, computed: int, tokens: int) -> int:
        """Return the blocks of `tokens` tokens, the last of which are a chunk after the `computed` ones, without blocks
        that no token after the `processed` ones sees."""
        if self.state:
            return 1
        return len({token // self.block_tokens for token in range(self.first(processed), tokens)})

    def first(self, processed: int) -> int:
        """Return the first token that tokens after the processed ones see."""
        if self.local:
            return processed - processed % self.window
        if self.window:
            return max(0, processed + 1 - self.window)  # the next token sees itself and window - 1 before it
        return 0

    def most(self, tokens: int, in_flight: float, found: int) -> int:
        """Return the blocks reserved for a request of `tokens` tokens: at most `in_flight` are computed at once, and
        `found` are cached."""
        whole = self.held(0, 0, tokens)
        if not self.window:
            return whole
        if in_flight < INF:
            seen = self.window if self.local else self.window - 1
            whole = min(whole, -(-int(seen + in_flight) // self.block_tokens) + (not self.local))
        return self.held(found, found, found) + max(0, whole - found // self.block_tokens)


@dataclass(frozen=True)
class CachedState(KvGroup):
    """States of an engine that caches prefixes, each in the block of its last token."""

    def held(self, processed: int, computed: int, tokens: int) -> int:
        """Return the blocks of the states with which the chunk begins and ends, and a running batch began."""
        return len({self.place(end) for end in (processed, computed, tokens) if end > 0})

    def place(self, tokens: int) -> int:
        """Return the block of the state after this many tokens."""
        return (tokens - 1) // self.block_tokens

    def first(self, processed: int) -> int:
        return self.place(processed) * self.block_tokens if processed > 0 else 0

    def most(self, tokens: int, in_flight: float, found: int) -> int:
        return 1 + (found > 0) + self.has_checkpoint(found, tokens, tokens)

    def has_checkpoint(self, start: int, end: int, last: int) -> bool:
        """Return whether a chunk also writes the state at the last end of a block in it. last: end of the prefill."""
        if not self.checkpoints or end < last or start % self.block_tokens:
            return False
        return self.place(end) * self.block_tokens >= start + self.block_tokens


def with_caching(groups: list[KvGroup]) -> list[KvGroup]:
    """Return the groups of an engine that caches prefixes, in the order in which they take blocks."""
    full = [group for group in groups if not group.window and not group.state]
    windows = [group for group in groups if group.window]
    states = [group for group in groups if group.state]
    if not states:
        return full + windows
    checkpoints = all(group.checkpoints for group in states)
    block_tokens = (full or states)[0].block_tokens  # states alone have blocks of their own
    return full + windows + [CachedState(block_tokens, 0, False, True, checkpoints) for _ in states]
