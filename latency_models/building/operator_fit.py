"""Fits the operators of a layer to composed times, and makes the part `operators` of a profile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from servegym.latency_models.building.composition import Composition
from servegym.latency_models.documents import digits
from servegym.latency_models.fitting import split
from servegym.latency_models.least_squares import fit_relative
from servegym.latency_models.model import LatencyModel
from servegym.latency_models.operators import Operators, terms

LEAST_TOKENS = 128  # of a batch; products of fewer tokens take the time to read the weights


@dataclass(frozen=True)
class OperatorFit:
    """Fitted operators, and the batches held out of the fit, on which their error is measured.

    batches: BATCH array[n] of prefills. composed_s: float64[n, operators] of one layer. derived: operators without a
    table.
    """

    operators: Operators
    batches: np.ndarray
    composed_s: np.ndarray
    derived: tuple[str, ...]


def fit_operators(
    composition: Composition, batches: np.ndarray, seed: int, derived: tuple[str, ...] = ()
) -> OperatorFit:
    """Fit each operator to the prefills among `batches`, by non-negative least squares on relative error."""
    prefills = batches[(batches["decode_requests"] == 0) & (batches["prefill_tokens"] >= LEAST_TOKENS)]
    composed = composition.operators_s(prefills)
    train, held_out = split(len(prefills), seed)
    design = terms(prefills[train])
    coefficients = np.array([fit_relative(design, seconds[train]) for seconds in composed.values()])
    operators = Operators(composition.layers, coefficients, tuple(composed))
    composed_s = np.column_stack(list(composed.values()))
    return OperatorFit(operators, prefills[held_out], composed_s[held_out], derived)


def part_of_profile(fitted: OperatorFit, device: LatencyModel, most_tokens: int) -> dict[str, Any]:
    """Make `operators` of a profile. device: the time of its batches, with the CPU's overhead."""
    operators = fitted.operators
    layer_s = operators.layer_s(fitted.batches)
    by_operator = 100 * np.abs(layer_s / fitted.composed_s - 1)
    whole = 100 * np.abs(layer_s.sum(axis=1) / fitted.composed_s.sum(axis=1) - 1)
    shares, composed = (s / s.sum(axis=1, keepdims=True) for s in (layer_s, fitted.composed_s))
    of_batch = 100 * operators.layers * layer_s.sum(axis=1) / device.evaluate(fitted.batches)
    source = (
        "Composed as the device model is; each operator fitted alone, to batches of prefills. A norm belongs to the "
        "product after it, the activation to the last product, an all-reduce to the product before it."
    )
    if fitted.derived:
        source += f" Derived from FLOP and bytes, not measured: {', '.join(fitted.derived)}."
    return {
        "layers": operators.layers,
        "names": list(operators.names),
        "coefficients": [[digits(value) for value in row] for row in operators.coefficients.tolist()],
        "source": source,
        "derived": list(fitted.derived),
        "error": {
            "statement": "Of prefill batches held out of the fit, against composed times; no operator was measured "
            "inside an engine. layers_of_batch: layers x operators, of the profile's time of the batch; the rest is "
            "the LM head, the CPU's overhead and the device form's error.",
            "batch_tokens": [LEAST_TOKENS, most_tokens],
            "operator_mape_percent": [round(float(value), 2) for value in by_operator.mean(axis=0)],
            "layer_mape_percent": round(float(whole.mean()), 2),
            "layer_max_percent": round(float(whole.max()), 2),
            "share_mean_points": round(float(100 * np.abs(shares - composed).mean()), 2),
            "share_max_points": round(float(100 * np.abs(shares - composed).max()), 2),
            "layers_of_batch_percent": [
                round(float(value), 1) for value in (of_batch.min(), of_batch.mean(), of_batch.max())
            ],
        },
    }
