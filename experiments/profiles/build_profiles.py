"""Make the profiles that ship from the tables under $SERVEGYM_DATA, the same bytes each time:

python -m experiments.profiles.build_profiles [FOLDER]
"""

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.profiles import ascend_recipes, composed_recipes, published_recipes
from experiments.profiles.device_specs import device
from experiments.profiles.engine_overhead import CPU_OVERHEAD_SOURCE, cpu_overhead_s
from experiments.profiles.recipe import ENGINE_POINTS, ShippedRecipe
from servegym import latency_models
from servegym.errors import ProfileError
from servegym.latency_models.building.document import PAPER_MAPE_PERCENT, document_of
from servegym.latency_models.building.specifications import kv_cache
from servegym.latency_models.documents import to_text

COMMAND = "SERVEGYM_DATA=DATA python -m experiments.profiles.build_profiles"
SHIPPED = Path(latency_models.__file__).parent / "profiles"
NO_OVERHEAD_SOURCE = "The device form was fitted to times that hold it."

RECIPES = tuple(
    sorted(
        (*composed_recipes.RECIPES, *published_recipes.RECIPES, *ascend_recipes.RECIPES), key=lambda recipe: recipe.name
    )
)


def build_profile(recipe: ShippedRecipe) -> dict[str, Any]:
    """The profile as a JSON document. Raises ProfileError where a table is absent."""
    kv = kv_cache(recipe.shape, device(recipe.specification).memory_gib, recipe.tensor_parallel)
    if not recipe.overhead:
        return document_of(recipe, kv, 0.0, NO_OVERHEAD_SOURCE, command=COMMAND)
    with_points = dataclasses.replace(recipe, sources=(*recipe.sources, ENGINE_POINTS))
    return document_of(with_points, kv, cpu_overhead_s(), CPU_OVERHEAD_SOURCE, command=COMMAND)


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
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else SHIPPED)
    except ProfileError as error:
        sys.exit(f"error: {error}")
