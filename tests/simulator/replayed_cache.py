"""What an engine that caches prefixes can have, in plain Python (docs/feature_rules.md, "Names of blocks").

A timeline says what was found, not which block it was. So this knows what has been filled, not what is still there.
"""

from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.workload import Workload


class ReplayedCache:
    """Names of the blocks that have been filled since the engine failed last."""

    def __init__(self, block_tokens: int, workload: Workload):
        self.block_tokens, self.prompts = block_tokens, workload.prefixes
        self.filled: set[tuple[str, int, int]] = set()
        self.found: dict[int, int] = {}  # tokens, by request, for the batch being formed

    def names(self, r: int, tokens: int) -> list[tuple[str, int, int]]:
        """Of the blocks of request r that its first so many tokens fill."""
        chunks: list[int] = []
        if self.prompts is not None:
            chunks = self.prompts.chunks[self.prompts.offsets[r] : self.prompts.offsets[r + 1]].tolist()
        names = []
        for i in range(tokens // self.block_tokens):
            chunk = 0 if self.prompts is None else ((i + 1) * self.block_tokens - 1) // self.prompts.chunk_tokens
            names.append(("chunk", chunks[chunk], i) if chunk < len(chunks) else ("own", r, i))
        return names

    def check_batch(self, entries: list[tuple[int, int]]) -> None:
        """(request, tokens once the batch is done) in batch order: what was found had been filled, or is by an earlier
        one."""
        here = set(self.filled)
        for r, tokens in entries:
            assert here.issuperset(self.names(r, self.found.pop(r, 0))), "found what nobody has computed"
            here.update(self.names(r, tokens))
        self.found = {}

    def fill(self, r: int, tokens: int) -> None:
        self.filled.update(self.names(r, tokens))


def cache_of(pool: Deployment, workload: Workload) -> ReplayedCache | None:
    return ReplayedCache(pool.block_tokens, workload) if pool.caches_prefixes(workload) else None
