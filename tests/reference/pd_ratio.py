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
        outlast: float = 1.5,
        first_s: float = 60.0,
    ) -> None:
        self.outlast, self.first_s = outlast, first_s
        self.interval_s, self.kept, self.rest_checks = interval_s, max(1 - interval_s / window_s, 0.0), rest_checks
        self.high = {"prefill": prefill_high, "decode": decode_high}
        self.low = {"prefill": prefill_low, "decode": decode_low}
        self.least = {"prefill": least_prefill, "decode": least_decode}

    def prepare(self, requests: list[Request], snapshots: list[EngineSnapshot]) -> None:
        super().prepare(requests, snapshots)
        self.averages: dict[str, float] = {}
        self.since = 0  # checks
        self.over: str | None = None
        self.over_since_s = 0.0
        self.phases_s: list[float] = []
        self.first: int | None = None  # engines that prefill

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
        self.note_turn(now_s)
        prefills = sum(v.role == "prefill" for v in self.snapshots)
        self.first = prefills if self.first is None else self.first
        self.since = 0 if any(v.changing for v in self.snapshots) else self.since + 1
        if self.since <= self.rest_checks:
            return now
        for role, other in (("prefill", "decode"), ("decode", "prefill")):
            rest = numbers[other] - 1
            has_room = self.averages[other] * numbers[other] <= self.low[other] * rest
            if self.averages[role] > self.high[role] and rest >= self.least[other] and has_room:
                back = prefills < self.first if role == "prefill" else prefills > self.first
                return self.with_one_more(role, other, now, None if back else now_s)
        return now

    def note_turn(self, now_s: float) -> None:
        shares = {
            role: self.averages[role] * self.high[other]
            for role, other in (("prefill", "decode"), ("decode", "prefill"))
        }
        larger = "prefill" if shares["prefill"] >= shares["decode"] else "decode"
        if larger == self.over or self.averages[larger] <= self.low[larger]:
            return
        if self.over is not None:
            self.phases_s.append(now_s - self.over_since_s)
        self.over, self.over_since_s = larger, now_s

    def pays(self, change_s: float, now_s: float) -> bool:
        lasted_s = now_s - self.over_since_s
        mean_s = sum(self.phases_s) / len(self.phases_s) if self.phases_s else self.first_s
        stays_s = mean_s - lasted_s if lasted_s < 2 * mean_s else lasted_s
        drains = [
            max((r.emitted for r in v.decoding), default=0) * v.fit.batch([(1, r.context, True) for r in v.decoding])
            for v in self.open_engines("decode")
        ]
        takes_s = 2 * change_s + sum(drains) / max(len(drains), 1)
        return self.outlast == 0 or stays_s >= self.outlast * takes_s

    def with_one_more(self, role: str, other: str, now: list[str], now_s: float | None) -> list[str]:
        able = [v for v in self.open_engines(other) if not v.role_fixed]
        if not able:
            return now
        chosen_one = min(able, key=lambda v: (v.requests, -v.index))
        if now_s is not None and not self.pays(chosen_one.role_change_s, now_s):
            return now
        self.since = 0
        chosen = chosen_one.index
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
