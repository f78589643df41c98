"""The profiles of Ascend 910B devices: Qwen3-8B corrected to serving results, two others by its efficiencies.

Eager mode, `linear`: the host decides the time of a decode step, so steps are fitted as they are. Graph mode,
`roofline`: the compute efficiencies come from the eager prefills, which the host does not slow down; the memory
efficiency follows from one graph-mode decode step.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from experiments.profiles import ascend_points
from experiments.profiles.ascend_points import Point
from experiments.profiles.device_specs import DEVICE_SPECS, device
from experiments.profiles.recipe import GPUSTACK, SERVING_POINTS, ShippedRecipe
from experiments.profiles.shapes import QWEN2_7B, QWEN3_8B, QWEN3_32B, pair_flop, token_flop
from servegym.latency_models.building.recipe import APPROXIMATE, DeviceModel
from servegym.latency_models.building.shapes import ModelShape
from servegym.latency_models.least_squares import fit_relative
from servegym.latency_models.model import LatencyModel
from servegym.latency_models.sampling import BatchRange

CHIP = "Ascend-910B2"  # the results do not say which 910B; the types with 64 GB share its memory bandwidth
SOURCES = ({"table": ascend_points.TABLE, **GPUSTACK}, DEVICE_SPECS)
VLLM_ASCEND = {
    "table": ascend_points.TABLE, "repository": "vllm-project/vllm-ascend", "commit": "182b75ea84ff",
    "licence": "Apache-2.0",
}  # fmt: skip
EAGER_METHOD = (
    "Non-negative least squares on relative error: a_d, b_d and t_c on the decode steps of five runs, c_p and b_p on "
    "the prefills of three, a_p from c_p by the FLOP of attention and of linear operators. A step is a run's median "
    "time between tokens, its batch by Little's law; a prefill is the time a request less that of its steps, in "
    "batches of 8192 tokens (assumed). The host's time is in the points, so nothing is added."
)
ROOFLINE_METHOD = (
    "Roofline from the model's shape and the specification of a 910B2 (353.9 TFLOPS bfloat16, 1.76 TB/s). Efficiencies "
    "of compute from the prefills of Qwen3-8B in eager mode, of memory from one graph-mode decode step of Qwen3-8B "
    "less the CPU overhead: what launches and other fixed costs take is in it."
)
FEW = " Each is one figure of one run; expect 20 % or worse. No iteration of an engine was measured."
EAGER_STATEMENT = "The device form is compared with the points it was fitted to: none were left to hold out." + FEW
GRAPH_STATEMENT = (
    "The device form is compared with one point it was not fitted to, whose hardware is named as Atlas A2 or A3." + FEW
)
UNFITTED = "Approximate: nothing of this model was fitted. The device form is compared with "
QWEN2_STATEMENT = (
    UNFITTED + "steps of Qwen2.5-Omni-7B, whose language model has this shape but does not run alone." + FEW
)
QWEN3_32B_STATEMENT = UNFITTED + "one step of one request; the hardware is assumed to be Atlas A2." + FEW


def eager_values() -> tuple[dict[str, float], list[Point]]:
    """Coefficients of `linear` for Qwen3-8B in eager mode, with the points they are fitted to."""
    steps, prompts = ascend_points.eager_points()
    rows = [[*step.sums("decode_cached_tokens", "decode_requests"), step.counts.sum()] for step in steps]
    a_d, b_d, t_c = fit_relative(np.array(rows), _durations_s(steps)).tolist()
    own_share = pair_flop(QWEN3_8B) / 2 / token_flop(QWEN3_8B)
    sums = np.array(
        [prompt.sums("prefill_tokens", "prefill_tokens_squared", "prefill_tokens_cached") for prompt in prompts]
    )
    design = np.column_stack([sums[:, 0] + own_share * sums[:, 1], sums[:, 2]])
    host_s = np.array([t_c * prompt.counts.sum() for prompt in prompts])
    c_p, b_p = fit_relative(design, _durations_s(prompts) - host_s).tolist()
    values = {"a_p": own_share * c_p, "b_p": b_p, "c_p": c_p, "a_d": a_d, "b_d": b_d, "t_c": t_c}
    return values, [*steps, *prompts]


def _durations_s(points: list[Point]) -> np.ndarray:
    return np.array([point.duration_s for point in points])


def roofline_model(shape: ModelShape, devices: int, overhead_s: float) -> LatencyModel:
    """The roofline of a model on one or more 910B2, with the efficiencies of Qwen3-8B."""
    chip = device(CHIP)
    eager, _ = eager_values()
    step, _ = ascend_points.graph_points()
    (cached_tokens,) = step.sums("decode_cached_tokens")
    read_bytes = QWEN3_8B.read_bytes + cached_tokens * QWEN3_8B.kv_bytes_per_token
    return LatencyModel.from_values(
        "roofline",
        {
            "token_flop": token_flop(shape) / devices,
            "pair_flop": pair_flop(shape) / devices,
            "weight_bytes": shape.read_bytes / devices,
            "cache_bytes": shape.kv_bytes_per_token / devices,
            # Two all-reduces a layer; a ring sends and receives each vector 2 (n - 1) / n times.
            "link_bytes": 2 * shape.layers * shape.hidden * 2 * 2 * (devices - 1) / devices,
            "peak_flop_per_s": chip.peak_flop_per_s,
            "memory_bytes_per_s": chip.memory_bytes_per_s,
            "link_bytes_per_s": chip.link_bytes_per_s,
            "compute_efficiency": token_flop(QWEN3_8B) / (chip.peak_flop_per_s * eager["c_p"]),
            "prefix_efficiency": pair_flop(QWEN3_8B) / (chip.peak_flop_per_s * eager["b_p"]),
            "memory_efficiency": read_bytes / chip.memory_bytes_per_s / (step.duration_s - overhead_s),
            "t_c": 0.0,
        },
    )


def serving_error(model: LatencyModel, points: list[Point]) -> dict[str, Any]:
    """Errors of the model, the CPU's overhead in it, on the points that it was not fitted to, if there are any."""
    told = [point for point in points if not point.fitted] or points
    percent = [100 * abs(point.predicted_s(model) / point.duration_s - 1) for point in told]
    return {
        "mape_percent": round(float(np.mean(percent)), 3),
        "max_percent": round(max(percent), 3),
        "points": [
            {
                "name": point.name,
                "measured_ms": round(point.duration_s * 1e3, 3),
                "predicted_ms": round(point.predicted_s(model) * 1e3, 3),
                "fitted": point.fitted,
            }
            for point in points
        ],
    }


