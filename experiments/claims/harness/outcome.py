"""What came out of a claim: verdicts with their numbers, as JSON has them and in words."""

import dataclasses
import functools
from typing import Any

import pandas as pd

from experiments.claims.harness.checks import FAILS, HOLDS, IN_PART, UNDECIDED, Check, Verdict, joined, verdict_of
from experiments.claims.harness.registry import Claim
from experiments.claims.harness.settings import FULL, Setting, Size, rules_of, served_by

VERDICT_WORDS: dict[Verdict, str] = {True: "holds", False: "does not hold", IN_PART: "holds in part"}


@dataclasses.dataclass(frozen=True)
class SettingOutcome:
    """The checks of a claim in one setting."""

    setting: Setting
    checks: list[Check]

    @functools.cached_property
    def holds(self) -> Verdict:
        return verdict_of(self.checks)

    @property
    def undecided(self) -> bool:
        """Whether the claim is not shown, and not refuted either: nothing of it fails."""
        return self.holds is False and all(check.verdict == UNDECIDED for check in self.checks if not check.examines)

    @property
    def verdict_words(self) -> str:
        return UNDECIDED if self.undecided else VERDICT_WORDS[self.holds]

    @property
    def reason(self) -> str:
        """Which checks held, failed and are undecided, with what was measured where one did not hold."""
        parts = []
        for examines, checks in grouped(self.checks).items():
            for verdict in (FAILS, UNDECIDED):
                named = [f"{check.name} ({measured(check)}, expected {check.expected})" for check in checks
                         if check.verdict == verdict]  # fmt: skip
                if named:
                    parts.append(f"{prefix(examines)}{verdict}: {'; '.join(named)}")
            if all(check.verdict == HOLDS for check in checks):
                parts.append(f"{prefix(examines)}all {len(checks)} checks hold")
        return ". ".join(parts) + "."


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A claim in all its settings. rows: one a cell. served: of each cell family, device, load, and in column "served"
    what its runs served (`served.of_cell`)."""

    claim: Claim
    size: Size
    settings: list[SettingOutcome]
    rows: pd.DataFrame
    served: pd.DataFrame

    @functools.cached_property
    def holds(self) -> Verdict:
        return joined([setting.holds for setting in self.settings])

    @property
    def verdict_words(self) -> str:
        return UNDECIDED if all(setting.undecided for setting in self.settings) else VERDICT_WORDS[self.holds]

    @property
    def is_of_record(self) -> bool:
        """Whether this is the full run on the claim's own seeds and devices, of which its reading is."""
        return self.size == self.claim.sized(FULL) and self.stand_in is None

    @property
    def stand_in(self) -> str | None:
        """The device it ran on instead of its own (`Claim.on`); None: those of its own."""
        return next((device for device in self.size.devices if served_by(device) != rules_of(device)), None)

    @functools.cached_property
    def counts(self) -> dict[str, int]:
        """How many checks of the claim itself hold, are undecided and fail, over all settings."""
        verdicts = [check.verdict for setting in self.settings for check in setting.checks if not check.examines]
        return {verdict: verdicts.count(verdict) for verdict in (HOLDS, UNDECIDED, FAILS)}

    @property
    def in_short(self) -> str:
        """The reason of the verdict in a line: the claim's own, which is of the full run on its own seeds; or the check
        that fails in most settings, or is undecided in most where none fails, with the mean of what it measured there.
        """
        if self.claim.prose.in_short and self.is_of_record:
            return self.claim.prose.in_short
        for verdict in (FAILS, UNDECIDED):
            found: dict[str, list[Check]] = {}
            for check in (one for setting in self.settings for one in setting.checks if not one.examines):
                found.setdefault(check.name, []).append(check)
            most = max(found.values(), key=lambda checks: sum(check.verdict == verdict for check in checks))
            those = [check for check in most if check.verdict == verdict]
            if those:
                means = [check.interval.mean for check in those if not check.missing]
                mean = f"mean {sum(means) / len(means):.3g}" if means else "no value"
                where = f"in {len(those)} of {len(most)} settings"
                return f"{most[0].name}: {verdict} {where} ({mean}, expected {most[0].expected})."
        return "Every check holds."

    @functools.cached_property
    def tally(self) -> dict[str, dict[str, tuple[int, int]]]:
        """By what is examined ("": the claim itself), then by check: in how many settings it holds, of how many."""
        tally: dict[str, dict[str, tuple[int, int]]] = {}
        for setting in self.settings:
            for check in setting.checks:
                of_examined = tally.setdefault(check.examines, {})
                held, settings = of_examined.get(check.name, (0, 0))
                of_examined[check.name] = held + (check.verdict == HOLDS), settings + 1
        return tally

    @property
    def reason(self) -> str:
        """In how many settings each check held, those of the claim first."""
        return " ".join(
            prefix(examines, capital=True)
            + "; ".join(f"{name}: {held} of {settings}" for name, (held, settings) in checks.items())
            + "."
            for examines, checks in self.tally.items()
        )

    def to_json(self) -> dict[str, Any]:
        """As `servegym reproduce --json` writes it: by setting, and within it by check."""
        by_setting = {
            outcome.setting.name: {_key(check): check for check in outcome.checks} for outcome in self.settings
        }
        return {
            "claim": self.claim.id,
            "figure": self.claim.prose.figure,
            "paper": self.claim.prose.paper,
            "hypothesis": self.claim.prose.hypothesis,
            "refuted_by": self.claim.prose.refuted_by,
            "measured": {
                setting: {key: check.interval.mean for key, check in checks.items()}
                for setting, checks in by_setting.items()
            },
            "interval": {
                setting: {key: [check.interval.low, check.interval.high] for key, check in checks.items()}
                for setting, checks in by_setting.items()
            },
            "expected": {
                setting: {key: str(check.expected) for key, check in checks.items()}
                for setting, checks in by_setting.items()
            },
            "verdicts": {
                setting: {key: check.verdict for key, check in checks.items()} for setting, checks in by_setting.items()
            },
            "holds": self.holds,
            "counts": self.counts,
            "in_short": self.in_short,
            "holds_by_setting": {outcome.setting.name: outcome.holds for outcome in self.settings},
            "reason": self.reason,
            "reason_by_setting": {outcome.setting.name: outcome.reason for outcome in self.settings},
            "size": dataclasses.asdict(self.size),
        }


def grouped(checks: list[Check]) -> dict[str, list[Check]]:
    """Checks by what they examine, those of the claim itself first."""
    groups: dict[str, list[Check]] = {"": []}
    for check in checks:
        groups.setdefault(check.examines, []).append(check)
    return {examines: group for examines, group in groups.items() if group}


def measured(check: Check) -> str:
    """The mean and half the width of its interval."""
    if check.missing:
        return f"none in {check.missing} of {len(check.values)} seeds"
    return check.interval.text(".3g", ".2g")


def prefix(examines: str, capital: bool = False) -> str:
    """What introduces checks that only examine."""
    if not examines:
        return ""
    return f"{'Examined' if capital else 'examined'}, {examines}: "


def _key(check: Check) -> str:
    return f"{check.examines}: {check.name}" if check.examines else check.name
