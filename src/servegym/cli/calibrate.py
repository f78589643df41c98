"""`servegym calibrate`: a latency profile from measured batches."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from servegym.cli import options
from servegym.cli.options import flag, option
from servegym.cli.output import check_output_folder, console_for, new_table, number, write_json

if TYPE_CHECKING:
    from rich.table import Table

    from servegym.latency_models.calibration import Calibration

EXAMPLES = """\
[bold]Examples[/bold]

servegym calibrate batches.csv --like a100-llama3-8b

servegym calibrate batches.parquet --form table --name my-gpu --kv-blocks 20000

servegym compare --device results/calibrate/my-gpu.json
"""
COLUMNS = (
    "A CSV or Parquet file, one measured batch a row: duration_s, prefill_tokens, prefill_requests, "
    "prefill_cached_tokens, decode_requests, decode_cached_tokens."
)


def calibrate(
    batches: Annotated[Path, typer.Argument(metavar="FILE", help=COLUMNS)],
    form: Annotated[str, option("FORM", "The form of the device model.", options.WHAT, "--form")] = "piecewise",
    like: Annotated[
        str, option("PROFILE", "The profile, or its file, that gives hardware, model and KV cache.", options.WHAT)
    ] = "a100-llama3-8b",
    kv_blocks: Annotated[
        int | None, option("N", "KV blocks of an engine.", options.WHAT, min=1, show_default="its")
    ] = None,
    name: Annotated[
        str | None, option("NAME", "Name of the new profile.", options.WHAT, "--name", show_default="the file's")
    ] = None,
    held_out: Annotated[
        float,
        option(
            "SHARE",
            "Share of the batches held out of the fit, to measure errors on.",
            options.HOW_MUCH,
            min=0.05,
            max=0.95,
        ),
    ] = 0.3,
    same_total: Annotated[
        bool,
        flag(
            "Leave late batches out of the fit, then scale it so that the total time of all batches is the measured "
            "one; for a table of all steps of a run.",
            options.WHAT,
            "--same-total",
        ),
    ] = False,
    seed: Annotated[int, option("S", "Seed that draws the held-out batches.", options.HOW_MUCH, min=0)] = 0,
    out: Annotated[Path, option(options.OUT_METAVAR, "Folder for the profile and its picture.", options.OUTPUT)] = Path(
        "results/calibrate"
    ),
    json: options.Json = None,
) -> None:
    """Fit a latency profile to measured batches, and show its errors on held-out batches.

    Writes NAME.json, a profile that every --device takes, and NAME.png, predicted against measured times.
    """
    from servegym.latency_models import calibration
    from servegym.latency_models.calibration_plot import plot_calibration
    from servegym.latency_models.documents import to_text
    from servegym.latency_models.measured_batches import read_batches
    from servegym.latency_models.profile import load_profile

    check_output_folder(out)
    result = calibration.calibrate(
        read_batches(batches),
        form,
        name or name_of(batches),
        load_profile(like),
        seed=seed,
        held_out_share=held_out,
        total_blocks=kv_blocks,
        source=batches.name,
        same_total=same_total,
    )
    out.mkdir(parents=True, exist_ok=True)
    profile = out / f"{result.document['name']}.json"
    profile.write_text(to_text(result.document), encoding="utf-8")
    picture = plot_calibration(result, profile.with_suffix(".png"))
    console = console_for(json)
    total = f"all held-out batches together: {number(result.total_percent, 2)} %"
    console.print(error_table(result), f"{total}\nwritten: {profile}, {picture}", soft_wrap=True)
    write_json(result.document | {"files": [profile, picture]}, json)


def name_of(path: Path) -> str:
    """Make a profile's name from a file's: lower case, with hyphens for all but letters, digits and dots."""
    return re.sub(r"[^a-z0-9.]+", "-", path.stem.lower()).strip("-.") or "calibrated"


def error_table(result: Calibration) -> Table:
    """Make the table of errors in percent on the held-out batches."""
    table = new_table("error, %", "MAPE", "decode", "prefill", "mixed", "p95", "largest")
    for label, fitted in (
        (f"{result.document['device']['form']} device, against measured", result.device),
        ("linear estimator, against the device", result.estimator),
    ):
        error = fitted.error
        table.add_row(
            label,
            *(
                number(value, 2)
                for value in (
                    error.mape_percent,
                    error.decode_mape_percent,
                    error.prefill_mape_percent,
                    error.mixed_mape_percent,
                    error.p95_percent,
                    error.max_percent,
                )
            ),
        )
    return table
