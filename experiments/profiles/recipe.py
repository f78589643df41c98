"""Recipes of shipped profiles, and sources that several of them have."""

from dataclasses import dataclass, field

from servegym.latency_models.building.recipe import Recipe
from servegym.latency_models.building.shapes import ModelShape

# Sources of device models, beside those of `servegym.latency_models.building.recipe`.
PUBLISHED = "published coefficients"
SERVING_POINTS = "serving points"

GPUSTACK = {"repository": "gpustack/gpustack", "commit": "47277d79f4a5", "licence": "Apache-2.0"}
ENGINE_POINTS = {"table": "gpu_engine_points", **GPUSTACK}
LLMSERVINGSIM = {"repository": "casys-kaist/LLMServingSim", "commit": "5daddb21a545", "licence": "MIT"}


@dataclass(frozen=True)
class ShippedRecipe(Recipe):
    """A recipe of a shipped profile.

    specification: how its row in device_specs.csv begins. shape: of its model. overhead: whether the CPU's overhead is
    added; False if the device model holds it.
    """

    specification: str = field(kw_only=True)
    shape: ModelShape = field(kw_only=True)
    overhead: bool = field(default=True, kw_only=True)
