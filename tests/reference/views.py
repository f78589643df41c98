"""What a router knows of the engines ("What a router knows" of docs/simulation.md)."""

from collections.abc import Callable
from dataclasses import dataclass, field

from .latency import Latency
from .requests import Request


@dataclass
class View:
    """Of an engine. Nothing of its state is here but what it reported."""

    index: int
    role: str
    total_blocks: int
    fit: Latency  # its estimator's, never corrected
    free_blocks: int  # as reported
    decode_tokens: int = 0  # as reported: context of the requests there that have emitted a token
    record: list[Request] = field(default_factory=list)  # sent there, no token heard of, in the order sent
    changed_s: float = 0.0  # when the record changed last
    here: list[Request] = field(default_factory=list)  # sent there; neither finished nor gone on, as far as heard
    decoding: list[Request] = field(default_factory=list)  # of these, with a first token
    sent: int = 0  # when it was sent a request last, in requests sent anywhere; 0: never

    @property
    def requests(self) -> int:
        return len(self.here)

    @property
    def decodes(self) -> int:
        return len(self.decoding)

    @property
    def record_tokens(self) -> int:
        return sum(r.prompt_tokens for r in self.record)

    def takes(self, r: Request) -> bool:
        return self.role in (("both", "prefill") if r.emitted == 0 else ("decode",))


@dataclass
class News:
    """What has happened at an engine, and when the router may know."""

    time_s: float
    change: Callable[[float], None]  # of the view, given the time the router hears of it


@dataclass
class Book:
    """The router's, of all engines."""

    views: list[View]
    signal_delay_s: float
    news: list[News] = field(default_factory=list)  # not taken in so far, in the order it happened
    reports: dict[int, list[News]] = field(default_factory=dict)  # by engine, the latest last
    sendings: int = 0

    def taking(self, r: Request) -> list[View]:
        return [view for view in self.views if view.takes(r)]

    def send(self, r: Request, engine: int, now_s: float) -> None:
        view = self.views[engine]
        self.sendings += 1
        view.sent = self.sendings
        view.here.append(r)
        if r.emitted == 0:
            view.record.append(r)
            view.changed_s = now_s
        else:
            view.decoding.append(r)

    def first_token(self, r: Request, engine: int, now_s: float) -> None:
        view = self.views[engine]

        def heard(when_s: float) -> None:
            view.record.remove(r)
            view.changed_s = when_s
            if view.role == "both":
                view.decoding.append(r)
            else:  # gone on, or finished
                view.here.remove(r)

        self.news.append(News(now_s, heard))

    def finished(self, r: Request, engine: int, now_s: float) -> None:
        view = self.views[engine]

        def heard(when_s: float) -> None:
            if view.role != "prefill":  # else its first token was its last
                view.here.remove(r)
                view.decoding.remove(r)

        self.news.append(News(now_s, heard))

    def report(self, engine: int, free_blocks: int, decode_tokens: int, now_s: float) -> None:
        view = self.views[engine]

        def heard(when_s: float) -> None:
            view.free_blocks, view.decode_tokens = free_blocks, decode_tokens

        self.reports[engine] = [*self.reports.get(engine, []), News(now_s, heard)][-4:]

    def take_in(self, now_s: float) -> None:
        """All that happened up to now less the delay."""
        until_s = now_s - self.signal_delay_s
        while self.news and self.news[0].time_s <= until_s:
            news = self.news.pop(0)
            news.change(news.time_s + self.signal_delay_s)
        for reports in self.reports.values():
            for report in reports:
                if report.time_s <= until_s:
                    report.change(now_s)
