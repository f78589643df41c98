"""Fits a device form to times composed from operator tables, and names the sources of those tables."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from servegym.latency_models.building.composition import Composition
from servegym.latency_models.building.operator_fit import fit_operators
from servegym.latency_models.building.recipe import DeviceModel
from servegym.latency_models.fitting import fit
from servegym.latency_models.model import BATCH_COLUMNS

STATEMENT = (
    "These are composition errors: the device form is compared with batch times composed from operator "
    "tables, and the estimator with the device form. No iteration of an engine was measured."
)
VIDUR = {"repository": "microsoft/vidur", "commit": "7d47513363ec", "licence": "MIT"}
VIDUR_COPY = {"repository": "sw5sh/cs378-assignment3", "commit": "7ac2fe9fb6ce", "licence": "MIT (Vidur)"}
AICONFIGURATOR = {"repository": "ai-dynamo/aiconfigurator", "commit": "095f58a51c4c", "licence": "Apache-2.0"}


def composed(
    compose: Callable[[], Composition], derived: tuple[str, ...], batches: np.ndarray, seed: int, overhead_s: float
) -> DeviceModel:
    """Fit the composition's form to the composed times of the batches, and the operators of a layer."""
    composition = compose()
    table = pd.DataFrame({name: batches[name] for name in BATCH_COLUMNS})
    table["duration_s"] = composition.duration_s(batches)
    fitted = fit(composition.form, table, seed)
    operators = fit_operators(composition, batches, seed, derived)
    return DeviceModel(fitted.model, {"device_vs_composition": fitted.error}, operators)
