"""`servegym profile`: what batches take on a real engine, for calibrate to fit."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from servegym.cli import options
from servegym.cli.interruption import Interrupted
from servegym.cli.output import check_output_folder, console_for, new_table, number, write_json
from servegym.cli.progress import bar_of
from servegym.errors import ServegymError

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from servegym.adapters.profiling.design import Space
    from servegym.adapters.profiling.meter import Meter

EXAMPLES = """\
[bold]Examples[/bold]

servegym profile --engine vllm --model meta-llama/Llama-3.1-8B --out results/profile-mine

servegym profile --endpoint http://127.0.0.1:8000 --batch-tokens 2048 --sequences 64

servegym profile --operators config.json --torch-device cuda --batches 200

servegym calibrate results/profile-mine/batches.csv --name mine --kv-blocks 20000
"""
CONFIG_EXAMPLES = """\
[bold]Examples[/bold]

servegym profile from-config Llama-3.1-8B/config.json --gpu h100

servegym profile from-config mixtral.json --gpu h100 --tp 2 --out results/mixtral.json

servegym profile from-config qwen.json --gpu b200 --tp 4 --precision fp8 --utilisation 0.95
"""
ENGINES = ("vllm",)

app = typer.Typer(rich_markup_mode="rich")


@app.callback(invoke_without_command=True, epilog=EXAMPLES)
def profile(
    context: typer.Context,
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Measure an OpenAI-compatible server, by the tokens it streams.",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="vllm", help="Measure the steps of vLLM in this process, on --model.", rich_help_panel=options.WHAT
        ),
    ] = None,
    operators: Annotated[
        Path | None,
        typer.Option(
            metavar="SHAPE.json",
            help="Measure a model's operators with torch; a config.json as on Hugging Face says its shape.",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A folder or name that vLLM loads; of an endpoint, the model's name there.",
            show_default="the first the endpoint serves",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    torch_device: Annotated[
        str, typer.Option(metavar="cpu|cuda|...", help="Where --operators run.", rich_help_panel=options.WHAT)
    ] = "cpu",
    dtype: Annotated[
        str, typer.Option(metavar="NAME", help="Numbers of --operators.", rich_help_panel=options.WHAT)
    ] = "bfloat16",
    eager: Annotated[
        bool, typer.Option("--eager", help="vLLM without compiled graphs.", rich_help_panel=options.WHAT)
    ] = False,
    memory_share: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=1.0,
            metavar="SHARE",
            help="Share of the memory that vLLM takes.",
            show_default="vLLM's",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option(
            min=2,
            metavar="N",
            help="Most tokens of a batch.",
            show_default="vLLM's; 2048",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    sequences: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Most requests of a batch.",
            show_default="vLLM's; 64",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    context_tokens: Annotated[
        int | None,
        typer.Option(
            min=64,
            metavar="N",
            help="Longest context of a request.",
            show_default="the model's; 4096",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    kv_tokens: Annotated[
        int,
        typer.Option(
            min=128,
            metavar="N",
            help="Most tokens of all contexts together; vLLM in this process knows itself.",
            rich_help_panel=options.WHAT,
        ),
    ] = 131072,
    vocabulary: Annotated[
        int,
        typer.Option(
            min=17, metavar="N", help="Token ids sent to an endpoint are 16 up to this.", rich_help_panel=options.WHAT
        ),
    ] = 256,
    batches: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many batches.", rich_help_panel=options.HOW_MUCH)
    ] = 60,
    repeats: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="How often each; the median counts.", rich_help_panel=options.HOW_MUCH),
    ] = 5,
    seed: Annotated[
        int, typer.Option(min=0, metavar="S", help="Seed of which batches they are.", rich_help_panel=options.HOW_MUCH)
    ] = 0,
    out: Annotated[
        Path,
        typer.Option(
            metavar=options.OUT_METAVAR,
            help="Folder of the table. Where it has a part of the same measurement, the rest is measured.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = Path("results/profile"),
    json: options.Json = None,
) -> None:
    """Measure what designed batches take: decodes only, prefills only, and both.

    Writes batches.csv, which calibrate fits a latency profile to, row by row as it goes, and profile.json, which says
    what was measured with what.

    from-config makes a profile without measuring, of a model's config.json and tables or the data sheet of a GPU.
    """
    if context.invoked_subcommand is not None:
        return
    if sum(way is not None for way in (endpoint, engine, operators)) != 1:
        raise ServegymError("name one of --endpoint URL, --engine vllm and --operators SHAPE.json")
    if engine is not None and engine not in ENGINES:
        raise ServegymError(f"--engine {engine} is not known; there is {', '.join(ENGINES)}")
    if engine is not None and model is None:
        raise ServegymError("--engine vllm needs --model, a folder or a name that vLLM loads")
    check_output_folder(out)
    from servegym.adapters.profiling import measuring
    from servegym.adapters.profiling.design import Space

    plan = measuring.Plan(batches, repeats, seed)
    space = Space(batch_tokens or 2048, sequences or 64, context_tokens or 4096, kv_tokens)
    meter: Meter
    if operators is not None:
        from servegym.adapters.profiling.shapes import read_shape
        from servegym.adapters.profiling.torch_operators import TorchMeter

        meter = TorchMeter(read_shape(operators), space, torch_device, dtype)
    elif endpoint is not None:
        meter = meter_of(endpoint, model, space, vocabulary)
    else:
        from servegym.adapters.profiling.vllm_engine import Options, VllmMeter

        meter = VllmMeter(Options(str(model), batch_tokens, sequences, context_tokens, memory_share, eager))
    try:
        with bar_of("batches") as (done, progress):
            table = measuring.measure(meter, plan, out, progress)
    except KeyboardInterrupt:
        raise Interrupted(
            f"{done[0]} of {batches} batches are in {out / measuring.BATCHES}; the same command goes on from there"
        ) from None
    finally:
        meter.close()
    show(table, json)


@app.command("from-config", epilog=CONFIG_EXAMPLES)
def from_config(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.json", help="A model's config.json, as on Hugging Face.")],
    gpu: Annotated[
        str,
        typer.Option(metavar="NAME", help="a100, h100, h200, l40s, b200, a6000, rtx4090 or rtxpro6000.",
                     rich_help_panel=options.WHAT),
    ],
    tp: Annotated[
        int, typer.Option(min=1, metavar="N", help="Tensor-parallel GPUs.", rich_help_panel=options.WHAT)
    ] = 1,
    ep: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="GPUs that experts are spread over whole: 1, or as many as --tp.",
                     rich_help_panel=options.WHAT),
    ] = 1,
    precision: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Weights of the layers: bf16, fp8, fp8-block, int4, or mxfp4 (experts only).",
                     show_default="the config's", rich_help_panel=options.WHAT),
    ] = None,
    kv_precision: Annotated[
        str, typer.Option(metavar="bf16|fp8", help="Cached keys and values.", rich_help_panel=options.WHAT)
    ] = "bf16",
    expert_skew: Annotated[
        float,
        typer.Option(min=0.0, metavar="ALPHA", help="Power law by which tokens choose experts, as tables have it: 1.01 "
                     "or 1.2; 0: evenly.", rich_help_panel=options.WHAT),
    ] = 0.0,
    by: Annotated[
        str | None,
        typer.Option(metavar="tables|roofline", help="What the times rest on.",
                     show_default="tables where there are any, else roofline", rich_help_panel=options.WHAT),
    ] = None,
    cpu_overhead_ms: Annotated[
        float,
        typer.Option(min=0.0, metavar="MS", help="CPU time of a step in which the GPU waits; 0: it is hidden.",
                     rich_help_panel=options.WHAT),
    ] = 0.9,
    utilisation: Annotated[
        float,
        typer.Option(min=0.01, max=1.0, metavar="SHARE", help="Share of the memory that the engine takes "
                     "(gpu_memory_utilization).", rich_help_panel=options.WHAT),
    ] = 0.9,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", callback=options.file_to_write, help="Where the profile is written.",
                     show_default="GPU-MODEL-tpN.json", rich_help_panel=options.OUTPUT),
    ] = None,
    json: options.Json = None,
) -> None:  # fmt: skip
    """Make a latency profile of a model's config.json on a GPU, without measuring anything.

    The error class says what it rests on: tables (kernels measured on this GPU, under SERVEGYM_DATA), or roofline (the
    GPU's data sheet).
    """
    from servegym.latency_models.building import from_config as building
    from servegym.latency_models.building.gpus import gpu as gpu_named
    from servegym.latency_models.building.huggingface import read_model
    from servegym.latency_models.documents import to_text
    from servegym.latency_models.profile import error_class, parse_profile

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
    )
    made = parse_profile(document, document["name"])
    path = out or Path(f"{document['name']}.json")
    path.write_text(to_text(document), encoding="utf-8")
    table = new_table("profile", "")
    fit = document["error"]["device_vs_composition"]
    for name, value in (
        ("name", made.name),
        ("error class", error_class(made)),
        ("rests on", made.basis),
        ("form against composed times, MAPE, %", number(fit["mape_percent"], 2)),
        ("KV cache, tokens", number(made.kv.total_blocks * made.kv.block_tokens)),
        ("time between tokens of one request, ms", number(1e3 * made.idle_tpot_s, 2)),
    ):
        table.add_row(name, value)
    console = console_for(json)
    console.print(table, f"written: {path}", soft_wrap=True)
    if json is not None:
        write_json(document | {"error_class": error_class(made), "files": [path]}, json)


def meter_of(endpoint: str, model: str | None, space: Space, vocabulary: int) -> Meter:
    """What measures a server."""
    try:
        from servegym.adapters.profiling.endpoint import EndpointMeter
        from servegym.adapters.replay.sending import Endpoint
    except ModuleNotFoundError as error:
        raise ServegymError(
            f"--endpoint takes a package that is not installed ({error.name}): pip install 'servegym[serve]'"
        ) from None
    target = Endpoint(endpoint)
    return EndpointMeter(target, model or target.model(), space, vocabulary)


def show(table: Path, json: str | None) -> None:
    """What was measured."""
    import pandas as pd

    from servegym.adapters.profiling.measuring import RECORD
    from servegym.latency_models.fitting import REGIMES, regime
    from servegym.latency_models.model import as_batches

    rows = pd.read_csv(table)
    rows["regime"] = [REGIMES[kind] for kind in regime(as_batches(rows))]
    rows["spread"] = (rows["slowest_s"] - rows["fastest_s"]) / rows["duration_s"]
    record = table.with_name(RECORD)
    console = console_for(json)
    console.print(summary_table(rows), f"written: {table}, {record}", soft_wrap=True)
    if json is not None:
        figures = {
            name: {
                "batches": len(part),
                "shortest_s": float(part["duration_s"].min()),
                "longest_s": float(part["duration_s"].max()),
                "median_spread": float(part["spread"].median()),
            }
            for name, part in rows.groupby("regime")
        }
        document = json_module.loads(record.read_text(encoding="utf-8"))
        write_json(document | {"batches": len(rows), "regimes": figures, "files": [table, record]}, json)


def summary_table(rows: pd.DataFrame) -> Table:
    """How long batches of each kind took, and how far repeats of one differ."""
    table = new_table("batches", "", "shortest, ms", "median, ms", "longest, ms", "spread of repeats, %")
    for name, part in rows.groupby("regime"):
        duration_ms = 1e3 * part["duration_s"]
        table.add_row(
            str(name),
            number(len(part)),
            *(number(float(value), 2) for value in (duration_ms.min(), duration_ms.median(), duration_ms.max())),
            number(100 * float(part["spread"].median()), 1),
        )
    return table
