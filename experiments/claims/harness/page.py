"""The pages of results: a page a claim, with its hypothesis, numbers, verdicts and picture, and an index, in Markdown.

A run writes the pages of the claims it ran, and the index of all pages there are.

python -m experiments.claims.harness.page docs/results.md     writes the index anew
"""

import datetime
import math
import re
import sys
from pathlib import Path

from experiments.claims.harness.checks import FAILS, HOLDS, IN_PART, UNDECIDED, Check
from experiments.claims.harness.outcome import Outcome, SettingOutcome, grouped, measured
from experiments.claims.harness.registry import claims
from experiments.claims.harness.settings import FULL, NO_FAMILY, QUICK, Size, profile, rules_of, served_by
from experiments.claims.harness.settings_table import settings_table
from experiments.pages.words import with_versions
from servegym.evaluation.identity import versions
from servegym.evaluation.markdown import header, row

FAR = 10.0  # halves of an interval: how far beyond does not matter
MARKS = {HOLDS: "yes", FAILS: "**no**", UNDECIDED: "?"}
IMAGES, TABLES = "images", "tables"
INTRODUCTION = Path(__file__).with_name("introduction.md")
BESIDE = "\nOther measurements:\n"
OF_PAGE = re.compile(
    r"\*\*Paper\*\* \((?P<figure>.*?)\): .*?\*\*Verdict\*\*: (?P<verdict>[a-z ]+)\. "
    r"Checks: (?P<checks>.*?)\. Settings: (?P<settings>.*?)\.\n\n\*\*In short\*\*: (?P<in_short>.*?)\n\n", re.S
)  # fmt: skip


def write_pages(outcomes: list[Outcome], index: Path, date: datetime.date) -> list[Path]:
    """Write a page a claim into the folder named like the index beside it, pictures into `images/` and long tables into
    `tables/` beside the index, and the index of all pages; returns the files."""
    folder = index.parent / index.stem
    folder.mkdir(parents=True, exist_ok=True)
    written = [index]
    for outcome in outcomes:
        written += write_page(outcome, folder, date)
    index.write_text(render_index(folder), encoding="utf-8")
    return written


def write_page(outcome: Outcome, folder: Path, date: datetime.date) -> list[Path]:
    """Write the page of one claim, its picture and its table; returns the files."""
    claim, page, appendix, written = outcome.claim, folder / f"{outcome.claim.id}.md", "", []
    if claim.appendix is not None:
        tables = folder.parent / TABLES
        tables.mkdir(exist_ok=True)
        appendix = claim.appendix(outcome.rows, tables)
        written += [table for table in [tables / f"{claim.id}.csv"] if table.exists()]
    if claim.picture is not None:
        picture = folder.parent / IMAGES / f"{claim.id}.png"
        picture.parent.mkdir(exist_ok=True)
        claim.picture(outcome.rows, picture)
        written.append(picture)
    page.write_text(render(outcome, date, appendix), encoding="utf-8")
    return [page, *written]


def render_index(folder: Path) -> str:
    """The index of the pages in a folder, in the order of the claims."""
    order = {id: place for place, id in enumerate(claims())}
    pages = sorted(folder.glob("*.md"), key=lambda page: (order.get(page.stem, len(order)), page.stem))
    lines, others = [], []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        of_page = OF_PAGE.search(text)
        link = f"[{page.stem}]({folder.name}/{page.name})"
        if of_page is None:
            others.append(f"- {link}: {text.partition(chr(10))[0].removeprefix('# ')}")
        else:
            checks, settings = (" / ".join(re.findall(r"\d+", of_page[name])) for name in ("checks", "settings"))
            lines.append(row(link, of_page["figure"], of_page["verdict"], checks, settings, of_page["in_short"]))
    beside = [BESIDE, *others] if others else []
    return INTRODUCTION.read_text(encoding="utf-8") + "\n".join([*lines, *beside]) + "\n"


def render(outcome: Outcome, date: datetime.date, appendix: str = "") -> str:
    """The page of a claim."""
    claim, size = outcome.claim, outcome.size
    seeds = [seed for seed in size.seeds if seed in set(outcome.rows["seed"])]  # a claim may take some of them
    parts = [
        f"# {claim.id}\n",
        f"`{command(outcome)}` ({size.name} size) on {date.isoformat()}, with {with_versions(versions())}: "
        f"{len(seeds)} seeds ({seeds[0]} to {seeds[-1]}), {independent(size)}. "
        "How to read it: [results](../results.md).\n",
        *moved(outcome),
        f"**Paper** ({claim.prose.figure}): {claim.prose.paper}\n",
        f"**Hypothesis**: {claim.prose.hypothesis}\n",
        f"**Refuted by**: {claim.prose.refuted_by}\n",
        verdict(outcome),
        f"**In short**: {outcome.in_short}\n",
    ]
    if claim.prose.reading and outcome.is_of_record:
        parts.append(f"**Reading**: {claim.prose.reading}\n")
    if claim.picture is not None:
        parts.append(f"![{claim.prose.caption}](../{IMAGES}/{claim.id}.png)\n\n{claim.prose.caption}\n")
    for device in size.devices:
        parts.append(device_table(device, [one for one in outcome.settings if one.setting.device == device]))
    parts += examined_table(outcome)
    if appendix:
        parts.append(appendix)
    return "\n".join([*parts, settings_table(outcome.served)])


