"""KV on its way, in plain Python: when a transfer begins and ends (docs/simulation.md, "From prefill to decode")."""

from servegym.simulator.cluster import Link
from servegym.simulator.deployment import Deployment


class ReplayedLink:
    """held: of each engine, blocks by request; a transfer takes its blocks there when it begins."""

    def __init__(self, link: Link, pools: list[Deployment], held: list[dict[int, int]]):
        self.link, self.pools, self.held = link, pools, held
        self.lines: list[list[tuple[int, int, int, float]]] = [[] for _ in pools]  # request, source, tokens, since
        self.sending: dict[int, tuple[int, int, float]] = {}  # by decode engine: request, source, arrival

    def join(self, r: int, source: int, d: int, tokens: int, now_s: float) -> None:
        """Request r has left `source` for engine d."""
        self.lines[d].append((r, source, tokens, now_s))
        self.try_engine(d, now_s)

    def blocks_if_room(self, d: int) -> int:
        """Blocks that the first in line needs; 0: there is no memory for it, or no line."""
        if not self.lines[d]:
            return 0
        pool, held = self.pools[d], self.held[d]
        need = -(-self.lines[d][0][2] // pool.block_tokens)
        watermark = int(pool.watermark * pool.total_blocks) if held else 0
        return need if pool.total_blocks - sum(held.values()) >= need + watermark else 0

    def try_engine(self, d: int, now_s: float) -> None:
        """Begin the next transfer to engine d, if it can be."""
        if d in self.sending or (self.link.shared and self.sending):
            return
        need = self.blocks_if_room(d)
        if need == 0:
            return
        r, source, tokens, _ = self.lines[d].pop(0)
        self.held[d][r] = need
        s_per_token = self.link.bytes_per_token / self.link.bytes_per_s
        self.sending[d] = (r, source, now_s + (self.link.latency_s + tokens * s_per_token))

    def arrived(self, r: int, d: int, now_s: float) -> int:
        """The KV of request r is at engine d. Returns the engine it comes from."""
        assert d in self.sending, "nothing was on its way there"
        sent, source, due_s = self.sending.pop(d)
        assert (sent, due_s) == (r, now_s), "another transfer, or at another time"
        return source

    def next_after(self, d: int, now_s: float) -> None:
        """The link to engine d is free; a shared one goes to who has waited longest of those with memory."""
        if not self.link.shared:
            self.try_engine(d, now_s)
            return
        ready = [(line[0][3], e) for e, line in enumerate(self.lines) if self.blocks_if_room(e)]
        if ready:
            self.try_engine(min(ready)[1], now_s)
