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

DIGITS = 8  # of a coefficient; numerical libraries differ only in later ones


def latency(model: LatencyModel) -> dict[str, Any]:
    """A model for a profile's file: its form, and its coefficients to DIGITS digits."""
    return {"form": model.form, "coefficients": _rounded(model.coefficients_by_name)}


def _rounded(values: Mapping[str, float | list[float]]) -> dict[str, float | list[float]]:
    return {
        name: [digits(number) for number in value] if isinstance(value, list) else digits(value)
        for name, value in values.items()
    }


def digits(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def percent(error: FitError) -> dict[str, float]:
    """Errors for a profile's file, without regimes that have no batches."""
    return {name: round(value, 3) for name, value in asdict(error).items() if not math.isnan(value)}


def to_text(document: Mapping[str, Any]) -> str:
    """Write JSON with each list of numbers on one line."""
    text = json.dumps(document, indent=2)
    return re.sub(r"\[[^][{}\"]*\]", lambda found: "[" + " ".join(found[0][1:-1].split()) + "]", text) + "\n"
