"""All studies of a tuning: read, by trace, and their picture."""

import json
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from servegym.errors import TuningError
from servegym.evaluation.intervals import Interval
from servegym.evaluation.plots import DOTS_PER_INCH, dress
from servegym.tuners.studies.candidates import DEFAULTS, WINNER
from servegym.tuners.studies.plots import GREY, INK, name_of_figure
from servegym.tuners.studies.results import OUTCOME_FILE, TABLES, StudyResults, of_candidate, paired
from servegym.tuners.studies.tuning import CONFIG_FILE


def read_tuning(directory: Path) -> list[StudyResults]:
    """The finished studies of a tuning, in its order. Raises TuningError if there is none."""
    path = directory / CONFIG_FILE
    try:
        names = json.loads(path.read_text(encoding="utf-8"))["studies"]
    except OSError as error:
        raise TuningError(f"{path}: {error.strerror}; name a folder of `servegym tune`") from None
    except (ValueError, KeyError, TypeError):
        raise TuningError(f"{path} is damaged; run the same `servegym tune` again") from None
    found = [read_study(directory / name) for name in names if (directory / name / OUTCOME_FILE).exists()]
    if not found:
        raise TuningError(f"{directory}: none of its studies is through")
    return found


def read_study(folder: Path) -> StudyResults:
    """Read a study from its folder. Raises TuningError for files that are missing or damaged."""
    path = folder / OUTCOME_FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        tables = {}
        for name in TABLES:
            path = folder / f"{name}.csv"
            tables[name] = pd.read_csv(path) if path.exists() or name != "slices" else pd.DataFrame()
    except OSError as error:
        raise TuningError(f"{path}: {error.strerror}; a finished study has it") from None
    except ValueError as error:
        raise TuningError(f"{path} is damaged: {' '.join(str(error).split())}") from None
    return StudyResults(document, **tables)


def validated(results: StudyResults) -> Interval:
    """Compare winner and defaults on the validation panel, fresh seeds of the tuned traces. The winner was
    chosen there as the best of a few, so the difference is slightly too large."""
    return paired(
        of_candidate(results.validation, results.winner), of_candidate(results.validation), results.objective.figure
    )


def by_trace(results: StudyResults) -> dict[str, Interval]:
    """The winner less the defaults on each trace of the test."""
    rows, figure = results.test, results.objective.figure
    return {
        str(trace): paired(of_candidate(of_trace, WINNER), of_candidate(of_trace), figure)
        for trace, of_trace in rows.groupby("trace", sort=False)
    }


def plot_studies(studies: list[StudyResults], path: Path) -> Path:
    """All studies of a tuning: the mean score of the defaults and of the winner on the test, best on top; and their
    difference with its interval. Returns `path`."""
    ranked = sorted(
        studies, key=lambda results: results.test_mean(WINNER), reverse=studies[0].objective.larger_is_better
    )
    figure = Figure(figsize=(9.4, 1.5 + 0.32 * len(ranked)), layout="constrained")
    means, changes = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    for place, results in enumerate(ranked):
        before, after = results.test_mean(DEFAULTS), results.test_mean(WINNER)
        means.plot([before, after], [place, place], color=GREY, linewidth=1.5, zorder=1)
        means.plot(before, place, "o", markersize=6, markerfacecolor="white", color=INK, zorder=2,
                   label="defaults" if place == 0 else None)  # fmt: skip
        means.plot(after, place, "o", markersize=6, color=INK, zorder=3, label="tuned" if place == 0 else None)
        change = results.tested(WINNER, DEFAULTS)
        changes.plot(change.mean, place, "o", markersize=5, color=INK)
        changes.plot([change.low, change.high], [place, place], color=INK, linewidth=1.3)
    means.set_yticks(range(len(ranked)), [results.name for results in ranked])
    means.set_ylim(len(ranked) - 0.5, -0.5)
    means.set_xlabel(f"mean {name_of_figure(ranked[0])}", fontsize=9)
    changes.set_xlabel("tuned less defaults, 95 % interval", fontsize=9)
    changes.axvline(0, color="0.3", linewidth=1)
    changes.xaxis.set_major_locator(MaxNLocator(5))
    changes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}" if value else "0"))
    for axes in (means, changes):
        dress(axes, "x")
        axes.tick_params(labelsize=8)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    figure.suptitle(
        f"Each with its own parameters and {ranked[0].document['trials']['asked_for']} trials; requests nothing was "
        "tuned on",
        fontsize=10, x=0.01, ha="left",
    )  # fmt: skip
    figure.savefig(path, dpi=DOTS_PER_INCH)
    return path
