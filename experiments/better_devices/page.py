"""The page of better devices, from what the study has kept.

SERVEGYM_DATA=DATA python -m experiments.better_devices.page docs/results/better-devices.md
"""

import argparse
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from experiments.better_devices import tuned_table, verdicts
from experiments.better_devices.devices import JUDGED, KINDS, RECIPE, SLOWED, TERMS
from experiments.better_devices.plan import PLAN, Planned, left_out
from experiments.better_devices.study import OLD, OUT, verdicts_file
from experiments.better_devices.verdicts import Change, Found, changes, counts
from experiments.pages.words import with_versions
from servegym.evaluation.identity import versions
from servegym.evaluation.markdown import header, row

WORDS, READING = (Path(__file__).with_name(name) for name in ("better_devices.md", "reading.md"))
COMMAND = "SERVEGYM_DATA=DATA python -m experiments.better_devices"
# As expected beforehand, of the checks.
MOST_CHANGES = {TERMS: 1 / 20, JUDGED: 1 / 5, SLOWED: 1 / 5, RECIPE: 1 / 5}
MOST_FLIPS = {TERMS: 0.0, JUDGED: 1 / 20, SLOWED: 1 / 50, RECIPE: 1 / 50}


class Again(NamedTuple):
    """A claim on an old profile: the checks of its page in the families that were run again, and those of each
    stand-in that has been run."""

    planned: Planned
    page: list[Found]
    new: dict[str, list[Found]]

    def changes(self, kind: str) -> list[Change]:
        return changes(self.page, self.new.get(kind, []), f"the page of {self.planned.claim}")


def read(planned: Planned, pages: Path, out: Path) -> Again:
    page = pages / f"{planned.claim}.md"
    of_page = verdicts.of_page(page.read_text(encoding="utf-8"), planned.old, str(page))
    found = {kind: verdicts.load(verdicts_file(planned, kind, out)) for kind in (OLD, *KINDS)}
    families = [one for one in of_page if one.family != planned.without]
    return Again(planned, families, {kind: some for kind, some in found.items() if some is not None})


def render(claims: list[Again], tunings: str, date: datetime.date) -> str:
    parts = [
        "# Claims and tunings on better devices\n",
        f"Written by `{COMMAND}.page docs/results/better-devices.md` on {date.isoformat()}, with "
        f"{with_versions(versions())}; do "
        f"not edit. What it prints was run, and is kept, by `{COMMAND}.study`. Any claim runs on any device with\n",
        "    servegym reproduce proserve-fig15 --device mine.json --instead-of a100-llama3-8b\n",
        WORDS.read_text(encoding="utf-8").partition("\n\n")[2],
        "## What was found\n",
        *found(claims),
        READING.read_text(encoding="utf-8").partition("\n\n")[2],
        "## By claim\n",
        "Checks that hold / are undecided / fail, on the page (old profile) and again; how many of them are other than "
        "there, and how many of these went from holding to failing or back.\n",
        *by_claim(claims),
        "\n## Checks that changed\n",
        "Means and half of their 95 % intervals. **Bold**: from holding to failing, or back.\n",
        *changed(claims),
        "\n## Tunings\n",
        tunings,
        "## What was not run again\n",
        *not_run(claims),
    ]
    return "\n".join(parts).rstrip() + "\n"


def found(claims: list[Again]) -> Iterator[str]:
    """The hypotheses about checks, with what was found."""
    yield from header("", "checks", "as on the page", "changed", "flipped", "hypothesis")
    for kind, words in KINDS.items():
        all_of_them = [change for one in claims for change in one.changes(kind)]
        other = sum(change.changed for change in all_of_them)
        flips = sum(change.flips for change in all_of_them)
        total = len(all_of_them)
        holds = other <= MOST_CHANGES[kind] * total and flips <= MOST_FLIPS[kind] * total
        yield row(
            f"*{kind}*: {words}", str(total), f"{total - other} ({(total - other) / max(1, total):.0%})",
            f"{other} ({other / max(1, total):.0%})", f"{flips} ({flips / max(1, total):.0%})",
            ("holds" if holds else "refuted") if total else "not run",
        )  # fmt: skip
    same = [change for one in claims for change in one.changes(OLD)]
    off = sum(change.old.measured != change.new.measured for change in same)
    ids = ", ".join(dict.fromkeys(one.planned.claim for one in claims if OLD in one.new))
    yield f"\nOn the old profile itself {ids} was run again: {off} of {len(same)} numbers are not its page's.\n"


def by_claim(claims: list[Again]) -> Iterator[str]:
    again = (column for kind in KINDS for column in (kind, "changed, flipped"))
    yield from header("claim", "instead of", "families", "page", *again)
    for one in claims:
        planned, cells = one.planned, []
        for kind in KINDS:
            changed = one.changes(kind)
            flips = sum(change.flips for change in changed)
            cells += (
                [counts(one.new[kind]), f"{sum(change.changed for change in changed)}, {flips}"]
                if kind in one.new
                else ["-", "-"]
            )
        families = f"without {planned.without}" if planned.without else "all"
        yield row(f"[{planned.claim}]({planned.claim}.md)", f"`{planned.old}`", families, counts(one.page), *cells)


def changed(claims: list[Again]) -> Iterator[str]:
    """A row a check that is another on some stand-in: what its page says, and what was measured on each."""
    yield from header("claim", "setting of", "check", "expected", "page", *KINDS)
    for one in claims:
        by_kind = {kind: {change.old.key: change for change in one.changes(kind)} for kind in KINDS}
        for old in one.page:
            here = [by_kind[kind].get(old.key) for kind in KINDS]
            if any(change is not None and change.changed for change in here):
                setting = " on ".join(filter(None, (old.family, one.planned.old)))
                yield row(one.planned.claim, setting, old.name, old.expected, f"{old.measured}, {old.verdict}",
                          *map(in_words, here))  # fmt: skip


def in_words(change: Change | None) -> str:
    if change is None:
        return "-"
    verdict = f"**{change.new.verdict}**" if change.flips else change.new.verdict
    return f"{change.new.measured}, {verdict}" if change.changed else f"{change.new.measured}, the same"


def not_run(claims: list[Again]) -> Iterator[str]:
    yield from header("claim", "old profiles without a run", "families not run on the others")
    for id, olds, families in left_out():
        yield row(f"[{id}]({id}.md)", ", ".join(f"`{old}`" for old in olds) or "-", ", ".join(families) or "-")
    waiting = [f"{one.planned.claim} on {kind}" for one in claims for kind in one.planned.kinds if kind not in one.new]
    if waiting:
        yield f"\nPlanned and not run: {'; '.join(waiting)}."


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("page", type=Path, help="where it is written, beside the pages of claims and tunings")
    parser.add_argument("--out", type=Path, default=OUT, help="where runs are kept")
    asked = parser.parse_args()
    pages = asked.page.parent
    claims = [read(planned, pages, asked.out) for planned in PLAN]
    tunings = tuned_table.render(pages, asked.out)
    asked.page.write_text(render(claims, tunings, datetime.date.today()), encoding="utf-8")


if __name__ == "__main__":
    main()
