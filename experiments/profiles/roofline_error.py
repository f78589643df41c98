"""How far batch times from a data sheet are from those of the tables, on GPUs that have both:

python -m experiments.profiles.roofline_error
"""

import sys
from collections.abc import Iterator

import numpy as np

from experiments.profiles.shapes import LLAMA_3_8B, LLAMA_3_70B, QWEN2_7B, QWEN3_30B_A3B, QWEN3_32B, QWEN25_14B
from servegym.errors import ProfileError
from servegym.latency_models.building.from_config import ROOFLINE, TABLES, kernels_of
from servegym.latency_models.building.gpus import Gpu, gpus
from servegym.latency_models.building.huggingface import Model
from servegym.latency_models.building.product_devices import decoder
from servegym.latency_models.building.shapes import MixtureShape, ModelShape
from servegym.latency_models.building.specifications import kv_cache
from servegym.latency_models.fitting import REGIMES, regime
from servegym.latency_models.sampling import BatchRange, random_batches

MODELS = {
    "Llama-2-7B": ModelShape(32, 4096, 32, 32, 128, 11008, 32000),
    "Llama-3-8B": LLAMA_3_8B,
    "Qwen2-7B": QWEN2_7B,
    "Qwen2.5-14B": QWEN25_14B,
    "Qwen3-32B": QWEN3_32B,
    "Llama-3-70B": LLAMA_3_70B,
    "Mixtral-8x7B": MixtureShape(32, 4096, 32, 8, 128, 14336, 32000, 8, 2),
    "Qwen3-30B-A3B": QWEN3_30B_A3B,
}
BATCHES, SEED = 600, 1


def percents(gpu: Gpu, shape: ModelShape, devices: int) -> dict[str, float]:
    """Of random batches: mean absolute errors by kind, the mean and the largest. Raises ProfileError: does not fit."""
    kv = kv_cache(shape, gpu.chip.memory_gib, devices)
    cached = kv["total_blocks"] * kv["block_tokens"]
    batches = random_batches(BATCHES, SEED, BatchRange(8192, 8, 256, 8192, cached))
    model = Model("model", shape, "bf16")
    sheet_s, tables_s = (
        decoder(kernels_of(gpu, model, by)[0], gpu.chip, shape, devices).duration_s(batches)
        for by in (ROOFLINE, TABLES)
    )
    percent, kinds = 100 * (sheet_s / tables_s - 1), regime(batches)
    of_kinds = {name: float(np.abs(percent[kinds == kind]).mean()) for kind, name in enumerate(REGIMES)}
    return of_kinds | {"mean": float(percent.mean()), "largest": float(np.abs(percent).max())}


def rows() -> Iterator[tuple[str, str, int, dict[str, float]]]:
    """(GPU, model, devices, percents) of all that fit."""
    for gpu in gpus().values():
        for name, shape in MODELS.items():
            for devices in (1, 2, 4, 8) if gpu.tables and gpu.name != "l40s" else (1,) if gpu.tables else ():
                try:
                    yield gpu.name, name, devices, percents(gpu, shape, devices)
                except ProfileError:
                    continue


if __name__ == "__main__":
    try:
        for gpu_name, model_name, count, errors in rows():
            figures = "".join(f"{name} {value:6.1f}  " for name, value in errors.items())
            print(f"{gpu_name:<6}{model_name:<15}tp{count}  {figures}")
    except ProfileError as error:
        sys.exit(f"error: {error}")
