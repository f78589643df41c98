"""`servegym profile make`: the profile of SYSTEM:MODEL, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from servegym.cli import options
from servegym.cli.made_profiles import keep_profile
from servegym.cli.options import option

MAKE_EXAMPLES = """\
[bold]Examples[/bold]

servegym profile make h100_sxm:Qwen/Qwen3-32B:tp=2

servegym profile make h200_sxm:deepseek-ai/DeepSeek-V3:tp=8:engine=sglang --out deepseek.json

servegym profile make b200_sxm:my-model:tp=4:weights=fp8
"""


def make(
    device: Annotated[
        str,
        typer.Argument(
            metavar="SYSTEM:MODEL[:tp=N...]",
            help="A system and a model of `servegym devices --system`, or the folder of a config.json whose "
            "architecture is known; tp, ep, engine, version, weights and kv say how it is served.",
        ),
    ],
    out: Annotated[
        Path | None,
        option(
            "FILE.json",
            "Where the profile is written.",
            options.OUTPUT,
            callback=options.file_to_write,
            show_default="its name",
        ),
    ] = None,
    json: options.Json = None,
) -> None:
    """Make a latency profile from steps that aiconfigurator-core composes of measured operators.

    Every command takes such a device by its name too: --device h100_sxm:Qwen/Qwen3-32B:tp=2.
    """
    from servegym.latency_models.step_models.profiles import made_profile

    keep_profile(made_profile(device), out, "form against the library's steps, MAPE, %", json)
