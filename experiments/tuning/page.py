"""The page of a tuning's results in the documentation: what its studies came to, from the files of its folder.

python -m experiments.tuning.page results/tune-proserve-a100-1234abcd docs/results
"""

import datetime
import sys
from pathlib import Path

from experiments.prose import sections
from experiments.tuning.whole import by_trace, plot_studies, read_tuning, validated
from servegym.errors import ServegymError
from servegym.evaluation.intervals import SAME, Interval, verdict
from servegym.evaluation.markdown import header, row
from servegym.tuners.studies.analysis import conclusions, optimism, parameters_of
from servegym.tuners.studies.candidates import DEFAULTS, SCHEDULE, WINNER
from servegym.tuners.studies.plots import plot_slices
from servegym.tuners.studies.results import StudyResults, of_candidate, paired

IMAGES = "images"
READINGS = Path(__file__).with_name("readings.md")
ENGINE, ROUTER, JOINT = "engine", "router", "joint"  # names of studies in the configurations that ship
PICTURED = (JOINT, ENGINE)  # the study whose slices are shown: the first of these there is, or the first of all


def write_page(directory: Path, folder: Path, date: datetime.date) -> list[Path]:
    """Write `tuning-NAME.md` into a folder of the documentation, pictures into `images/` beside it; returns the files.

    Raises TuningError as `read_tuning` does.
    """
    studies = read_tuning(directory)
    name = f"tuning-{studies[0].document['tuning']}"
    images = folder.parent / IMAGES
    images.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    by_name = {results.name: results for results in studies}
    shown = next((by_name[one] for one in PICTURED if one in by_name), studies[0])
    pictures = [plot_studies(studies, images / f"{name}.png"), plot_slices(shown, images / f"{name}-{shown.name}.png")]
    page = folder / f"{name}.md"
    text = render(studies, shown, date, [picture.name for picture in pictures], reading_of(name))
    page.write_text(text, encoding="utf-8")
    return [page, *pictures]


def reading_of(name: str) -> str:
    """What was written about a page after it had been measured (readings.md); empty: nothing."""
    return sections(READINGS).get(name, "")


