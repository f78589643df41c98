"""Make the profiles that ship from the tables under $SERVEGYM_DATA, the same bytes each time:

python -m servegym.latency_models.building.build_profiles [FOLDER]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from servegym.errors import ProfileError
from servegym.latency_models.building import ascend_recipes, composed_recipes, published_recipes
from servegym.latency_models.building.engine_overhead import CPU_OVERHEAD_SOURCE, cpu_overhead_s
from servegym.latency_models.building.operator_fit import part_of_profile
from servegym.latency_models.building.recipe import ENGINE_POINTS, DeviceModel, Recipe
from servegym.latency_models.building.specifications import device, kv_cache
from servegym.latency_models.documents import latency, percent, to_text
from servegym.latency_models.fitting import Fit, FitError, fit
from servegym.latency_models.model import BATCH_COLUMNS
from servegym.latency_models.sampling import random_batches

SEED = 0
BATCHES = 6000
PAPER_MAPE_PERCENT = 4.5  # ProServe's estimator on its own measured batches
COMMAND = "SERVEGYM_DATA=DATA python -m servegym.latency_models.building.build_profiles"
NO_OVERHEAD_SOURCE = "The device form was fitted to times that hold it."

RECIPES = tuple(
    sorted(
        (*composed_recipes.RECIPES, *published_recipes.RECIPES, *ascend_recipes.RECIPES),
        key=lambda recipe: recipe.name,
    )
)


def build_profile(recipe: Recipe) -> dict[str, Any]:
    """The profile as a JSON document. Raises ProfileError where a table is absent."""
    kv = kv_cache(recipe.shape, device(recipe.specification).memory_gib, recipe.tensor_parallel)
    if not recipe.overhead:
        return document_of(recipe, kv, 0.0, NO_OVERHEAD_SOURCE)
    return document_of(recipe, kv, cpu_overhead_s(), CPU_OVERHEAD_SOURCE, (ENGINE_POINTS,))


def document_of(
    recipe: Recipe, kv: Mapping[str, Any], overhead_s: float, overhead_source: str,
    overhead_tables: tuple[Mapping[str, str], ...] = (), command: str = COMMAND,
) -> dict[str, Any]:  # fmt: skip
    """The profile of a recipe with this KV cache and this CPU's overhead, s an iteration, as a JSON document."""
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
            "sources": [dict(source) for source in (*recipe.sources, *overhead_tables)],
        },
    }


def _error(recipe: Recipe, made: DeviceModel, estimator: Fit) -> dict[str, Any]:
    return {
        "statement": recipe.statement,
        **{name: percent(error) if isinstance(error, FitError) else error for name, error in made.error.items()},
        "estimator_vs_device": percent(estimator.error),
        "estimator_paper_mape_percent": PAPER_MAPE_PERCENT,
    }


def build(folder: Path) -> Iterator[dict[str, Any]]:
    """Write every profile into the folder and yield its document."""
    folder.mkdir(parents=True, exist_ok=True)
    for recipe in RECIPES:
        document = build_profile(recipe)
        (folder / f"{recipe.name}.json").write_text(to_text(document), encoding="utf-8")
        yield document


def main(folder: Path) -> None:
    print(f"{'error, %':<28}{'device against':<30}{'MAPE':>7}{'max':>8}{'estimator MAPE':>17}{'max':>8}")
    for document in build(folder):
        error, estimator = document["error"], document["error"]["estimator_vs_device"]
        line = f"{document['name']:<28}{document['basis'].split(':')[0]:<30}"
        against = error.get("device_vs_composition") or error.get("device_vs_serving")
        if against:
            line += f"{against['mape_percent']:>7.2f}{against['max_percent']:>8.2f}"
        else:
            line += f"{'-':>7}{'-':>8}"
        print(f"{line}{estimator['mape_percent']:>17.2f}{estimator['max_percent']:>8.2f}")
    print(f"{'ProServe, printed':<28}{'measured batches':<30}{'':>15}{PAPER_MAPE_PERCENT:>17.2f}")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "profiles")
    except ProfileError as error:
        sys.exit(f"error: {error}")
