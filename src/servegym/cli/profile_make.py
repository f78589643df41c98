"""`servegym profile make`: the profile of SYSTEM:MODEL, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from servegym.cli import options
from servegym.cli.output import console_for, number, write_json
from servegym.cli.tables import show_tables

MAKE_EXAMPLES = """\
[bold]Examples[/bold]

servegym profile make h100_sxm:Qwen/Qwen3-32B:tp=2

servegym profile make h200_sxm:deepseek-ai/DeepSeek-V3:tp=8:engine=sglang --out deepseek.json

servegym profile make b200_sxm:my-model/config.json:tp=4:weights=fp8
"""


def make(
    device: Annotated[
        str,
        typer.Argument(
            metavar="SYSTEM:MODEL[:tp=N...]",
            help="A system and a model of `servegym devices --system`, or the path of a config.json whose architecture "
            "is known; tp, ep, engine, version, weights and kv say how it is served.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", callback=options.file_to_write, help="Where the profile is written.",
                     show_default="its name", rich_help_panel=options.OUTPUT),
    ] = None,
    json: options.Json = None,
) -> None:  # fmt: skip
    """Make a latency profile from steps that aiconfigurator-core composes of measured operators.

    Every command takes such a device by its name too: --device h100_sxm:Qwen/Qwen3-32B:tp=2.
    """
    from servegym.latency_models.documents import to_text
    from servegym.latency_models.profile import parse_profile
    from servegym.latency_models.stated_errors import expected, fit_percent
    from servegym.latency_models.step_models.profiles import made_profile

    document = made_profile(device)
    made = parse_profile(document, document["name"])
    path = out or Path(f"{document['name']}.json")
    path.write_text(to_text(document), encoding="utf-8")
    rows = [
        {"profile": name, "": value}
        for name, value in (
            ("name", made.name),
            ("error against measurements", expected(made)),
            ("form against the library's steps, MAPE, %", number(fit_percent(made), 2)),
            ("KV cache, tokens", number(made.kv.total_blocks * made.kv.block_tokens)),
            ("time between tokens of one request, ms", number(1e3 * made.idle_tpot_s, 2)),
        )
    ]
    console = console_for(json)
    show_tables(console, {"": rows}, [], ["profile", ""])
    console.print(f"written: {path}", soft_wrap=True)
    if json is not None:
        write_json(document | {"files": [path]}, json)
