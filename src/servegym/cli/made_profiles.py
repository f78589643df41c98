"""`servegym profile make` and `from-config`: make latency profiles without measuring, and write them to a file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servegym.cli import options
from servegym.cli.options import option
from servegym.cli.output import console_for, new_table, number, write_json
from servegym.errors import ServegymError

if TYPE_CHECKING:
    from servegym.simulator.memory.kv_groups import KvCacheGroup

ProfileFile = Annotated[
    Path | None,
    option(
        "FILE.json",
        "Where the profile is written.",
        options.OUTPUT,
        callback=options.file_to_write,
        show_default="its name",
    ),
]


def in_words(groups: tuple[KvCacheGroup, ...]) -> str:
    """Describe KV cache groups: "6 window of 1,024, 1 full"."""
    parts = []
    for group, count in Counter(groups).items():
        kind = f"{'local ' * group.local}window of {group.window:,}" if group.window else "full"
        parts.append(f"{count} {'state' if group.state else kind}")
    return ", ".join(parts) or "1 full"


def keep_profile(document: dict[str, Any], out: Path | None, fit: str, json: options.Json) -> None:
    """Write a profile's document and print it. out: None: a file with its name. fit: label of its form's error."""
    from servegym.latency_models.documents import to_text
    from servegym.latency_models.profile import error_class, parse_profile
    from servegym.latency_models.stated_errors import expected, fit_percent

    made = parse_profile(document, document["name"])
    path = out or Path(f"{document['name']}.json")
    path.write_text(to_text(document), encoding="utf-8")
    table = new_table("profile", "", numbers=False)
    for name, value in (
        ("name", made.name),
        ("error class", error_class(made)),
        ("rests on", made.basis),
        ("error against measurements", expected(made)),
        (fit, number(fit_percent(made), 2)),
        ("KV cache, tokens", number(made.kv.total_blocks * made.kv.block_tokens)),
        ("KV cache groups", in_words(made.kv.groups)),
        ("time between tokens of one request, ms", number(1e3 * made.idle_tpot_s, 2)),
    ):
        table.add_row(name, value)
    console = console_for(json)
    console.print(table, f"written: {path}", soft_wrap=True)
    write_json(document | {"error_class": error_class(made), "files": [path]}, json)


MAKE_EXAMPLES = """\
[bold]Examples[/bold]

servegym profile make h100_sxm:Qwen/Qwen3-32B:tp=2

servegym profile make h200_sxm:deepseek-ai/DeepSeek-V3:tp=8:engine=sglang --out deepseek.json

servegym profile make b200_sxm:my-model:tp=4:weights=fp8
"""


def make(
    device: Annotated[
        str,
        typer.Argument(
            metavar="SYSTEM:MODEL[:tp=N...]",
            help="A system and a model of `servegym devices --system`, or the folder of a config.json of a known "
            "architecture; tp, ep, engine, version, weights and kv set how it is served.",
        ),
    ],
    out: ProfileFile = None,
    json: options.Json = None,
) -> None:
    """Make a latency profile from steps that aiconfigurator-core composes of measured operators.

    Every command also takes such a device by name: --device h100_sxm:Qwen/Qwen3-32B:tp=2.
    """
    from servegym.latency_models.step_models.profiles import made_profile

    keep_profile(made_profile(device), out, "form against the library's steps, MAPE, %", json)


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
        int, option("N", "Expert-parallel GPUs, each with whole experts: 1, or the same as --tp.", options.WHAT, min=1)
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
            "Length of the requests by which KV memory is counted; with sliding windows, more tokens of long requests "
            "fit.",
            options.WHAT,
            min=1,
        ),
    ] = 4096,
    expert_skew: Annotated[
        float,
        option(
            "ALPHA",
            "Exponent of the power law by which tokens choose experts, as in the tables: 1.01 or 1.2; 0: evenly.",
            options.WHAT,
            min=0.0,
        ),
    ] = 0.0,
    by: Annotated[
        str | None,
        option(
            "tables|roofline",
            "Source of the times.",
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
    out: ProfileFile = None,
    json: options.Json = None,
) -> None:
    """Make a latency profile for a model's config.json on a GPU, without measuring anything.

    The error class names the source of its times: tables (kernels measured on this GPU, under SERVEGYM_DATA), or
    roofline (the GPU's data sheet).
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
