"""docs/leaderboard.md, made of the entries."""

from pathlib import Path

from experiments.leaderboard.entry import Entry, entries, loads_in
from experiments.leaderboard.searched import FIGURES, searched
from experiments.prose import sections, wrapped
from servegym.evaluation.markdown import narrow_header, row

HEADING = Path(__file__).with_name("leaderboard.md")
WORDS = Path(__file__).with_name("panels.md")  # of panels, by title
TITLES = {
    "leaderboard": "Schedulers",
    "leaderboard_routers": "Routers of equal engines",
    "session_fleet": "Routers of agents' sessions",
    "mixed_fleet": "Routers of unequal engines at overload",
}


def page() -> str:
    """The page in Markdown."""
    words = sections(WORDS)
    lines = [HEADING.read_text(encoding="utf-8").strip()]
    found = entries()
    for panel, title in TITLES.items():
        mine = [entry for entry in found if entry.panel == panel]
        if mine:
            said = [wrapped(words[title]), ""] if title in words else []
            lines += ["", f"## {title}", "", *said, *table(mine)]
    return "\n".join(lines) + "\n"


def table(found: list[Entry]) -> list[str]:
    """The best first; those whose interval holds the score of the first are bold."""
    loads = loads_in(found[0].figures)
    heads = narrow_header("", "policy", "score", "95 %", *(name.removeprefix("share, ") for name in loads), "TDG ratio",
             "SLO attainment", "starved", "fairness", "by", "when", "version")  # fmt: skip
    lines = [f"Panel `{found[0].panel}`, TDG over {found[0].relative_to}.", "", *heads]
    if (best := searched(found[0].panel)) is not None:
        tdg_ratio, attainment, starved = (f"{best.figures[name]:.3f}" for name in FIGURES)
        lines.append(row(
            "", "*best found*", f"{best.score:.4f}", "", *("" for _ in loads), tdg_ratio,
            attainment, starved, "", "", "", "",
        ))  # fmt: skip
    for place, entry in enumerate(found, start=1):
        figures = entry.figures
        policy = f"`{entry.policy}`"
        lines.append(row(
            place, f"**{policy}**" if entry.high >= found[0].score else policy, f"{entry.score:.4f}",
            f"{entry.low:.4f} to {entry.high:.4f}", *(f"{figures[name]:.3f}" for name in loads),
            *(f"{figures[name]:.3f}" for name in ("tdg_ratio", "slo_attainment", "starved", "fairness_by_length")),
            entry.who, entry.when, entry.version,
        ))  # fmt: skip
    return lines
