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
        first = 0
        if self.local:
            first = processed - processed % self.window
        elif self.window:
            first = max(0, processed + 1 - self.window)  # the next token sees itself and window - 1 before it
        return len({token // self.block_tokens for token in range(first, tokens)})

    def most(self, tokens: int, in_flight: float) -> int:
        """What is set aside for a request of so many tokens, of which in_flight at most are computed at once."""
        whole = self.held(0, tokens)
        if not self.window or in_flight == INF:
            return whole
        seen = self.window if self.local else self.window - 1
        return min(whole, -(-int(seen + in_flight) // self.block_tokens) + (not self.local))
