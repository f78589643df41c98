"""`servegym leaderboard`: the page of scores, its entries, and whether they come out again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from servegym.cli.output import console_for

EXAMPLES = """\
[bold]Examples[/bold]

servegym leaderboard verify scheduler-edf

servegym leaderboard add my_policy.py --kind scheduler --who "Ada Lovelace"

servegym leaderboard write
"""
app = typer.Typer(help="Scores of policies, measured alike: write the page, add an entry, verify one.", epilog=EXAMPLES,
                  rich_markup_mode="rich", no_args_is_help=True)  # fmt: skip


@app.command("write", epilog=EXAMPLES)
def write(
    page: Annotated[Path, typer.Argument(metavar="FILE.md", help="The page to write.")] = Path("docs/leaderboard.md"),
) -> None:
    """Write the page from the entries, and say what was measured with other code than there is. Nothing is run."""
    from experiments.leaderboard.entry import entries, is_stale
    from experiments.leaderboard.page import page as text
    from experiments.leaderboard.searched import stale

    page.write_text(text(), encoding="utf-8")
    console = console_for(None)
    console.print("Written:", str(page))
    old = [entry.name for entry in entries() if is_stale(entry)]
    if old:
        console.print(f"{len(old)} entries were measured with other code than there is (verify runs one again):")
        console.print(", ".join(old))
    for line in stale():
        console.print(line)


@app.command("add", epilog=EXAMPLES)
def add(
    policies: Annotated[
        list[str], typer.Argument(metavar="POLICY...", help="Names of policies, or of Python files among the entries.")
    ],
    kind: Annotated[str, typer.Option(metavar="scheduler|router", help="Their kind.")],
    who: Annotated[str, typer.Option(metavar="NAME", help="Name of the author.")],
    panel: Annotated[str | None, typer.Option(metavar="NAME", help="One panel instead of all of the kind.")] = None,
) -> None:
    """Measure policies on the leaderboard's panels, and write an entry for each: a minute a panel, or less."""
    from experiments.leaderboard.entry import measure, panels_of

    panels = panels_of(kind) if panel is None else (panel,)
    for policy in policies:
        for name in panels:
            entry = measure(policy, kind, who, name)
            entry.write()
            console_for(None).print(f"{entry.name}: {entry.score:.4f} [{entry.low:.4f}, {entry.high:.4f}]")


@app.command("verify", epilog=EXAMPLES)
def verify(
    names: Annotated[
        list[str], typer.Argument(metavar="ENTRY...", help="Names of entries, such as scheduler-edf, or their files.")
    ],
) -> None:
    """Run entries again and compare each run. Exit status 2 for one that comes out otherwise."""
    from experiments.leaderboard.entry import read_entry
    from experiments.leaderboard.entry import verify as run_again

    for entry in [read_entry(name) for name in names]:
        console_for(None).print(f"{entry.name}: {run_again(entry)} runs come out as it says")
