"""A router's knowledge of the engines ("What a router knows" of docs/cluster_rules.md)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from .grouped_memory import GroupedMemory
from .latency import Latency
from .memory import Block, Memory, Name
from .requests import INF, Request
from .stores import Store


@dataclass
class EngineSnapshot:
    """A router's record of an engine: what it reported, and what the router knows at once; no other state."""

    index: int
    role: str
    total_blocks: int
    fit: Latency  # its estimator's, never corrected
    free_blocks: int  # as reported
    decode_tokens: int = 0  # as reported: context of the requests there with a token since they were sent
    output_tokens: int = 0  # as reported: tokens that it has emitted
    record: list[Request] = field(default_factory=list)  # sent there, no token heard of since, in the order sent
    out: list[int] = field(default_factory=list)  # tokens that each of the record had when it was sent
    changed_s: float = 0.0  # when the record changed last
    here: list[Request] = field(default_factory=list)  # sent there; neither finished nor gone on, as far as heard
    decoding: list[Request] = field(default_factory=list)  # of these, with a token since
    sent: int = 0  # when it was sent a request last, in requests sent anywhere; 0: never
    busy_until_s: float = 0.0  # as reported
    finished: list[Request] = field(default_factory=list)  # requests there, as far as heard
    version: int = 0
    up: bool = True
    closed: bool = False
    pending: bool = False  # by a scaler, and up: a router that moves it into a tier opens it
    off: bool = False  # or, in a tier, loading
    changing: bool = False  # its role
    role_fixed: bool = True  # a scaler cannot change its role
    role_change_s: float = math.nan  # what that takes
    tier: int | None = None
    pool: int = 0
    block_tokens: int = 1
    chunk_tokens: int = 1  # of prompts
    beginnings: Store | None = None  # the router's index of what it was sent
    max_loras: int = 0
    max_cpu_loras: int = 0
    load_s: float = 0.0  # of an adapter
    activate_s: float = 0.0
    adapters: list[int] = field(default_factory=list)  # of what it was sent, the latest first, max_cpu_loras at most
    told: dict[Block, Name | None] | None = (
        None  # contents of its blocks that it has published; None: it publishes none
    )
    finder: GroupedMemory | None = None  # looks up what it has published, in groups; None: it has no groups

    @property
    def requests(self) -> int:
        return len(self.here)

    @property
    def decodes(self) -> int:
        return len(self.decoding)

    @property
    def record_tokens(self) -> int:
        return sum(r.prompt_tokens for r in self.record) + sum(self.out)

    @property
    def finished_tokens(self) -> int:
        return sum(r.output_tokens for r in self.finished)

    def takes(self, r: Request) -> bool:
        fits = self.role == "decode" if r.kv_at is not None else self.role in ("both", "prefill")
        return self.up and not self.closed and fits

    def would_take(self, r: Request) -> bool:
        return self.pending and (self.role == "decode") == (r.kv_at is not None)


@dataclass
class Signal:
    """A first or last token."""

    time_s: float
    engine: int
    change: Callable[[float], None]  # of the snapshot, given the time the router hears of it


@dataclass
class KvEvents:
    time_s: float
    engine: int
    names: dict[Block, Name | None]


@dataclass
class Report:
    time_s: float
    busy_until_s: float
    free_blocks: int
    decode_tokens: int
    output_tokens: int


