"""`servegym devices`: lists the profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from servegym.cli import options
from servegym.cli.output import console_for, number, write_json
from servegym.cli.tables import show_tables

if TYPE_CHECKING:
    from servegym.latency_models.profile import Profile

EXAMPLES = """\
[bold]Examples[/bold]

servegym devices

servegym devices --system h200_sxm

servegym devices --json -
"""


def devices(
    system: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="List the models for which aiconfigurator-core has measured operators on this system; each is a "
            "device SYSTEM:MODEL.",
        ),
    ] = None,
    json: options.Json = None,
) -> None:
    """List the profiles that ship: device and model, source of their times, and known errors.

    Form, %: mean absolute error of the device model against the composed times to which it was fitted, not against an
    engine. Measured, %: error against serving runs or steps of an engine, or never measured. No profile was fitted to
    an engine's runs.
    """
    from servegym.latency_models.profile import load_profile, profile_names
    from servegym.latency_models.stated_errors import EXPECTED, NEVER

    if system is not None:
        list_models(system, json)
        return
    rows = [_row(load_profile(name)) for name in profile_names()]
    console = console_for(json)
    table = [
        {
            "profile": row["name"],
            "measured, %": NEVER if row["measured_percent"] is None else number(row["measured_percent"], 1),
            "form, %": number(row["fit_percent"], 1),
            "class": row["error_class"],
            "devices": str(row["tensor_parallel"]),
            "model": row["model"],
            "hardware": row["hardware"],
            "rests on": row["basis"],
        }
        for row in rows
    ]
    text = ["class", "model", "hardware", "rests on"]
    show_tables(console, {"": table}, ["rests on", "hardware", "model", "devices"], text)
    console.print("Form: the device model against the composed times it was fitted to, not against an engine.")
    for name, words in EXPECTED.items():
        console.print(f"{NEVER.capitalize()}, of class {name}: {words}.")
    write_json({"profiles": rows}, json)


def list_models(system: str, json: options.Json) -> None:
    """List the models of a system, with the engines and versions whose operators were measured."""
    from servegym.latency_models.step_models.library import models, support

    console, rows = console_for(json), []
    for model in models(system):
        mine = [row for row in support() if (row["System"], row["HuggingFaceID"]) == (system, model)]
        engines = sorted({f"{row['Backend']} {row['Version']}" for row in mine if row["Status"] == "PASS"})
        rows.append(
            {"device": f"{system}:{model}", "engines": ", ".join(engines), "architecture": mine[0]["Architecture"]}
        )
    show_tables(console, {"": rows}, ["architecture", "engines"], ["engines", "architecture"])
    console.print("More GPUs: SYSTEM:MODEL:tp=8. Others: :ep=8 :engine=sglang :version=... :weights=fp8 :kv=fp8.")
    write_json({"system": system, "models": rows}, json)


def _row(profile: Profile) -> dict[str, Any]:
    from servegym.latency_models.profile import error_class
    from servegym.latency_models.stated_errors import FIT, MEASURED, fit_percent, measured_percent

    against = next((name for name in (*MEASURED, FIT) if name in profile.error), None)
    return {
        "name": profile.name,
        "hardware": profile.hardware,
        "model": profile.model,
        "tensor_parallel": profile.tensor_parallel,
        "error_class": error_class(profile),
        "basis": profile.basis,
        "error_percent": profile.error[against]["mape_percent"] if against else None,
        "error_against": against,
        "fit_percent": fit_percent(profile),
        "measured_percent": measured_percent(profile),
    }