def render(
    studies: list[StudyResults], shown: StudyResults, date: datetime.date, pictures: list[str], reading: str
) -> str:
    """The page. reading: what a person made of it."""
    first = studies[0]
    config, document = first.config, first.document
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    trials = document["trials"]["asked_for"]
    command = f"servegym tune {document['tuning']}"
    parts = [
        f"# Tuned parameters: {document['tuning']}\n",
        f"`{command}` on {date.isoformat()}, with {versions}: {trials} trials a study, sampler {config['sampler']}, "
        f"pruner {config['pruner']}, seed {config['seed']}. How to read it: [tuning](../tuning.md).\n",
        f"**Asked**: {document['description']}\n",
        _panels(config),
        f"![Mean score of each study with its defaults and as tuned](../{IMAGES}/{pictures[0]})\n",
        f"Mean {first.objective.doc} over the runs of the test, which no trial and no choice saw; differences are "
        "paired by seed, with 95 % intervals by stratified bootstrap. *SLO attainment*: of the defaults and as tuned, "
        "on the same runs. *Tuned traces*: the same difference in validation, on fresh seeds of the traces that were "
        "tuned on, where the winner was chosen.\n",
        _summary(studies),
        "## What was found\n",
        *_findings(studies),
        *([f"**Reading** (written after the run): {reading}\n"] if reading else []),
        "## Each study\n",
        f"![What each parameter does to the score of {shown.name}](../{IMAGES}/{pictures[1]})\n",
        *(_study(results) for results in studies),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _panels(config: dict) -> str:
    lines = header("", "traces", "devices", "loads", "seeds of a cell", "requests", "first seed")
    for which in ("panel", "validation", "test"):
        panel = config[which]
        cells = [", ".join(map(str, panel[key])) for key in ("trace", "device", "load")]
        lines.append(row(which, *cells, str(panel["seeds"]), str(panel["requests"]), f"{panel['first_seed']:,}"))
    engines = config["panel"]["engines"]
    return "\n".join(lines) + f"\n\n{engines} engine{'s' * (engines > 1)}, SLOs {config['panel']['slo']}.\n"


def _summary(studies: list[StudyResults]) -> str:
    joint = {results.name: results for results in studies}.get(JOINT)
    against = [f"{JOINT} less it, both tuned"] if joint else []
    lines = header(
        "study",
        "searched",
        "defaults",
        "tuned",
        "difference",
        "SLO attainment",
        "the same difference, tuned traces",
        "schedule less tuned",
        *against,
    )
    for results in studies:
        change, schedule = results.tested(WINNER, DEFAULTS), results.tested(SCHEDULE, WINNER)
        searched = ", ".join(f"`{name}`" for name in results.parameters.drop_duplicates("variable")["parameter"])
        up = results.objective.larger_is_better
        tuned = "defaults kept" if results.kept_defaults else f"{change.in_words()}: {verdict(change, up)}"
        cells = [
            results.name,
            searched,
            f"{results.test_mean(DEFAULTS):.4f}",
            f"{results.test_mean(WINNER):.4f}",
            tuned,
            " -> ".join(f"{attainment(results, one):.3f}" for one in (DEFAULTS, WINNER)),
        ]
        cells += ["" if results.kept_defaults else validated(results).in_words(), schedule.in_words()]
        if joint:
            cells.append("" if results is joint else between(joint, results).in_words())
        lines.append(row(*cells))
    return "\n".join(lines) + "\n"


def attainment(results: StudyResults, candidate: str) -> float:
    """Mean share of requests that met their SLOs over the runs of the test: a gain can be had by starving some."""
    return float(of_candidate(results.test, candidate)["slo_attainment"].mean())


def between(one: StudyResults, other: StudyResults) -> Interval:
    """By how much the winner of one study differs from that of another on the same requests of the test."""
    return paired(of_candidate(one.test, WINNER), of_candidate(other.test, WINNER), one.objective.figure)


def _findings(studies: list[StudyResults]) -> list[str]:
    """What the figures say of the hypotheses that the shipped configurations state, where their studies are there."""
    by_name = {results.name: results for results in studies}
    lines = []
    if ENGINE in by_name:
        change = by_name[ENGINE].tested(WINNER, DEFAULTS)
        lines.append(f"H1, gamma and eta as tuned beat the defaults: {_holds(change)}: {change.in_words()}.")
    if {ENGINE, ROUTER, JOINT} <= by_name.keys():
        for name in (ENGINE, ROUTER):
            change = between(by_name[JOINT], by_name[name])
            verdict_of = "fails" if change.high < 0 else "holds" if change.low > 0 else SAME
            lines.append(f"H2, {JOINT} is at least as good as {name} alone: {verdict_of}: {change.in_words()}.")
    if JOINT in by_name:
        point, more = by_name[JOINT].tested(WINNER, DEFAULTS), by_name[JOINT].tested(SCHEDULE, WINNER)
        verdict_of = "holds" if more.mean < point.mean else "fails"
        if more.low <= 0 <= more.high and point.low <= 0 <= point.high:
            verdict_of = "undecided, neither can be told from 0"
        lines.append(
            f"H3, parameters for each load add less to the tuned point than that adds to the defaults ({JOINT}): "
            f"{verdict_of}: {more.in_words()} and {point.in_words()}."
        )
    better = max if studies[0].objective.larger_is_better else min
    best = better(studies, key=lambda results: results.test_mean(WINNER))
    lines.append(f"The best mean, all being tuned, has {best.name}: {best.test_mean(WINNER):.4f}.")
    lucks = [luck for luck in map(optimism, studies) if luck is not None and luck.validation is not None]
    if lucks:
        panel, fresh = (sum(getattr(luck, name) for luck in lucks) / len(lucks) for name in ("panel", "validation"))
        lines.append(
            f"Luck: over the studies the best trial was ahead of the defaults by {panel:+.4f} on the panel it was "
            f"chosen on, and by {fresh:+.4f} on fresh seeds of the same traces."
        )
    return ["\n".join(f"- {line}" for line in lines) + "\n"]


def _holds(change: Interval) -> str:
    if change.low > 0:
        return "holds"
    return "fails" if change.high <= 0 else "undecided, the interval holds 0"


def _study(results: StudyResults) -> str:
    labels = ", ".join(f"{role} `{label}`" for role, label in results.labels.items())
    count = results.document["trials"]
    rows = parameters_of(results)
    lines = [
        f"### {results.name}\n",
        f"Winner: {labels}. Trials: {count['complete']} complete, {count['pruned']} pruned.\n",
        *(f"- {line}" for line in conclusions(results)),
        *_traces(results),
        "",
        *header(*rows[0]),
        *(row(*cells.values()) for cells in rows),
    ]
    return "\n".join(lines) + "\n"


def _traces(results: StudyResults) -> list[str]:
    if results.kept_defaults:
        return []
    found = [f"{trace} {change.in_words()}" for trace, change in by_trace(results).items()]
    return [f"- Winner against defaults, by trace: {', '.join(found)}."]


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print(__doc__.strip().splitlines()[-1], file=sys.stderr)
        return 2
    try:
        for path in write_page(Path(arguments[0]), Path(arguments[1]), datetime.date.today()):
            print(path)
        print("then: make docs, which writes the index of the results anew")
    except ServegymError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
