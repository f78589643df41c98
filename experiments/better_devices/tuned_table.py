"""What a published tuning is worth on other devices, and what tuning there finds, as tables."""

from collections.abc import Iterator
from pathlib import Path

from experiments.better_devices import tuned
from experiments.better_devices.devices import JUDGED, TERMS
from experiments.better_devices.study import OLD, tuned_device
from experiments.tuning.whole import read_study, validated
from servegym.evaluation.intervals import Interval
from servegym.evaluation.markdown import header, row
from servegym.evaluation.panels.statistics import bootstrap, difference
from servegym.evaluation.panels.tables import TDG, score_array
from servegym.tuners.studies.analysis import parameters_of
from servegym.tuners.studies.candidates import DEFAULTS, WINNER
from servegym.tuners.studies.results import OUTCOME_FILE, StudyResults

DEVICES = {OLD: "old profile", TERMS: TERMS, JUDGED: JUDGED}


def render(pages: Path, out: Path) -> str:
    """pages: of results, with that of the tuning."""
    link = f"[{tuned.TUNING}]({tuned.PAGE})"
    return "\n".join(
        [
            f"**What was published** on {link}, on the test of that page (same traces, loads and seeds), with others "
            "that nobody tuned: mean TDG ratio, and its difference to the defaults with a 95 % interval.\n",
            *published(pages, out),
            f"\n**Tuned again** on *{JUDGED}*, each study with the trials of the page: the difference of its winner to "
            "the defaults there, beside that on the page, and its parameters.\n",
            *again(out),
            "",
        ]
    )


def published(pages: Path, out: Path) -> Iterator[str]:
    names = ["defaults", *(f"{study} as tuned" for study in tuned.STUDIES), *(text for text in tuned.OTHERS)]
    columns: list[list[str]] = []
    for kind in DEVICES:
        evaluation = tuned.evaluation(tuned_device(kind, out), pages / tuned.PAGE)
        rows = tuned.evaluate(tuned_device(kind, out), pages / tuned.PAGE, out / "evaluation")
        scores = [score_array(rows, label, TDG) for label in evaluation.candidates]
        columns.append([cell(bootstrap(difference, one, scores[0]), one.mean()) for one in scores])
    yield from header("", "policies", *DEVICES.values())
    texts = tuned.texts(pages / tuned.PAGE)
    for name, text, *cells in zip(names, texts, *columns, strict=True):
        yield row("nothing tuned" if name == text else name, f"`{text}`", *cells)


def cell(change: Interval, mean: float) -> str:
    return f"{mean:.4f}" if change.low == change.high == 0 else f"{mean:.4f}, {change.in_words()}"


def again(out: Path) -> Iterator[str]:
    yield from header("study", "parameter", "default", "winner", "difference on the test", "on the tuned traces")
    for study in tuned.STUDIES:
        folder = out / "tuning" / study
        if (folder / OUTCOME_FILE).exists():
            yield from of_study(read_study(folder))
        else:
            yield row(study, "not run", "", "", "", "")


def of_study(results: StudyResults) -> Iterator[str]:
    kept = results.kept_defaults
    gains = ["defaults kept", ""] if kept else [
        results.tested(WINNER, DEFAULTS).in_words(), validated(results).in_words()
    ]  # fmt: skip
    for place, parameter in enumerate(parameters_of(results)):
        first = [results.name, *gains] if place == 0 else ["", "", ""]
        yield row(first[0], parameter["parameter"], parameter["default"], parameter["winner"], *first[1:])
