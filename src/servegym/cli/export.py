"""`servegym export`: writes tuned, trained or named policies as files for other programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servegym.cli import options
from servegym.cli.options import option
from servegym.cli.output import console_for, new_table, write_json
from servegym.cli.runners import load_policy_files
from servegym.errors import ServegymError

if TYPE_CHECKING:
    from servegym.export.targets import Exported

EXAMPLES = """\
[bold]Examples[/bold]

servegym export results/tune-default/proserve --target servegym --out tuned.json

servegym export results/tune-default/proserve --target vllm --out tuned.json

servegym export results/tune-default/proserve --target xllm --xllm-version 0.10 --out tuned-xllm.json

servegym export --scheduler slide-batching:gamma=2 --device a100-llama3-8b --slo proserve --trace sharegpt
--target vllm --out named.json

servegym evaluate tuned.json
"""
SLOS = ("ttft_slo_s", "tpot_slo_s", "ttlt_slo_s")
TARGET_METAVAR = "servegym|vllm|ray|sglang|xllm"


def named(kind: str) -> typer.models.OptionInfo:
    """Make an option that names a policy."""
    help_text = f"Instead of a source: a {kind} and parameters other than its own."
    return typer.Option(metavar=options.SCHEDULER_METAVAR, help=help_text, rich_help_panel=options.WHAT)


def export(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="DIR|ARTIFACT",
            help="A folder of `servegym tune` or one of its studies, a folder of `servegym train`, an artifact, or the "
            "name of a learned policy that ships.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[str, option(TARGET_METAVAR, "The program that will use it.", options.OUTPUT)] = "servegym",
    out: Annotated[
        Path,
        option(
            "FILE.json",
            "The file to write; other files that the target needs go into its folder.",
            options.OUTPUT,
            callback=options.file_to_write,
            show_default=False,
        ),
    ] = ...,  # type: ignore[assignment]
    scheduler: Annotated[str | None, named("scheduler")] = None,
    decode_scheduler: Annotated[str | None, named("scheduler of decode engines")] = None,
    router: Annotated[str | None, named("router")] = None,
    scaler: Annotated[str | None, named("scaler")] = None,
    load_policies: options.LoadPolicies = None,
    check: options.Check = None,
    device: Annotated[
        str | None,
        option(
            "PROFILE",
            "The latency profile (or its .json file) with which policies estimate batch times.",
            options.ON_WHAT,
            show_default="the source's",
        ),
    ] = None,
    slo: Annotated[
        str | None,
        option(
            "RECIPE",
            "SLOs and weights of requests that send none: those that the recipe gives most requests of --trace; or "
            "SLOs of your own, which need none, such as ttft_s=2,tpot_s=0.06.",
            options.ON_WHAT,
            show_default="the source's",
        ),
    ] = None,
    trace: Annotated[
        list[str] | None,
        option(
            "NAME|FILE", "The trace to which --slo applies. Repeatable.", options.ON_WHAT, show_default="the source's"
        ),
    ] = None,
    columns: options.Columns = None,
    time_unit: options.TimeUnit = None,
    drop_empty: options.DropEmpty = False,
    sort: options.Sort = False,
    xllm_version: Annotated[
        str | None, option("X.Y", "Of --target xllm.", options.OUTPUT, show_default="the newest recorded")
    ] = None,
    json: options.Json = None,
) -> None:
    """Export the winner of a study, a trained policy, or named policies.

    Targets. servegym: the artifact, a JSON file that every command takes as learned:FILE and `servegym evaluate FILE`
    judges. vllm, ray: the artifact, and a script or a piece of configuration that starts the program with it. sglang: a
    script with the options of its scheduler and a rule for priorities of requests, and a list of what SGLang does
    otherwise. xllm: a configuration with flags and fields of requests, and a list of parameters without a flag.
    """
    from servegym.export.sources import completed, named_artifact, source_artifact
    from servegym.export.targets import export as write_export
    from servegym.traces.reading import Reading

    load_policy_files(load_policies, check)
    texts = {"scheduler": scheduler, "decode_scheduler": decode_scheduler, "router": router, "scaler": scaler}
    given = {role: text for role, text in texts.items() if text is not None}
    if (source is None) == (not given):
        raise ServegymError(
            "name a source (a folder of servegym tune or train, or an artifact), or policies (--scheduler, --router)"
            + ("; not both" if given else "")
        )
    artifact = named_artifact(given) if source is None else source_artifact(source)
    if trace is None and (given_options := Reading(columns or (), time_unit, drop_empty, sort).options):
        raise ServegymError(f"{given_options}: only for a file that --trace names; name it")
    read_by = {"columns": columns or (), "time_unit": time_unit, "drop_empty": drop_empty, "sort": sort}
    exported = write_export(completed(artifact, device, slo, trace or (), read_by), target, out, xllm_version)
    show(exported, target, json)


def show(exported: Exported, target: str, json: str | None) -> None:
    """Print what was written, and how to use it."""
    console = console_for(json)
    table = new_table("", "", numbers=False)
    for role, policy in exported.artifact.policies.items():
        table.add_row(role.replace("_", " "), policy.label)
    estimator, workload = exported.artifact.estimator, exported.artifact.workload
    table.add_row("estimator", "none" if estimator is None else f"{estimator['form']} of {estimator['profile']}")
    table.add_row("workload", "unknown" if workload is None else _in_short(workload))
    console.print(table)
    for note in exported.artifact.provenance.get("workload_notes", ()):
        console.print(note)
    for note in exported.notes:
        console.print(f"Note: {note}.", soft_wrap=True)
    console.print("Written:", ", ".join(map(str, exported.files)), soft_wrap=True)
    for line in exported.how:
        console.print(f"    {line}", soft_wrap=True)
    document = {
        "target": target,
        "policies": {role: policy.to_json() for role, policy in exported.artifact.policies.items()},
        "estimator": estimator,
        "workload": workload,
        "files": exported.files,
        "how": exported.how,
        "notes": exported.notes,
    }
    write_json(document, json)


def _in_short(workload: Mapping[str, Any]) -> str:
    slos = [f"{name.split('_')[0].upper()} {workload[name]:g} s" for name in SLOS if workload.get(name) is not None]
    weights = [f"{priority}: {weight:g}" for priority, weight in workload.get("weight_of_priority", {}).items()]
    parts = [workload.get("slo"), ", ".join(slos), f"weights {', '.join(weights)}" if weights else ""]
    return "; ".join(filter(None, parts))
