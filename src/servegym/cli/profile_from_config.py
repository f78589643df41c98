"""`servegym profile from-config`: a latency profile of a model's config.json, without measuring."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from servegym.cli import options
from servegym.cli.made_profiles import keep_profile
from servegym.cli.options import option
from servegym.errors import ServegymError

CONFIG_EXAMPLES = """\
[bold]Examples[/bold]

servegym profile from-config Llama-3.1-8B/config.json --gpu h100

servegym profile from-config mixtral.json --gpu h100 --tp 2 --out results/mixtral.json

servegym profile from-config qwen.json --gpu b200 --tp 4 --precision fp8 --utilisation 0.95
"""


def from_config(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.json", help="A model's config.json, as on Hugging Face.")],
    gpu: Annotated[str, option("NAME", "a100, h100, h200, l40s, b200, a6000, rtx4090 or rtxpro6000.", options.WHAT)],
    tp: Annotated[int, option("N", "Tensor-parallel GPUs.", options.WHAT, min=1)] = 1,
    ep: Annotated[
        int, option("N", "GPUs that experts are spread over whole: 1, or as many as --tp.", options.WHAT, min=1)
    ] = 1,
    precision: Annotated[
        str | None,
        option(
            "NAME",
            "Weights of the layers: bf16, fp8, fp8-block, int4, nvfp4, or mxfp4 (experts only).",
            options.WHAT,
            show_default="the config's",
        ),
    ] = None,
    kv_precision: Annotated[
        str | None, option("bf16|fp8", "Cached keys and values.", options.WHAT, show_default="the config's")
    ] = None,
    request_tokens: Annotated[
        int,
        option(
            "N",
            "Length of the requests in which KV memory is counted: where layers have "
            "a sliding window, more tokens of long requests fit.",
            options.WHAT,
            min=1,
        ),
    ] = 4096,
    expert_skew: Annotated[
        float,
        option(
            "ALPHA",
            "Power law by which tokens choose experts, as tables have it: 1.01 or 1.2; 0: evenly.",
            options.WHAT,
            min=0.0,
        ),
    ] = 0.0,
    by: Annotated[
        str | None,
        option(
            "tables|roofline",
            "What the times rest on.",
            options.WHAT,
            show_default="tables where there are any, else roofline",
        ),
    ] = None,
    cpu_overhead_ms: Annotated[
        float, option("MS", "CPU time of a step in which the GPU waits; 0: it is hidden.", options.WHAT, min=0.0)
    ] = 0.9,
    utilisation: Annotated[
        float,
        option(
            "SHARE",
            "Share of the memory that the engine takes (gpu_memory_utilization).",
            options.WHAT,
            min=0.01,
            max=1.0,
        ),
    ] = 0.9,
    out: Annotated[
        Path | None,
        option(
            "FILE.json",
            "Where the profile is written.",
            options.OUTPUT,
            callback=options.file_to_write,
            show_default="GPU-MODEL-tpN.json",
        ),
    ] = None,
    json: options.Json = None,
) -> None:
    """Make a latency profile of a model's config.json on a GPU, without measuring anything.

    The error class says what it rests on: tables (kernels measured on this GPU, under SERVEGYM_DATA), or roofline (the
    GPU's data sheet).
    """
    from servegym.latency_models.building import from_config as building
    from servegym.latency_models.building.gpus import gpu as gpu_named
    from servegym.latency_models.building.huggingface import read_model

    if by not in (None, building.TABLES, building.ROOFLINE):
        raise ServegymError(f"--by {by} is not known; there is {building.TABLES} and {building.ROOFLINE}")
    model = read_model(config, precision, kv_precision)
    document = building.build(
        gpu_named(gpu),
        model,
        tp,
        ep,
        by,
        cpu_overhead_s=cpu_overhead_ms * 1e-3,
        utilisation_percent=100 * utilisation,
        skew=expert_skew,
        request_tokens=request_tokens,
    )
    keep_profile(document, out, "fit of the form to composed times, MAPE, %", json)
