"""What a router knows of the engines ("What a router knows" of docs/simulation.md)."""

from collections.abc import Callable
from dataclasses import dataclass, field

from .latency import Latency
from .requests import INF, Request
from .stores import Store


@dataclass
class View:
    """Of an engine. Nothing of its state is here but what it reported, and what the router knows at once."""

    index: int
    role: str
    total_blocks: int
    fit: Latency  # its estimator's, never corrected
    free_blocks: int  # as reported
    decode_tokens: int = 0  # as reported: context of the requests there with a token since they were sent
    record: list[Request] = field(default_factory=list)  # sent there, no token heard of since, in the order sent
    out: list[int] = field(default_factory=list)  # tokens that each of the record had when it was sent
    changed_s: float = 0.0  # when the record changed last
    here: list[Request] = field(default_factory=list)  # sent there; neither finished nor gone on, as far as heard
    decoding: list[Request] = field(default_factory=list)  # of these, with a token since
    sent: int = 0  # when it was sent a request last, in requests sent anywhere; 0: never
    busy_until_s: float = 0.0  # as reported
    finished: list[Request] = field(default_factory=list)  # there, as far as heard
    version: int = 0
    up: bool = True
    closed: bool = False
    pending: bool = False  # by a scaler, and up: a router that moves it into a tier opens it
    tier: int | None = None
    pool: int = 0
    block_tokens: int = 1
    store: Store | None = None  # of what it was sent

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
class News:
    """A first or last token."""

    time_s: float
    engine: int
    change: Callable[[float], None]  # of the view, given the time the router hears of it


@dataclass
class Report:
    time_s: float
    busy_until_s: float
    free_blocks: int
    decode_tokens: int


@dataclass
class Book:
    """The router's, of all engines."""

    views: list[View]
    signal_delay_s: float
    news: list[News] = field(default_factory=list)  # not heard so far, in the order it happened
    reports: dict[int, list[Report]] = field(default_factory=dict)  # by engine, the latest last
    last: dict[int, tuple[int, int]] = field(default_factory=dict)  # by engine: free blocks, decode tokens reported
    sendings: int = 0

    def taking(self, r: Request) -> list[View]:
        return [view for view in self.views if view.takes(r)]

    def send(self, r: Request, engine: int, now_s: float) -> None:
        view = self.views[engine]
        self.sendings += 1
        view.sent = self.sendings
        view.version += 1
        view.here.append(r)
        if r.kv_at is not None:
            view.decoding.append(r)
            return
        r.sent_tokens = r.emitted
        view.record.append(r)
        view.out.append(r.emitted)
        view.changed_s = now_s
        if view.store is not None:
            view.store.put(r.chunks)

    def first_token(self, r: Request, engine: int, now_s: float) -> None:
        view = self.views[engine]

        def heard(when_s: float) -> None:
            view.version += 1
            view.out.pop(view.record.index(r))
            view.record.remove(r)
            view.changed_s = when_s
            if view.role == "both":
                view.decoding.append(r)
            else:  # gone on, or finished
                view.here.remove(r)

        self.news.append(News(now_s, engine, heard))

    def finish(self, r: Request, engine: int, now_s: float) -> None:
        view = self.views[engine]

        def heard(when_s: float) -> None:
            view.version += 1
            view.finished.append(r)
            if view.role != "prefill":  # else its first token was its last
                view.here.remove(r)
                view.decoding.remove(r)

        self.news.append(News(now_s, engine, heard))

    def gone(self, r: Request, engine: int) -> None:
        """Its KV does not come to that decode engine."""
        self.views[engine].version += 1
        self.views[engine].here.remove(r)
        self.views[engine].decoding.remove(r)

    def clear(self, engine: int, now_s: float, free_blocks: int) -> None:
        """All has been taken back from it: what is on its way from there is lost."""
        self.take_in(now_s)  # what is not
        view = self.views[engine]
        view.version += 1
        view.changed_s = now_s
        view.here, view.record, view.out, view.decoding = [], [], [], []
        self.news = [news for news in self.news if news.engine != engine]
        self.forget_reports(engine)
        view.free_blocks, self.last[engine] = free_blocks, (free_blocks, 0)

    def clear_store(self, engine: int) -> None:
        store = self.views[engine].store
        if store is not None:
            store.empty()

    def forget_reports(self, engine: int) -> None:
        view = self.views[engine]
        view.free_blocks, view.decode_tokens, view.busy_until_s = view.total_blocks, 0, 0.0
        self.reports.pop(engine, None)
        self.last.pop(engine, None)

    def report(self, engine: int, now_s: float, busy_until_s: float, state: tuple[int, int] | None = None) -> None:
        """`state`: free blocks and decode tokens, at the end of an iteration."""
        self.last[engine] = state or self.last.get(engine, (self.views[engine].total_blocks, 0))
        reports = [report for report in self.reports.get(engine, []) if report.time_s != now_s]
        self.reports[engine] = [*reports, Report(now_s, busy_until_s, *self.last[engine])][-4:]

    def next_heard_s(self) -> float:
        """When the router can hear of a first or last token next."""
        return min([news.time_s + self.signal_delay_s for news in self.news[:1]], default=INF)

    def hears_at(self, now_s: float) -> bool:
        """A first or last token comes just now."""
        return any(news.time_s + self.signal_delay_s == now_s for news in self.news)

    def take_in(self, now_s: float) -> None:
        """All that happened up to now less the delay."""
        while self.news and self.news[0].time_s + self.signal_delay_s <= now_s:
            news = self.news.pop(0)
            news.change(news.time_s + self.signal_delay_s)
        for engine, reports in self.reports.items():
            for report in reports:
                if report.time_s + self.signal_delay_s <= now_s:
                    view = self.views[engine]
                    view.free_blocks, view.decode_tokens = report.free_blocks, report.decode_tokens
                    view.busy_until_s = report.busy_until_s
