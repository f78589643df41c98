"""The scaler pd-ratio, written from docs/systems/pd_ratio.md."""

from math import ceil

from .requests import Request
from .scalers import Change, Scaler
from .snapshots import EngineSnapshot


class PdRatio(Scaler):
    def __init__(
        self,
        interval_s: float = 5.0,
        window_s: float = 30.0,
        prefill_high: float = 0.5,
        prefill_low: float = 0.2,
        decode_high: float = 0.9,
        decode_low: float = 0.5,
        rest_checks: int = 3,
        least_prefill: int = 1,
        least_decode: int = 1,
    ) -> None:
        self.interval_s, self.kept, self.rest_checks = interval_s, max(1 - interval_s / window_s, 0.0), rest_checks
        self.high = {"prefill": prefill_high, "decode": decode_high}
        self.low = {"prefill": prefill_low, "decode": decode_low}
        self.least = {"prefill": least_prefill, "decode": least_decode}

    def prepare(self, requests: list[Request], snapshots: list[EngineSnapshot]) -> None:
        super().prepare(requests, snapshots)
        self.averages: dict[str, float] = {}
        self.since = 0  # checks

    def decide(self, now_s: float, now: list[Change]) -> list[Change]:
        return now

    def decide_roles(self, now_s: float, now: list[str]) -> list[str]:
        numbers = {}
        for role in ("prefill", "decode"):
            mine = self.open_engines(role)
            numbers[role] = len(mine)
            load = sum(map(load_of, mine)) / max(len(mine), 1)
            before = self.averages.get(role, load)
            self.averages[role] = before * self.kept + load * (1 - self.kept)
        self.since = 0 if any(v.changing for v in self.snapshots) else self.since + 1
        if self.since <= self.rest_checks:
            return now
        for role, other in (("prefill", "decode"), ("decode", "prefill")):
            rest = numbers[other] - 1
            has_room = self.averages[other] * numbers[other] <= self.low[other] * rest
            if self.averages[role] > self.high[role] and rest >= self.least[other] and has_room:
                return self.with_one_more(role, other, now)
        return now

    def with_one_more(self, role: str, other: str, now: list[str]) -> list[str]:
        able = [v for v in self.open_engines(other) if not v.role_fixed]
        if not able:
            return now
        self.since = 0
        chosen = min(able, key=lambda v: (v.requests, -v.index)).index
        return [role if e == chosen else its for e, its in enumerate(now)]

    def open_engines(self, role: str) -> list[EngineSnapshot]:
        return [v for v in self.snapshots if v.role == role and v.up and not v.closed]


def load_of(v: EngineSnapshot) -> float:
    if v.role == "prefill":
        return sum(v.fit.exec(r.context, 0, False) / r.ttft_slo_s for r in v.record)
    if not v.decoding:
        return 0.0
    batch_s = v.fit.batch([(1, r.context, True) for r in v.decoding])
    paces = [batch_s / r.tpot_slo_s for r in v.decoding]
    blocks = sum(ceil(r.context / v.block_tokens) for r in v.decoding)
    return max(sum(paces) / len(paces), blocks / v.total_blocks)
