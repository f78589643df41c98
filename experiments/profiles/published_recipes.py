"""The profiles of the semantic scheduling paper: published coefficients of the form `slowest`."""

from functools import partial

import numpy as np

from experiments.profiles.device_specs import DEVICE_SPECS
from experiments.profiles.recipe import PUBLISHED, ShippedRecipe
from experiments.profiles.shapes import QWEN15_4B, QWEN15_7B
from servegym.errors import ProfileError
from servegym.latency_models.building.recipe import DeviceModel
from servegym.latency_models.building.shapes import ModelShape
from servegym.latency_models.building.tables import read_table
from servegym.latency_models.model import LatencyModel
from servegym.latency_models.sampling import BatchRange

TABLE = "published_coefficients"
NAMES = {"p1": "alpha_1", "p2": "alpha_2", "c1": "gamma_1", "c2": "gamma_2"}  # as printed -> as here
STATEMENT = (
    "The device form is the authors' fit to their own measurements; they print no error of it, and none was measured "
    "here. The estimator is the device form: the paper's policies know these coefficients, and a linear one would be "
    "about 50 % off, since a sum over requests cannot follow a maximum over them."
)
FLAG = (
    " alpha_1 = 5.135e-7 s/token^2 is 276 times that of the A5000 and looks high; it is kept as the code has it, and "
    "makes prefills of more than about 300 tokens implausibly slow."
)
SOURCE = {
    "table": TABLE, "repository": "Wenyueh/latency_optimization_with_priority_constraints", "commit": "6d232be8107c",
    "licence": "Apache-2.0",
}  # fmt: skip


def published(device: str, size: str, batches: np.ndarray, seed: int, overhead_s: float) -> DeviceModel:
    """The form `slowest` with the coefficients of this device and model size. Raises ProfileError where none are."""
    table = read_table(TABLE, ".csv")
    rows = table[(table["device"] == device) & (table["model"] == size)]
    if len(rows) != 1:
        raise ProfileError(f"{TABLE}.csv has {len(rows)} rows of a {size} model on {device}; it should have one")
    printed = dict(pair.split("=") for pair in rows["coefficients"].iloc[0].split())
    values = {name: float(printed[key]) for key, name in NAMES.items()} | {"t_c": 0.0}
    return DeviceModel(LatencyModel.from_values("slowest", values))


def _recipe(
    name: str, device: str, hardware: str, size: str, shape: ModelShape, most_cached: int, flag: str = ""
) -> ShippedRecipe:
    model = f"Qwen1.5-{size}"
    return ShippedRecipe(
        name=name,
        title=f"{model} on one {hardware}",
        hardware=hardware,
        specification="A100-SXM4" if device == "A100" else "RTX-A5000",
        model=f"{model} (16 bit)",
        shape=shape,
        make=partial(published, device, size),
        basis=PUBLISHED,
        statement=STATEMENT + flag,
        method="Coefficients of the semantic scheduling paper's code. Its measurements hold the engine's CPU time, "
        "so nothing is added.",
        sources=(SOURCE, DEVICE_SPECS),
        limits=BatchRange(2048, 8, 16, 2048, most_cached),
        estimator="slowest",
        overhead=False,
    )


RECIPES = (
    _recipe("a100-qwen1.5-4b", "A100", "NVIDIA A100-80GB", "4B", QWEN15_4B, 32_768),
    _recipe("a100-qwen1.5-7b", "A100", "NVIDIA A100-80GB", "7B", QWEN15_7B, 32_768, FLAG),
    _recipe("a5000-qwen1.5-7b", "A5000", "NVIDIA RTX A5000", "7B", QWEN15_7B, 9_600),
)