def command(outcome: Outcome) -> str:
    """That runs the claim so."""
    size = outcome.size
    quick, usual = (" --quick", QUICK) if size.name == QUICK.name else ("", FULL)
    seeds = "" if size.seeds == usual.seeds else f" --seeds {size.seeds[0]}"
    device = ""
    if outcome.stand_in is not None:
        device = f" --device {served_by(outcome.stand_in)} --instead-of {rules_of(outcome.stand_in)}"
    return f"servegym reproduce {outcome.claim.id}{quick}{seeds}{device}"


def moved(outcome: Outcome) -> list[str]:
    """What a page says first of a claim that did not run on its own devices."""
    if outcome.stand_in is None:
        return []
    served, rules = profile(outcome.stand_in), rules_of(outcome.stand_in)
    return [
        f"**Not the claim's own device**: {served.title} ({served.basis}) runs its settings on {rules}, and no others, "
        f"at loads relative to its own saturation, with the SLOs that the claim has for the model of {rules}.\n"
    ]


def independent(size: Size) -> str:
    """What of the settings are results of their own."""
    families, devices = len(size.families), len(size.devices)
    if families * devices == 1:
        return "one setting"
    if size.families == NO_FAMILY:
        return f"{devices} devices, a result each"
    if families == 1:
        return f"the same requests on {devices} devices: one result, seen on each"
    own = f"requests and arrivals of their own for {families} families"
    return own if devices == 1 else f"{own}, shared by {devices} devices: {families} results, each seen on all devices"


def verdict(outcome: Outcome) -> str:
    """In words, with how many checks of the claim itself, and settings, it rests on."""
    checks, verdicts = outcome.counts, [setting.holds for setting in outcome.settings]
    hold, in_part, not_held = (verdicts.count(wanted) for wanted in (True, IN_PART, False))
    return (
        f"**Verdict**: {outcome.verdict_words}. Checks: {checks[HOLDS]} hold, {checks[UNDECIDED]} undecided, "
        f"{checks[FAILS]} fail. Settings: {hold} hold, {in_part} in part, {not_held} do not.\n"
    )


def device_table(device: str, settings: list[SettingOutcome]) -> str:
    """The checks of the claim itself, a column a family; one column where the device itself is the setting."""
    lines = header(device, "expected", *(one.setting.family or "measured" for one in settings))
    of_settings = [[check for check in one.checks if not check.examines] for one in settings]
    for checks in zip(*of_settings, strict=True):
        lines.append(row(checks[0].name, str(checks[0].expected), *map(cell, checks)))
    lines.append(row("**all**", "", *(f"**{one.verdict_words}**" for one in settings)))
    return "\n".join(lines) + "\n"


def examined_table(outcome: Outcome) -> list[str]:
    """What was examined beside the claim: of each check, the mean measured in each setting, and how many hold."""
    groups = [grouped([check for check in one.checks if check.examines]) for one in outcome.settings]
    if not groups[0]:
        return []
    lines = header("examined", "check", "expected", "lowest to highest mean of a setting", "holds in settings")
    for examines in groups[0]:
        for checks in zip(*(group[examines] for group in groups), strict=True):
            means = [check.interval.mean for check in checks if not check.missing]
            span = f"{min(means):.3g} to {max(means):.3g}" if means else "none"
            held = sum(check.verdict == HOLDS for check in checks)
            lines.append(row(examines, checks[0].name, str(checks[0].expected), span, f"{held} of {len(checks)}"))
    return ["\n".join(lines) + "\n"]


def cell(check: Check) -> str:
    """What was measured, the verdict, and how far that is from another (`Check.distance`)."""
    text = f"{measured(check)} {MARKS[check.verdict]}"
    return text if math.isnan(check.distance) else f"{text} ({in_halves(check.distance)})"


def in_halves(distance: float) -> str:
    return ">10" if distance > FAR else "<-10" if distance < -FAR else f"{distance:.1f}"


if __name__ == "__main__":
    index_path = Path(sys.argv[1])
    index_path.write_text(render_index(index_path.with_suffix("")), encoding="utf-8")
