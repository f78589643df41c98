"""The checks of a claim in one setting: as its page has them, and as they came out on a device that stands in."""

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from experiments.claims.harness.checks import FAILS, HOLDS, UNDECIDED
from experiments.claims.harness.outcome import Outcome, measured
from experiments.claims.harness.page import MARKS
from servegym.errors import ExperimentError

WORDS = {mark: verdict for verdict, mark in MARKS.items()}
MARK = "|".join(map(re.escape, WORDS))
DISTANCE = r"(?: \([<>]?-?[\d.]+\))?"  # `page.in_halves`
CELL = re.compile(rf"(?P<measured>.+) (?P<mark>{MARK}){DISTANCE}")


class Found(NamedTuple):
    """A check of the claim itself. measured: mean and half of its interval, as pages print them."""

    family: str
    name: str
    expected: str
    measured: str
    verdict: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self[:3]


def of_outcome(outcome: Outcome) -> list[Found]:
    return [
        Found(one.setting.family, check.name, str(check.expected), measured(check), check.verdict)
        for one in outcome.settings
        for check in one.checks
        if not check.examines
    ]


def save(found: list[Found], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([one._asdict() for one in found], indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> list[Found] | None:
    """What was saved; None: it has not been run."""
    return [Found(**one) for one in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else None


def of_page(text: str, device: str, where: str) -> list[Found]:
    """The checks in the table of a device on a claim's page. Raises ExperimentError where there is no such table."""
    lines = iter(text.splitlines())
    head = next((line for line in lines if line.startswith(f"| {device} | expected |")), None)
    if head is None:
        raise ExperimentError(f"{where} has no table of {device}; it should be the page of a claim with settings on it")
    families = ["" if name == "measured" else name for name in _cells(head)[2:]]
    return list(_rows(lines, families, where))


def _rows(lines: Iterator[str], families: list[str], where: str) -> Iterator[Found]:
    next(lines)
    for line in lines:
        name, expected, *numbers = _cells(line)
        if name == "**all**":
            return
        for family, number in zip(families, numbers, strict=True):
            cell = CELL.fullmatch(number)
            if cell is None:
                raise ExperimentError(f"{where}: {number!r} of {name} is no measured check")
            yield Found(family, name, expected, cell["measured"], WORDS[cell["mark"]])


def _cells(line: str) -> list[str]:
    return line.removeprefix("| ").removesuffix(" |").split(" | ")


@dataclasses.dataclass(frozen=True)
class Change:
    """A check before and after, on another device."""

    old: Found
    new: Found

    @property
    def changed(self) -> bool:
        return self.old.verdict != self.new.verdict

    @property
    def flips(self) -> bool:
        """From holding to failing, or back."""
        return {self.old.verdict, self.new.verdict} == {HOLDS, FAILS}


def changes(old: list[Found], new: list[Found], where: str) -> list[Change]:
    """Each check that was run again beside the page's. Raises ExperimentError for one that the page does not have."""
    before = {one.key: one for one in old}
    if len(before) < len(old):
        raise ExperimentError(f"{where}: two checks of one setting are named alike")
    for one in new:
        if one.key not in before:
            raise ExperimentError(f"{where} has no check {one.name!r} of {one.family}, expected {one.expected}")
    return [Change(before[one.key], one) for one in new]


def counts(found: list[Found]) -> str:
    """How many hold, are undecided and fail."""
    verdicts = [one.verdict for one in found]
    return " / ".join(str(verdicts.count(verdict)) for verdict in (HOLDS, UNDECIDED, FAILS))
