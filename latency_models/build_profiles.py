"""Make the profiles that ship from the operator tables under $SERVEGYM_DATA, the same bytes each time:

python -m servegym.latency_models.build_profiles [FOLDER]
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from servegym.latency_models import composition
from servegym.latency_models.composition import (
    A100_TABLES,
    H100_TABLES,
    VIDUR_ATTENTION,
    VIDUR_LINEAR,
    Composition,
)
from servegym.latency_models.engine_overhead import CPU_OVERHEAD_SOURCE, cpu_overhead_s
from servegym.latency_models.fitting import FitError, fit
from servegym.latency_models.model import BATCH_COLUMNS
from servegym.latency_models.sampling import BatchRange, random_batches
from servegym.latency_models.shapes import LLAMA_3_8B
from servegym.simulator.errors import ProfileError

SEED = 0
BATCHES = 6000
PAPER_MAPE_PERCENT = 4.5  # ProServe's estimator on its own measured batches
DIGITS = 8  # of a coefficient: fewer than differ between numerical libraries
COMMAND = "SERVEGYM_DATA=DATA python -m servegym.latency_models.build_profiles"
ERROR_STATEMENT = (
    "These are composition errors: the device form is compared with batch times composed from operator "
    "tables, and the estimator with the device form. No iteration of an engine was measured."
)
ROLES = {"piecewise device": "device_vs_composition", "linear estimator": "estimator_vs_device"}
GIB = 2**30
BLOCK_TOKENS = 16
MEMORY_BYTES = 80 * GIB
UTILISATION_PERCENT = 90  # vLLM's default
RESERVE_BYTES = 5 * GIB // 2

VIDUR = {"repository": "microsoft/vidur", "commit": "7d47513363ec", "licence": "MIT"}
VIDUR_COPY = {"repository": "sw5sh/cs378-assignment3", "commit": "7ac2fe9fb6ce", "licence": "MIT (Vidur)"}
AICONFIGURATOR = {"repository": "ai-dynamo/aiconfigurator", "commit": "095f58a51c4c", "licence": "Apache-2.0"}
ENGINE_POINTS = {"table": "gpu_engine_points", "repository": "gpustack/gpustack", "commit": "47277d79f4a5",
                 "licence": "Apache-2.0"}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """What one profile is made of."""

    name: str
    title: str
    hardware: str
    compose: Callable[[], Composition]
    method: str
    sources: tuple[Mapping[str, str], ...]


def _aiconfigurator(tables: str) -> tuple[Mapping[str, str], ...]:
    return tuple(
        {"table": f"{tables}_{kind}_perf", **AICONFIGURATOR}
        for kind in ("gemm", "context_attention", "generation_attention")
    )


RECIPES = (
    Recipe(
        "a100-llama3-8b",
        "Llama-3-8B on one A100-80GB",
        "NVIDIA A100-SXM4-80GB",
        composition.a100_llama3_8b,
        "Vidur's linear operators and cached-prefix slope, aiconfigurator's attention and LM head "
        "(vLLM 0.14.0).",
        (
            {"table": VIDUR_LINEAR, **VIDUR},
            {"table": VIDUR_ATTENTION, **VIDUR_COPY},
            *_aiconfigurator(A100_TABLES),
        ),
    ),
    Recipe(
        "h100-llama3-8b",
        "Llama-3-8B on one H100-80GB",
        "NVIDIA H100-SXM5-80GB",
        composition.h100,
        "aiconfigurator's matrix products, attention and LM head (vLLM 0.24.0); norms, rotary embedding and "
        "activation from memory traffic; cached-prefix slope from the longest prefill.",
        _aiconfigurator(H100_TABLES),
    ),
)


def build_profile(recipe: Recipe) -> dict[str, Any]:
    """The profile as a JSON document. Raises ProfileError where a table is absent."""
    limits = BatchRange()
    batches = random_batches(BATCHES, SEED, limits)
    table = pd.DataFrame({name: batches[name] for name in BATCH_COLUMNS})
    table["duration_s"] = recipe.compose().duration_s(batches)
    device = fit("piecewise", table, SEED)
    overhead_s = cpu_overhead_s()
    table["duration_s"] = device.model.plus_constant(overhead_s).evaluate(batches)
    estimator = fit("linear", table, SEED)
    return {
        "name": recipe.name,
        "title": recipe.title,
        "hardware": recipe.hardware,
        "model": "Llama-3-8B (bfloat16)",
        "tensor_parallel": 1,
        "cpu_overhead_s": overhead_s,
        "cpu_overhead_source": CPU_OVERHEAD_SOURCE,
        "device": {"form": "piecewise", "coefficients": _rounded(device.model.coefficients_by_name)},
        "estimator": {"form": "linear", "coefficients": _rounded(estimator.model.coefficients_by_name)},
        "kv": _kv_cache(),
        "valid": {
            "batch_tokens": [1, limits.batch_tokens],
            "sequences": [1, limits.decode_requests],
            "cached_tokens": [0, limits.cached_tokens],
            "cached_tokens_in_batch": [0, limits.cached_tokens_in_batch],
        },
        "error": {
            "statement": ERROR_STATEMENT,
            "device_vs_composition": _percent(device.error),
            "estimator_vs_device": _percent(estimator.error),
            "estimator_paper_mape_percent": PAPER_MAPE_PERCENT,
        },
        "provenance": {
            "method": f"{recipe.method} Random batches, decodes at their mean cached length; non-negative "
            "least squares on relative error; errors are of held-out batches.",
            "command": COMMAND,
            "seed": SEED,
            "train_batches": device.train_batches,
            "held_out_batches": device.held_out_batches,
            "sources": [dict(source) for source in (*recipe.sources, ENGINE_POINTS)],
        },
    }


def _rounded(values: Mapping[str, float | list[float]]) -> dict[str, float | list[float]]:
    def digits(value: float | list[float]) -> float | list[float]:
        return (
            [float(f"{v:.{DIGITS}g}") for v in value]
            if isinstance(value, list)
            else float(f"{value:.{DIGITS}g}")
        )

    return {name: digits(value) for name, value in values.items()}


def _percent(error: FitError) -> dict[str, float]:
    return {name: round(value, 3) for name, value in asdict(error).items()}


def _kv_cache() -> dict[str, Any]:
    share = MEMORY_BYTES * UTILISATION_PERCENT // 100
    usable = share - LLAMA_3_8B.weight_bytes - RESERVE_BYTES
    per_block = BLOCK_TOKENS * LLAMA_3_8B.kv_bytes_per_token
    return {
        "bytes_per_token": LLAMA_3_8B.kv_bytes_per_token,
        "block_tokens": BLOCK_TOKENS,
        "usable_bytes": usable,
        "total_blocks": usable // per_block,
        "arithmetic": f"80 GiB x {UTILISATION_PERCENT / 100} = {share} bytes "
        f"- weights {LLAMA_3_8B.weight_bytes} - {RESERVE_BYTES} (2.5 GiB, assumed, for activations, CUDA "
        f"graphs and the driver) = {usable}; "
        f"/ ({BLOCK_TOKENS} tokens x {LLAMA_3_8B.kv_bytes_per_token} bytes). "
        "A token: 2 (K, V) x 32 layers x 8 heads x 128 x 2 bytes.",
    }


def to_text(document: Mapping[str, Any]) -> str:
    """The file's text, with each list of numbers on one line."""
    text = json.dumps(document, indent=2)
    return re.sub(r"\[[^][{}\"]*\]", lambda found: "[" + " ".join(found[0][1:-1].split()) + "]", text) + "\n"


def main(folder: Path) -> None:
    header = f"{'held-out error, %':<20}{'model':<22}"
    print(header + f"{'MAPE':>7}{'decode':>8}{'prefill':>9}{'mixed':>7}{'p95':>7}{'max':>7}")
    folder.mkdir(parents=True, exist_ok=True)
    for recipe in RECIPES:
        document = build_profile(recipe)
        (folder / f"{recipe.name}.json").write_text(to_text(document), encoding="utf-8")
        for label, role in ROLES.items():
            mape, decode, prefill, mixed, p95, largest = document["error"][role].values()
            print(
                f"{recipe.name:<20}{label:<22}{mape:>7.2f}{decode:>8.2f}{prefill:>9.2f}{mixed:>7.2f}"
                f"{p95:>7.2f}{largest:>7.2f}"
            )
    print(f"{'ProServe, printed':<20}{'linear estimator':<22}{PAPER_MAPE_PERCENT:>7.2f}   (measured batches)")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "profiles")
    except ProfileError as error:
        sys.exit(f"error: {error}")
