"""What a claim says in words: the Markdown file beside its code, with the same name."""

import dataclasses
from pathlib import Path

from experiments.prose import sections
from servegym.errors import ExperimentError


@dataclasses.dataclass(frozen=True)
class Prose:
    """The sections of a claim's file; those from `caption` on may be missing.

    figure: where the paper shows it. paper: what it says there. hypothesis: the same, measurable, margins in numbers.
    refuted_by: what would show it wrong. caption: what the picture shows, where there is one.
    in_short: the reason of the verdict in a line, for the index; empty: the check that fails most, with its numbers.
    reading: what the full run showed, and why as far as checks tell. Written after it, as only `in_short` is too.
    """

    figure: str
    paper: str
    hypothesis: str
    refuted_by: str
    caption: str = ""
    in_short: str = ""
    reading: str = ""


FOLDER = Path(__file__).parents[1]
FIELDS = {field.name.replace("_", " ").capitalize(): field for field in dataclasses.fields(Prose)}


def prose_of(id: str) -> Prose:
    """The words of a claim. Raises ExperimentError where a section is missing or unknown, OSError without a file."""
    path = FOLDER / f"{id.replace('-', '_')}.md"
    texts = sections(path)
    missing = [name for name, field in FIELDS.items() if field.default is dataclasses.MISSING and name not in texts]
    unknown = [name for name in texts if name not in FIELDS]
    if missing or unknown:
        wrong = [f"no section {name!r}" for name in missing] + [f"an unknown section {name!r}" for name in unknown]
        raise ExperimentError(f"{path}: {', '.join(wrong)}; there should be {', '.join(FIELDS)}")
    return Prose(**{FIELDS[name].name: text for name, text in texts.items()})
