"""Parts of a profile's file: rounded numbers, and the JSON text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from servegym.latency_models.fitting import FitError
from servegym.latency_models.model import LatencyModel

DIGITS = 8  # of a coefficient: fewer than differ between numerical libraries


def latency(model: LatencyModel) -> dict[str, Any]:
    """A model as a profile holds it: its form and coefficients, to DIGITS digits."""
    return {"form": model.form, "coefficients": _rounded(model.coefficients_by_name)}


def _rounded(values: Mapping[str, float | list[float]]) -> dict[str, float | list[float]]:
    return {
        name: [digits(number) for number in value] if isinstance(value, list) else digits(value)
        for name, value in values.items()
    }


def digits(value: float) -> float:
    """The number to DIGITS digits."""
    return float(f"{value:.{DIGITS}g}")


def percent(error: FitError) -> dict[str, float]:
    """The errors as a profile holds them, except of regimes without batches."""
    return {name: round(value, 3) for name, value in asdict(error).items() if not math.isnan(value)}


def to_text(document: Mapping[str, Any]) -> str:
    """JSON with each list of numbers on one line."""
    text = json.dumps(document, indent=2)
    return re.sub(r"\[[^][{}\"]*\]", lambda found: "[" + " ".join(found[0][1:-1].split()) + "]", text) + "\n"
