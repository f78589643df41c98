"""KV on its way, in plain Python: when a transfer begins and ends (docs/cluster_rules.md, "From prefill to decode")."""

import numpy as np

from servegym.simulator.inputs.cluster import Link
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.records.types import RECEIVED


def destinations(lines: np.ndarray, engine_of: np.ndarray) -> dict[int, int]:
    """Where the KV of each request goes: where it arrived, or where the router has sent it (-1: nowhere yet)."""
    to = dict(enumerate(engine_of.tolist()))
    received = lines[lines["kind"] == RECEIVED]
    return to | dict(zip(received["request"].tolist(), received["engine"].tolist(), strict=True))


class ReplayedLink:
    """blocks: of each engine, blocks by request; a transfer takes its blocks there when it begins.

    to: where each request goes, if all that leave are sent on once, at once: then it is known what must be sent when.
    """

    def __init__(self, link: Link, pools: list[Deployment], blocks: list[dict[int, int]], to: dict[int, int] | None):
        self.link, self.pools, self.blocks, self.to = link, pools, blocks, to
        self.sending: dict[int, tuple[int, float]] = {}  # by decode engine: request, arrival
        self.expected: dict[int, int] = {}  # by decode engine: the request that must be on the link
        self.lines: list[list[tuple[int, int, float]]] = [[] for _ in pools]  # request, tokens, since
        self.joining: list[tuple[int, int]] = []  # request, tokens: those that left at `joined_s`
        self.joined_s = np.inf

    # What the timeline says

    def begins(self, r: int, d: int, tokens: int, need: int, duration_s: float, now_s: float) -> None:
        """The KV of request r is sent to engine d."""
        if self.to is not None:
            if self.expected.get(d) != r:
                self.join_all()
            assert self.expected.get(d) == r, "not the next to be sent"
        assert d not in self.sending and not (self.link.shared and self.sending), "the link is not free"
        assert need == self.blocks_for(d, tokens) and self.fits_memory(d, tokens), "no memory for it"
        assert duration_s == self.link.latency_s + tokens * (self.link.bytes_per_token / self.link.bytes_per_s)
        self.blocks[d][r] = need
        self.sending[d] = (r, now_s + duration_s)

    def stops(self, r: int, d: int) -> None:
        """Its sending is broken off."""
        assert self.sending.pop(d)[0] == r
        del self.blocks[d][r]

    def arrived(self, r: int, d: int, now_s: float) -> None:
        """The KV of request r is at engine d."""
        assert self.sending.pop(d, None) == (r, now_s), "another transfer, or at another time"
        self.expected.pop(d, None)
        self.next_after(d, now_s)

    def blocks_for(self, d: int, tokens: int) -> int:
        return -(-tokens // self.pools[d].block_tokens)

    def fits_memory(self, d: int, tokens: int) -> bool:
        pool, held = self.pools[d], self.blocks[d]
        watermark = int(pool.watermark * pool.total_blocks) if held else 0
        return pool.total_blocks - sum(held.values()) >= self.blocks_for(d, tokens) + watermark

    # What must be, where all are sent on at once

    def leaves(self, r: int, tokens: int, now_s: float) -> None:
        """Request r has left its engine; at this instant, after all that ends in it, the router sends it on."""
        self.joining.append((r, tokens))
        self.joined_s = now_s

    def join_all(self) -> None:
        """The router sends on those that have left."""
        if self.to is not None:
            for r, tokens in self.joining:
                self.lines[self.to[r]].append((r, tokens, self.joined_s))
                self.try_engine(self.to[r])
        self.joining, self.joined_s = [], np.inf

    def settle(self) -> None:
        """The instant is over: all that must be on a link are."""
        self.join_all()
        if self.to is not None:
            assert self.expected == {d: r for d, (r, _) in self.sending.items()}, "not sent, though it could be"

    def first_fits(self, d: int) -> bool:
        return bool(self.lines[d]) and self.fits_memory(d, self.lines[d][0][1])

    def try_engine(self, d: int) -> None:
        """The next transfer to engine d begins, if it can."""
        if d not in self.expected and not (self.link.shared and self.expected) and self.first_fits(d):
            self.expected[d] = self.lines[d].pop(0)[0]

    def next_after(self, d: int, now_s: float) -> None:
        """The link to engine d is free; a shared one goes to the one that has waited longest of those with memory."""
        if not self.link.shared:
            self.try_engine(d)
            return
        ready = [(line[0][2], e) for e, line in enumerate(self.lines) if self.first_fits(e)]
        if ready:
            self.try_engine(min(ready)[1])
