"""`servegym profile`: measures the time of batches on a real engine, for `calibrate` to fit."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from servegym.cli import options
from servegym.cli.ending import Interrupted
from servegym.cli.made_profiles import CONFIG_EXAMPLES, MAKE_EXAMPLES, from_config, make
from servegym.cli.options import flag, option
from servegym.cli.output import check_output_folder, console_for, new_table, number, write_json
from servegym.cli.progress import bar_of
from servegym.errors import ServegymError
from servegym.extras import needs

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from servegym.adapters.profiling.design import Space
    from servegym.adapters.profiling.measuring import Meter

EXAMPLES = """\
[bold]Examples[/bold]

servegym profile --engine vllm --model meta-llama/Llama-3.1-8B --out results/profile-mine

servegym profile --endpoint http://127.0.0.1:8000 --batch-tokens 2048 --sequences 64

servegym calibrate results/profile-mine/batches.csv --name mine --kv-blocks 20000
"""
ENGINES = ("vllm",)

app = typer.Typer(rich_markup_mode="rich")
app.command("from-config", epilog=CONFIG_EXAMPLES)(from_config)
app.command("make", epilog=MAKE_EXAMPLES)(make)


@app.callback(invoke_without_command=True, epilog=EXAMPLES)
def profile(
    context: typer.Context,
    endpoint: Annotated[
        str | None, option("URL", "Measure an OpenAI-compatible server by the tokens that it streams.", options.WHAT)
    ] = None,
    engine: Annotated[
        str | None, option("vllm", "Measure the steps of vLLM in this process, on --model.", options.WHAT)
    ] = None,
    model: Annotated[
        str | None,
        option(
            "NAME",
            "Folder or name of the model for --engine vllm, or its name at --endpoint.",
            options.WHAT,
            show_default="the first the endpoint serves",
        ),
    ] = None,
    eager: Annotated[bool, flag("vLLM without compiled graphs.", options.WHAT, "--eager")] = False,
    memory_share: Annotated[
        float | None,
        option(
            "SHARE",
            "Share of GPU memory that vLLM takes (gpu_memory_utilization).",
            options.WHAT,
            min=0.01,
            max=1.0,
            show_default="vLLM's",
        ),
    ] = None,
    batch_tokens: Annotated[
        int | None, option("N", "Most tokens of a batch.", options.WHAT, min=2, show_default="vLLM's; 2048")
    ] = None,
    sequences: Annotated[
        int | None, option("N", "Most requests of a batch.", options.WHAT, min=1, show_default="vLLM's; 64")
    ] = None,
    context_tokens: Annotated[
        int | None, option("N", "Longest context of a request.", options.WHAT, min=64, show_default="the model's; 4096")
    ] = None,
    kv_tokens: Annotated[
        int,
        option("N", "Most context tokens in a batch; vLLM in this process knows its own limit.", options.WHAT, min=128),
    ] = 131072,
    vocabulary: Annotated[
        int, option("N", "Token ids sent to an endpoint are 16 up to this.", options.WHAT, min=17)
    ] = 256,
    batches: Annotated[int, option("N", "Number of batches.", options.HOW_MUCH, min=1)] = 60,
    repeats: Annotated[int, option("N", "Repeats of each batch; the median counts.", options.HOW_MUCH, min=1)] = 5,
    seed: Annotated[int, option("S", "Seed that draws the batches.", options.HOW_MUCH, min=0)] = 0,
    out: Annotated[
        Path,
        option(
            options.OUT_METAVAR,
            "Folder of the table. If it holds part of this measurement, only the rest is measured.",
            options.OUTPUT,
        ),
    ] = Path("results/profile"),
    json: options.Json = None,
) -> None:
    """Measure the time of designed batches: decodes only, prefills only, and both.

    Writes batches.csv, row by row, to which calibrate fits a latency profile, and profile.json, a record of engine and
    settings.

    Without measuring, from-config makes a profile from a model's config.json and tables or the data sheet of a GPU.
    """
    if context.invoked_subcommand is not None:
        return
    if (endpoint is None) == (engine is None):
        raise ServegymError("name one of --endpoint URL and --engine vllm")
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
    if endpoint is not None:
        meter = meter_of(endpoint, model, space, vocabulary)
    else:
        from servegym.adapters.profiling.vllm_engine import Options, VllmMeter

        meter = VllmMeter(Options(str(model), batch_tokens, sequences, context_tokens, memory_share, eager))
    try:
        with bar_of("batches") as (done, progress):
            table = measuring.measure(meter, plan, out, progress)
    except KeyboardInterrupt:
        raise Interrupted(
            f"{done[0]} of {batches} batches are in {out / measuring.BATCHES}; the same command continues from there"
        ) from None
    finally:
        meter.close()
    show(table, json)


def meter_of(endpoint: str, model: str | None, space: Space, vocabulary: int) -> Meter:
    """Make the meter of a server."""
    with needs("--endpoint", "serve"):
        from servegym.adapters.profiling.endpoint import EndpointMeter
        from servegym.adapters.replay.sending import Endpoint
    target = Endpoint(endpoint)
    return EndpointMeter(target, model or target.model(), space, vocabulary)


def show(table: Path, json: str | None) -> None:
    """Print the measurements."""
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
    """Make the table of the times of each kind of batch, and of the spread of repeats."""
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
