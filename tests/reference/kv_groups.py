"""What groups of layers hold of a request: "KV cache groups" of docs/feature_rules.md."""

from dataclasses import dataclass

from .requests import INF


@dataclass(frozen=True)
class KvGroup:
    block_tokens: int
    window: int = 0  # 0: all tokens
    local: bool = False
    state: bool = False

    def held(self, processed: int, tokens: int) -> int:
        """Blocks for so many tokens, less what nothing after the `processed` ones sees."""
        if self.state:
            return 1
        return len({token // self.block_tokens for token in range(self.first(processed), tokens)})

    def first(self, processed: int) -> int:
        """The first token that those after the processed ones see."""
        if self.local:
            return processed - processed % self.window
        if self.window:
            return max(0, processed + 1 - self.window)  # the next token sees itself and window - 1 before it
        return 0

    def most(self, tokens: int, in_flight: float, found: int) -> int:
        """What is set aside for a request of so many tokens, of which in_flight at most are computed at once, and of
        which so many have been found."""
        whole = self.held(0, tokens)
        if not self.window:
            return whole
        if in_flight < INF:
            seen = self.window if self.local else self.window - 1
            whole = min(whole, -(-int(seen + in_flight) // self.block_tokens) + (not self.local))
        return self.held(found, found) + max(0, whole - found // self.block_tokens)
