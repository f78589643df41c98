"""`servegym devices`: the profiles there are."""

from __future__ import annotations

from typing import Any

from servegym.cli import options
from servegym.cli.output import console_for, new_table, number, write_json

EXAMPLES = """\
[bold]Examples[/bold]

servegym devices

servegym devices --json -
"""


def devices(json: options.Json = None) -> None:
    """List the profiles that ship: device and model, what they rest on, and how far off they are known to be.

    Error: mean absolute error of the device model against what it rests on. No profile was fitted to an engine's runs.
    """
    from servegym.latency_models.profile import load_profile, profile_names

    rows = [_row(load_profile(name)) for name in profile_names()]
    table = new_table("profile", "hardware", "model", "devices", "class", "rests on", "error, %", numbers=False)
    for row in rows:
        table.add_row(
            row["name"], row["hardware"], row["model"], str(row["tensor_parallel"]), row["error_class"], row["basis"],
            number(row["error_percent"], 1),
        )  # fmt: skip
    console_for(json).print(table)
    if json is not None:
        write_json({"profiles": rows}, json)


def _row(profile: Any) -> dict[str, Any]:
    from servegym.latency_models.profile import error_class

    error = profile.error
    against = next((name for name in AGAINST if name in error), None)
    return {
        "name": profile.name,
        "hardware": profile.hardware,
        "model": profile.model,
        "tensor_parallel": profile.tensor_parallel,
        "error_class": error_class(profile),
        "basis": profile.basis,
        "error_percent": error[against]["mape_percent"] if against else None,
        "error_against": against,
    }


AGAINST = ("device_vs_measured", "device_vs_serving", "device_vs_composition")
