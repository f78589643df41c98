"""KV on its way from prefill to decode engines: "From prefill to decode" of docs/cluster_rules.md."""

from dataclasses import dataclass

from .engines import Engine
from .requests import Request


@dataclass(frozen=True)
class Link:
    bytes_per_token: float = 0.0
    bytes_per_s: float = 1.0
    latency_s: float = 0.0
    shared: bool = False

    def sending_s(self, tokens: int) -> float:
        return self.latency_s + tokens * (self.bytes_per_token / self.bytes_per_s)


@dataclass
class Transfer:
    request: Request
    source: Engine
    destination: Engine
    arrival_s: float


@dataclass
class Lines:
    """The requests whose KV waits to be sent to decode engines, and the KV that is on its way."""

    link: Link
    waiting: dict[int, list[tuple[Request, Engine]]]  # by decode engine, with the engine each comes from
    sent: list[Transfer]

    def join(self, r: Request, destination: Engine, now_s: float) -> None:
        """Add r, which has left the queue of the engine that has its KV; its blocks there stay taken."""
        assert r.kv_at is not None
        self.waiting[destination.index].append((r, r.kv_at))
        self.try_first([destination], now_s)

    def take_out(self, r: Request, destination: Engine) -> None:
        """Remove r from those that wait for that engine or are on their way."""
        self.waiting[destination.index] = [pair for pair in self.waiting[destination.index] if pair[0] is not r]
        self.sent = [transfer for transfer in self.sent if transfer.request is not r]
        destination.on_their_way.pop(r.index, None)

    def try_first(self, destinations: list[Engine], now_s: float) -> None:
        """Return, of the first in each line with a free link and memory, the request with the earliest last token."""
        can_be_sent = [engine for engine in destinations if self.link_is_free(engine) and self.has_memory(engine)]
        if can_be_sent:
            engine = min(can_be_sent, key=lambda engine: (self.first(engine).emission_s[-1], engine.index))
            r, source = self.waiting[engine.index].pop(0)
            engine.on_their_way[r.index] = engine.blocks_for(r.computed)
            self.sent.append(Transfer(r, source, engine, now_s + self.link.sending_s(r.computed)))

    def first(self, destination: Engine) -> Request:
        return self.waiting[destination.index][0][0]

    def link_is_free(self, destination: Engine) -> bool:
        return not any(self.link.shared or transfer.destination is destination for transfer in self.sent)

    def has_memory(self, destination: Engine) -> bool:
        """Return whether there is memory for the first in line there, if there is one."""
        if not self.waiting[destination.index]:
            return False
        need = destination.blocks_for(self.first(destination).computed)
        return destination.free_blocks >= need + (destination.watermark_blocks if destination.all_running else 0)

    def next_arriving(self, now_s: float) -> Transfer | None:
        """Return the lowest request whose KV arrives at this instant."""
        return min((t for t in self.sent if t.arrival_s == now_s), key=lambda t: t.request.index, default=None)

    def arrive(self, transfer: Transfer) -> None:
        """Let the KV of a request arrive: free its earlier blocks and the link."""
        r, source, destination = transfer.request, transfer.source, transfer.destination
        self.sent.remove(transfer)
        del source.on_their_way[r.index]
        source.release(r)
        r.blocks, r.kv_at = destination.on_their_way.pop(r.index), None
        source.waits_for_kv = destination.waits_for_kv = False

    def try_freed(self, destinations: list[Engine], engines: list[Engine], now_s: float) -> None:
        """Try to send over a link that has become free; a shared link serves all engines."""
        if self.link.shared and destinations:
            self.try_first(engines, now_s)
        else:
            for destination in destinations:
                self.try_first([destination], now_s)
