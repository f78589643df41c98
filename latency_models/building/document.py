"""Makes the JSON document of a profile from a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from servegym.latency_models.building.operator_fit import part_of_profile
from servegym.latency_models.building.recipe import DeviceModel, Recipe
from servegym.latency_models.documents import latency, percent
from servegym.latency_models.fitting import Fit, FitError, fit
from servegym.latency_models.model import BATCH_COLUMNS
from servegym.latency_models.sampling import random_batches

SEED = 0
BATCHES = 6000
PAPER_MAPE_PERCENT = 4.5  # ProServe's estimator on its own measured batches


def document_of(
    recipe: Recipe, kv: Mapping[str, Any], overhead_s: float, overhead_source: str, command: str = ""
) -> dict[str, Any]:
    """Make the profile of a recipe, a JSON document. kv: its KV cache. overhead_s: the CPU's, s an iteration."""
    batches = random_batches(BATCHES, SEED, recipe.limits)
    made = recipe.make(batches, SEED, overhead_s)
    table = pd.DataFrame({name: batches[name] for name in BATCH_COLUMNS})
    with_overhead = made.model.plus_constant(overhead_s)
    table["duration_s"] = with_overhead.evaluate(batches)
    estimator = fit(recipe.estimator, table, SEED)
    operators = made.operators and part_of_profile(made.operators, with_overhead, recipe.limits.batch_tokens)
    return {
        "name": recipe.name,
        "title": recipe.title,
        "hardware": recipe.hardware,
        "model": recipe.model,
        "tensor_parallel": recipe.tensor_parallel,
        "basis": recipe.basis,
        "cpu_overhead_s": overhead_s,
        "cpu_overhead_source": overhead_source,
        "device": latency(made.model),
        "estimator": latency(estimator.model),
        **({"operators": operators} if operators else {}),
        "kv": dict(kv),
        "valid": {
            "batch_tokens": [1, recipe.limits.batch_tokens],
            "sequences": [1, recipe.limits.decode_requests],
            "cached_tokens": [0, recipe.limits.cached_tokens],
            "cached_tokens_in_batch": [0, recipe.limits.cached_tokens_in_batch],
        },
        "error": _error(recipe, made, estimator),
        "provenance": {
            "method": f"{recipe.method} Estimator: non-negative least squares on relative error over random batches; "
            "its errors are of held-out ones.",
            "command": command,
            "seed": SEED,
            "train_batches": estimator.train_batches,
            "held_out_batches": estimator.held_out_batches,
            "sources": [dict(source) for source in recipe.sources],
        },
    }


def _error(recipe: Recipe, made: DeviceModel, estimator: Fit) -> dict[str, Any]:
    return {
        "statement": recipe.statement,
        **{name: percent(error) if isinstance(error, FitError) else error for name, error in made.error.items()},
        "estimator_vs_device": percent(estimator.error),
        "estimator_paper_mape_percent": PAPER_MAPE_PERCENT,
    }
