"""KV on its way, in plain Python: when a transfer begins and ends (docs/simulation.md, "From prefill to decode")."""

import numpy as np

from servegym.simulator.cluster import Link
from servegym.simulator.deployment import Deployment
from servegym.simulator.types import RECEIVED


def destinations(lines: np.ndarray, engine_of: np.ndarray) -> dict[int, int]:
    """Where the KV of each request goes: where it arrived, or where the router has sent it (-1: nowhere yet)."""
    to = dict(enumerate(engine_of.tolist()))
    received = lines[lines["kind"] == RECEIVED]
    return to | dict(zip(received["request"].tolist(), received["engine"].tolist(), strict=True))


class ReplayedLink:
    """blocks: of each engine, blocks by request; a transfer takes its blocks there when it begins."""

    def __init__(self, link: Link, pools: list[Deployment], blocks: list[dict[int, int]], to: dict[int, int]):
        self.link, self.pools, self.blocks, self.to = link, pools, blocks, to
        self.lines: list[list[tuple[int, int, float]]] = [[] for _ in pools]  # request, tokens, since
        self.sending: dict[int, tuple[int, float]] = {}  # by decode engine: request, arrival
        self.joining: list[tuple[int, int]] = []  # request, tokens: those who left at `joined_s`
        self.joined_s = np.inf

    def join(self, r: int, source: int, tokens: int, now_s: float) -> None:
        """Request r has left its engine; at this instant, after all that ends in it, the router sends it on."""
        self.joining.append((r, tokens))
        self.joined_s = now_s

    def join_all(self) -> None:
        """The router sends on those who have left."""
        for r, tokens in self.joining:
            d = self.to[r]
            self.lines[d].append((r, tokens, self.joined_s))
            self.try_engine(d, self.joined_s)
        self.joining, self.joined_s = [], np.inf

    def blocks_if_room(self, d: int) -> int:
        """Blocks that the first in line needs; 0: there is no memory for it, or no line."""
        if not self.lines[d]:
            return 0
        pool, held = self.pools[d], self.blocks[d]
        need = -(-self.lines[d][0][1] // pool.block_tokens)
        watermark = int(pool.watermark * pool.total_blocks) if held else 0
        return need if pool.total_blocks - sum(held.values()) >= need + watermark else 0

    def try_engine(self, d: int, now_s: float) -> None:
        """Begin the next transfer to engine d, if it can be."""
        if d in self.sending or (self.link.shared and self.sending):
            return
        need = self.blocks_if_room(d)
        if need == 0:
            return
        r, tokens, _ = self.lines[d].pop(0)
        self.blocks[d][r] = need
        s_per_token = self.link.bytes_per_token / self.link.bytes_per_s
        self.sending[d] = (r, now_s + (self.link.latency_s + tokens * s_per_token))

    def arrived(self, r: int, d: int, tokens: int, now_s: float) -> None:
        """The KV of request r is at engine d."""
        if self.sending.get(d) != (r, now_s):
            self.join_all()  # it was sent and arrived at the instant at which it left
        assert self.sending.pop(d, None) == (r, now_s), "another transfer, or at another time"

    def next_after(self, d: int, now_s: float) -> None:
        """The link to engine d is free; a shared one goes to who has waited longest of those with memory."""
        if not self.link.shared:
            self.try_engine(d, now_s)
            return
        ready = [(line[0][2], e) for e, line in enumerate(self.lines) if self.blocks_if_room(e)]
        if ready:
            self.try_engine(min(ready)[1], now_s)


class LinkUnseen(ReplayedLink):
    """Where requests are held or taken back the timeline does not say when and where transfers begin.

    What remains: none begins before its request has left, and one at a time is on a link.
    """

    def __init__(self, *given) -> None:
        super().__init__(*given)
        self.left_s: dict[int, float] = {}

    def join(self, r: int, source: int, tokens: int, now_s: float) -> None:
        self.left_s[r] = now_s

    def try_engine(self, d: int, now_s: float) -> None:
        pass

    def arrived(self, r: int, d: int, tokens: int, now_s: float) -> None:
        s_per_token = self.link.bytes_per_token / self.link.bytes_per_s
        begin_s = now_s - (self.link.latency_s + tokens * s_per_token)
        before = self.sending.values() if self.link.shared else [self.sending.get(d, (-1, 0.0))]
        free_s = max([self.left_s[r], *(time_s for _, time_s in before)])
        assert begin_s >= free_s - 1e-9 * max(1.0, now_s), "sent before it could be"
        self.sending[d] = (r, now_s)

    def next_after(self, d: int, now_s: float) -> None:
        pass