@dataclass
class RouterState:
    """The router's records of all engines."""

    snapshots: list[EngineSnapshot]
    signal_delay_s: float
    signals: list[Signal] = field(default_factory=list)  # not heard so far, in the order it happened
    kv_events: list[KvEvents] = field(default_factory=list)  # the same
    reports: dict[int, list[Report]] = field(default_factory=dict)  # by engine, the latest last
    last: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # by engine: its last report without times
    sendings: int = 0

    def taking(self, r: Request) -> list[EngineSnapshot]:
        return [snapshot for snapshot in self.snapshots if snapshot.takes(r)]

    def send(self, r: Request, engine: int, now_s: float) -> None:
        snapshot = self.snapshots[engine]
        self.sendings += 1
        snapshot.sent = self.sendings
        snapshot.version += 1
        snapshot.here.append(r)
        if r.adapter > 0:
            others = [adapter for adapter in snapshot.adapters if adapter != r.adapter]
            snapshot.adapters = [r.adapter, *others][: snapshot.max_cpu_loras]
        if r.kv_at is not None:
            snapshot.decoding.append(r)
            return
        r.sent_tokens = r.emitted
        snapshot.record.append(r)
        snapshot.out.append(r.emitted)
        snapshot.changed_s = now_s
        if snapshot.beginnings is not None:
            snapshot.beginnings.put(snapshot.beginnings.of_prompt(r))

    def first_token(self, r: Request, engine: int, now_s: float) -> None:
        snapshot = self.snapshots[engine]

        def heard(when_s: float) -> None:
            snapshot.version += 1
            snapshot.out.pop(snapshot.record.index(r))
            snapshot.record.remove(r)
            snapshot.changed_s = when_s
            if snapshot.role == "both":
                snapshot.decoding.append(r)
            else:  # gone on, or finished
                snapshot.here.remove(r)

        self.signals.append(Signal(now_s, engine, heard))

    def finish(self, r: Request, engine: int, now_s: float) -> None:
        snapshot = self.snapshots[engine]

        def heard(when_s: float) -> None:
            snapshot.version += 1
            snapshot.finished.append(r)
            if snapshot.role != "prefill":  # else its first token was its last
                snapshot.here.remove(r)
                snapshot.decoding.remove(r)

        self.signals.append(Signal(now_s, engine, heard))

    def gone(self, r: Request, engine: int) -> None:
        """Note that its KV will not come to that decode engine."""
        self.snapshots[engine].version += 1
        self.snapshots[engine].here.remove(r)
        self.snapshots[engine].decoding.remove(r)

    def hear_all(self, engine: int, now_s: float) -> None:
        """Deliver all signals of an engine that are on their way to the router."""
        self.apply_signals(now_s)
        for signal in self.signals:
            if signal.engine == engine:
                signal.change(now_s)
        self.signals = [signal for signal in self.signals if signal.engine != engine]

    def clear(self, engine: int, now_s: float, free_blocks: int, output_tokens: int) -> None:
        """Drop an engine's signals that are on their way: all requests have been taken back from it."""
        self.apply_signals(now_s)  # what is not
        snapshot = self.snapshots[engine]
        snapshot.version += 1
        snapshot.changed_s = now_s
        snapshot.here, snapshot.record, snapshot.out, snapshot.decoding = [], [], [], []
        self.signals = [signal for signal in self.signals if signal.engine != engine]
        self.forget_reports(engine)
        snapshot.free_blocks, snapshot.output_tokens = free_blocks, output_tokens
        self.last[engine] = (free_blocks, 0, output_tokens)

    def publish(self, engine: int, now_s: float, memory: Memory) -> None:
        """Publish the contents of an engine's blocks whose names have changed."""
        self.kv_events.append(KvEvents(now_s, engine, {block: block.name for block in memory.changed}))
        memory.changed = {}

    def clear_index(self, engine: int) -> None:
        self.snapshots[engine].adapters = []
        if self.snapshots[engine].told is not None:
            self.snapshots[engine].told = {}
            self.kv_events = [events for events in self.kv_events if events.engine != engine]
        beginnings = self.snapshots[engine].beginnings
        if beginnings is not None:
            beginnings.empty()

    def forget_reports(self, engine: int) -> None:
        snapshot = self.snapshots[engine]
        snapshot.free_blocks, snapshot.decode_tokens, snapshot.busy_until_s = snapshot.total_blocks, 0, 0.0
        self.reports.pop(engine, None)
        self.last.pop(engine, None)

    def report(self, engine: int, now_s: float, busy_until_s: float, state: tuple[int, int, int] | None = None) -> None:
        """Report the state at the end of an iteration: free blocks, decode tokens and output tokens."""
        snapshot = self.snapshots[engine]
        self.last[engine] = state or self.last.get(engine, (snapshot.total_blocks, 0, snapshot.output_tokens))
        reports = self.reports.setdefault(engine, [])
        gap_s = reports[-1].time_s - reports[-2].time_s if len(reports) > 1 else INF
        if reports and (reports[-1].time_s == now_s or gap_s < self.signal_delay_s / 8):
            reports.pop()
        reports.append(Report(now_s, busy_until_s, *self.last[engine]))
        del reports[:-10]

    def next_heard_s(self) -> float:
        """Return when the router can hear of a first or last token next."""
        return min([signal.time_s + self.signal_delay_s for signal in self.signals[:1]], default=INF)

    def hears_at(self, now_s: float) -> bool:
        """Return when the router hears of a first or last token that is emitted now."""
        return any(signal.time_s + self.signal_delay_s == now_s for signal in self.signals)

    def apply_signals(self, now_s: float) -> None:
        """Apply all signals sent up to now minus the delay."""
        while self.signals and self.signals[0].time_s + self.signal_delay_s <= now_s:
            signal = self.signals.pop(0)
            signal.change(signal.time_s + self.signal_delay_s)
        while self.kv_events and self.kv_events[0].time_s + self.signal_delay_s <= now_s:
            events = self.kv_events.pop(0)
            told = self.snapshots[events.engine].told
            assert told is not None
            told.update(events.names)
        for engine, reports in self.reports.items():
            for report in reports:
                if report.time_s + self.signal_delay_s <= now_s:
                    snapshot = self.snapshots[engine]
                    snapshot.free_blocks, snapshot.decode_tokens = report.free_blocks, report.decode_tokens
                    snapshot.output_tokens, snapshot.busy_until_s = report.output_tokens, report.busy_until_s
