"""The scaler forecast, written from docs/systems/forecast.md."""

from collections import defaultdict
from math import ceil

from .requests import Request
from .scalers import Change, ResizingScaler
from .snapshots import EngineSnapshot


class Forecast(ResizingScaler):
    def __init__(
        self,
        interval_s: float = 15.0,
        engine_rate: float = 1.0,
        ahead_s: float = 60.0,
        day_s: float = 86400.0,
        bins: int = 48,
        window_s: float = 1800.0,
        trust: float = 10.0,
        drain_s: float = 60.0,
        slack: float = 0.2,
        least_engines: int = 1,
        most_engines: int = 4096,
    ) -> None:
        self.interval_s, self.engine_rate, self.ahead_s, self.day_s, self.bins = (
            interval_s, engine_rate, ahead_s, day_s, bins,
        )  # fmt: skip
        self.window_s, self.trust, self.drain_s, self.slack = window_s, trust, drain_s, slack
        self.least, self.most = least_engines, most_engines

    def prepare(self, requests: list[Request], snapshots: list[EngineSnapshot]) -> None:
        super().prepare(requests, snapshots)
        self.arrived = 0
        self.yesterday: dict[int, float] = defaultdict(float)  # complete counts by bin
        self.part, self.counted = 0, 0.0  # of the bin that is being counted
        self.lately = self.expected = self.span_s = 0.0

    def decide(self, now_s: float, now: list[Change]) -> list[Change]:
        self.changes = list(now)
        held = sum(map(len, self.lines))
        rate = self.forecast(now_s, held + sum(v.requests + len(v.finished) for v in self.snapshots))
        engines = (rate + (held + sum(len(v.record) for v in self.snapshots)) / self.drain_s) / self.engine_rate
        least, most = (min(max(ceil(x), self.least), self.most) for x in (engines, engines + self.slack))
        for role in ("both", "prefill", "decode"):
            self.resize(role, least, most)
        self.send_off()
        return self.changes

    def forecast(self, now_s: float, arrived: int) -> float:
        middle_s, new = now_s - self.interval_s / 2, max(arrived - self.arrived, 0)
        self.arrived += new
        first_day = middle_s < self.day_s
        if self.bin_of(middle_s) != self.part:
            self.yesterday[self.part] = self.counted
            self.part, self.counted = self.bin_of(middle_s), 0.0
        self.counted += new
        kept = max(1.0 - self.interval_s / self.window_s, 0.0)
        self.lately = self.lately * kept + new
        self.expected = self.expected * kept + (new if first_day else self.rate_at(middle_s) * self.interval_s)
        self.span_s = self.span_s * kept + self.interval_s
        if first_day:
            return self.lately / self.span_s
        ratio = (self.lately + self.trust) / (self.expected + self.trust)
        return max(self.rate_at(now_s), self.rate_at(now_s + self.ahead_s + self.interval_s)) * ratio

    def bin_of(self, time_s: float) -> int:
        return min(int((time_s % self.day_s) / (self.day_s / self.bins)), self.bins - 1)

    def rate_at(self, time_s: float) -> float:
        return self.yesterday[self.bin_of(time_s)] / (self.day_s / self.bins)
