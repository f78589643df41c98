"""What `servegym recommend` prints: errors of the simulation, a table for each device, and conclusions in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servegym.cli.output import number, show_notes
from servegym.cli.tables import BEST, show_tables

if TYPE_CHECKING:
    from rich.console import Console

    from servegym.evaluation.recommend.matching import Match
    from servegym.evaluation.recommend.recommending import Recommendation
    from servegym.evaluation.recommend.recording import Recording

LEAVING = ("cost of a million tokens", "p99 TPOT, ms", "p99 TTFT, s")  # left out in a narrow terminal


def show_match(recording: Recording, match: Match | None, console: Console) -> None:
    """Print the errors of a simulation of the recording against its measured latencies."""
    for note in recording.notes:
        console.print(f"Recording: {note}")
    from servegym.evaluation.recommend.words import not_fitted

    if match is None:
        console.print(not_fitted(recording))
        return
    rows = []
    for figure in match.figures:
        row = {
            "second half of the recording": figure.name,
            "measured, s": number(figure.measured_s), "simulated, s": number(figure.profile_s),
            "error, %": number(figure.error_percent(False), 1),
        }  # fmt: skip
        if match.is_fitted:
            row |= {"fitted, s": number(figure.fitted_s), "fitted error, %": number(figure.error_percent(True), 1)}
        rows.append(row)
    show_tables(console, {"": rows})
    for line in match.lines():
        console.print(line)


def show(found: Recommendation, console: Console) -> None:
    """Print a table for each device, with the recommended setup in bold, and conclusions in words."""
    from servegym.evaluation.recommend.words import conclusions, table_rows, title

    console.print(title(found))
    show_notes({"slo_notes": found.windows.to_choose[0].provenance.get("slo_notes", ())}, console)
    tables = {}
    for of in found.of_devices:
        rows = table_rows(of, found.question.target)
        rows[0][next(iter(rows[0]))] += BEST
        tables[of.device] = rows
    show_tables(console, tables, LEAVING)
    for line in conclusions(found):
        console.print(line, soft_wrap="servegym goodput" in line)  # a command is copied whole