def eager(batches: np.ndarray, seed: int, overhead_s: float) -> DeviceModel:
    values, points = eager_values()
    model = LatencyModel.from_values("linear", values)
    return DeviceModel(model, {"device_vs_serving": serving_error(model, points)})


def graph(
    shape: ModelShape, devices: int, points: Callable[[], list[Point]],
    batches: np.ndarray, seed: int, overhead_s: float,
) -> DeviceModel:  # fmt: skip
    model = roofline_model(shape, devices, overhead_s)
    return DeviceModel(model, {"device_vs_serving": serving_error(model.plus_constant(overhead_s), points())})


def _recipe(name: str, model: str, shape: ModelShape, make, basis: str, statement: str, **others) -> ShippedRecipe:
    devices = others.get("tensor_parallel", 1)
    return ShippedRecipe(
        name=name,
        title=f"{model} on {'one' if devices == 1 else f'{devices} x'} Ascend 910B",
        hardware="Huawei Ascend 910B (64 GB)",
        specification=CHIP,
        model=f"{model.split(',')[0]} (bfloat16)",
        shape=shape,
        make=make,
        basis=basis,
        statement=statement,
        **{"method": ROOFLINE_METHOD, "sources": (*SOURCES, VLLM_ASCEND)} | others,
    )


RECIPES = (
    _recipe(
        "ascend910b-qwen3-8b-eager", "Qwen3-8B, eager mode,", QWEN3_8B, eager, SERVING_POINTS, EAGER_STATEMENT,
        method=EAGER_METHOD, sources=SOURCES, limits=BatchRange(8192, 8, 200, 16384, 280_000), overhead=False,
    ),
    _recipe(
        "ascend910b-qwen3-8b", "Qwen3-8B, graph mode,", QWEN3_8B,
        partial(graph, QWEN3_8B, 1, lambda: list(ascend_points.graph_points())), SERVING_POINTS, GRAPH_STATEMENT,
        limits=BatchRange(8192, 8, 200, 16384, 280_000),
    ),
    _recipe(
        "ascend910b-qwen2-7b", "Qwen2-7B", QWEN2_7B, partial(graph, QWEN2_7B, 1, ascend_points.omni_points),
        APPROXIMATE, QWEN2_STATEMENT, limits=BatchRange(8192, 8, 256, 16384, 760_000),
    ),
    _recipe(
        "ascend910b-qwen3-32b-tp4", "Qwen3-32B", QWEN3_32B,
        partial(graph, QWEN3_32B, 4, ascend_points.qwen3_32b_points), APPROXIMATE, QWEN3_32B_STATEMENT,
        tensor_parallel=4, limits=BatchRange(8192, 8, 256, 16384, 640_000),
    ),
)  # fmt: skip
