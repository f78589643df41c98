"""Words of the pages by kind, as Diátaxis has kinds: `python -m website.words [--pages]`.

A page is what the first pattern that it matches says; pages that match none are how-tos.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from website.navigation import matches

ROOT = Path(__file__).parents[1]
TUTORIAL, HOW_TO, EXPLANATION, REFERENCE, LABORATORY = "tutorial", "how-to", "explanation", "reference", "laboratory"
GUIDES = (TUTORIAL, HOW_TO, EXPLANATION)
MOST_GUIDE_WORDS = 60_000  # of all guides together
MOST_HOW_TO_WORDS = 1100  # of one: two screens, with its commands
KINDS = {
    TUTORIAL: ["README.md", "docs/quickstart.md", "docs/tutorials/*.ipynb"],
    EXPLANATION: [
        "CONTRIBUTING.md", "docs/architecture.md", "docs/life_of_a_request.md", "docs/style.md", "SECURITY.md",
    ],
    LABORATORY: ["docs/results.md", "docs/results/*.md", "docs/results/*/*.md", "CHANGELOG.md"],
    REFERENCE: [
        "docs/*_reference.md", "docs/*_rules.md", "docs/simulation.md", "docs/glossary.md", "docs/gallery/*.md",
        "docs/systems/*.md", "docs/leaderboard.md", "docs/observations.md", "docs/models.md", "docs/profiles.md",
        "docs/latency_forms.md", "docs/spec.md", "docs/artifacts.md", "docs/bounds.md", "docs/gains.md",
        "docs/learned.md", "docs/live_routers.md",
    ],
}  # fmt: skip
WORD = re.compile(r"\S*\w\S*")


def pages() -> list[Path]:
    """Every page that is a file of the repository, in order."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")])


def kind_of(page: Path) -> str:
    name = page.relative_to(ROOT).as_posix()
    return next((kind for kind, patterns in KINDS.items() if any(matches(name, one) for one in patterns)), HOW_TO)


def words_of(page: Path) -> int:
    """Words of a page with its commands and code; of a notebook without what they print."""
    text = page.read_text("utf-8")
    if page.suffix == ".ipynb":
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    return len(WORD.findall(text))


def lines(every_page: bool) -> Iterator[str]:
    """A line for each kind, and below it for each of its pages if every_page."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for page in pages():
        found[kind_of(page)][page.relative_to(ROOT).as_posix()] = words_of(page)
    for kind in (*GUIDES, REFERENCE, LABORATORY):
        yield f"{sum(found[kind].values()):8,}  {kind}, {len(found[kind])} pages"
        for name in sorted(found[kind], key=lambda one: -found[kind][one]) if every_page else ():
            yield f"{found[kind][name]:8,}      {name}"
    guides = sum(sum(found[kind].values()) for kind in GUIDES)
    yield f"{guides:8,}  guides: tutorials, how-tos and explanations (at most {MOST_GUIDE_WORDS:,})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m website.words", description=__doc__)
    parser.add_argument("--pages", action="store_true", help="every page, the longest first")
    print("\n".join(lines(parser.parse_args().pages)))


if __name__ == "__main__":
    main()
