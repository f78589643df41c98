"""`servegym recommend`: recommends settings and a number of engines for the traffic of a recording."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from servegym.cli import options
from servegym.cli.options import flag, option
from servegym.cli.output import check_output_folder, write_json
from servegym.cli.progress import bar_of
from servegym.cli.runners import Work, runner_of, work_options
from servegym.cli.spec_options import Words, spec_options
from servegym.errors import ExperimentError

if TYPE_CHECKING:
    from servegym.evaluation.recommend.recording import Served

EXAMPLES = """\
[bold]Examples[/bold]

servegym recommend requests.jsonl --device a100-llama3-8b --slo ttft_s=2,tpot_s=0.06 --target attainment=0.95

servegym recommend vllm_bench.json --device h100-llama3-8b --served max_num_seqs=128,max_num_batched_tokens=8192

servegym recommend log.csv --columns arrival=timestamp,prompt=input_tokens,output=completion_tokens \
--device a100-llama3-8b --device h100-llama3-8b --price a100-llama3-8b=2 --price h100-llama3-8b=4.5

servegym recommend azure-conv --rate 12 --engines 4 --target ttft_p99=2

servegym recommend requests.jsonl --spec fleet.yaml, whose `pools` are the engines that there are
"""
FIELDS = (
    "slo", "slo_scale", "device", "engines", "scheduler", "router", "rate_per_s", "arrivals", "requests",
    "max_total_tokens", "max_prompt_tokens", "resample", "columns", "time_unit", "drop_empty", "sort", "kv_events",
    "async_scheduling", "prefix_caching", "signal_delay_s",
)  # fmt: skip
SHOWN = {
    "slo": "ttft_s=2,tpot_s=0.1", "engines": "as few as do", "scheduler": "vllm-v1, and five plug-ins",
    "router": "round-robin, and those that fit the recording", "rate_per_s": "the recording's own",
    "requests": "all of a file, 4000 of a family",
}  # fmt: skip
HELP = {
    "device": "A latency profile, or the path of its .json file. Repeatable; the first one served the recording.",
    "engines": "Number of engines.",
    "scheduler": "A scheduler to try, in place of the default ones. Repeatable.",
    "router": "A router to try beside round-robin, in place of the default ones. Repeatable.",
    "rate_per_s": "Stretch the recording to this rate, requests per second.",
    "requests": "Only the first N requests of a file; the number of requests of a family.",
}


@spec_options(many=("device", "scheduler", "router"), only=FIELDS, shown=SHOWN, help_texts=HELP)
@work_options(
    "results/recommend-RECORDING-..., one for each question", "Folder for recommendation.json and the tables.",
    ("ray", "fresh"),
)  # fmt: skip
def recommend(
    context: typer.Context,
    words: Words,
    work: Work,
    recording: Annotated[
        str,
        typer.Argument(
            metavar="RECORDING",
            help="A trace, a log (--columns names its columns), or a benchmark's result: the detailed one of "
            "vllm bench serve, the report of AIPerf, GuideLLM or inference-perf, the table of servegym replay; or a "
            "family of generated requests.",
        ),
    ],
    target: options.Target = "attainment=0.95",
    served: Annotated[
        str | None,
        option(
            "KEY=VALUE,...",
            "Settings with which the recording was served: engines, max_num_seqs, max_num_batched_tokens, "
            "long_prefill_token_threshold, router. Other setups are compared with this one.",
            options.WHAT,
            show_default="engines=1,max_num_seqs=256,max_num_batched_tokens=2048,router=round-robin, no threshold",
        ),
    ] = None,
    disaggregated: Annotated[
        bool, flag("Also try separate prefill and decode engines.", options.WHAT, "--disaggregated")
    ] = False,
    price: options.Price = None,
    export: Annotated[
        Path | None,
        option(
            options.OUT_METAVAR,
            "Folder for files that run the recommendation: vLLM's flags (and plug-in), proxy, Kubernetes manifest.",
            options.OUTPUT,
        ),
    ] = None,
    report: options.Report = None,
) -> None:
    """Recommend settings and a number of engines for the traffic of a recording.

    If the recording has the latencies of its requests, the profile is first fitted to them, and a simulation is
    compared with them. Then schedulers, routers and limits of the engine are tried on every second window of the
    recording, and the chosen setup is compared with vLLM's defaults on the other windows.
    """
    if export is not None:
        from servegym.export.recommended import check_replaceable

        check_output_folder(export, "--export")
        check_replaceable(export)
    from servegym.cli.recommend_tables import show, show_match
    from servegym.evaluation.recommend.recommending import SLO, Question
    from servegym.evaluation.recommend.recommending import recommend as find
    from servegym.evaluation.recommend.words import document
    from servegym.evaluation.targets import parse_target
    from servegym.scenarios.demand import Demand
    from servegym.scenarios.ranges import listed
    from servegym.scenarios.spec import ServingSpec

    engines, schedulers, routers = (words.pop(name, None) for name in ("engines", "scheduler", "router"))
    spec = ServingSpec(Demand(slo=SLO, keep_slos=True)).with_overrides(words)
    question = Question(
        recording, spec, parse_target(target), engines, listed(schedulers), listed(routers), served_of(served),
        options.numbers_of(price, *options.PRICE), disaggregated, str(context.params["spec"]),
    )  # fmt: skip
    directory = work.out or question.default_directory
    if export is not None and spec.fleet.pools:
        raise ExperimentError("--export is of equal engines, and this fleet has pools; leave it out")
    console = work.console
    with runner_of(work.jobs, None) as runner, bar_of("runs") as (_, progress):
        found = find(question, runner, progress, lambda read, match: show_match(read, match, console))
    show(found, console)
    directory.mkdir(parents=True, exist_ok=True)
    files = [directory / "recommendation.json", *(directory / f"{of.file_name}.csv" for of in found.of_devices)]
    for of, path in zip(found.of_devices, files[1:], strict=True):
        of.table.drop(columns="setup").to_csv(path, index=False)
    write_json(document(found), files[0])
    if export is not None:
        from servegym.export.recommended import export_recommendation

        written = export_recommendation(found, export)
        files += written.files
        for note in written.notes:
            console.print(f"Note: {note}.", soft_wrap=True)
    console.print("Written:", ", ".join(map(str, files)), soft_wrap=True)
    if report is not None:
        from servegym.evaluation.recommend.report import recommend_report

        console.print(f"Report: {recommend_report(found, report)}", soft_wrap=True)
    work.write_json({**document(found), "files": files})


def served_of(text: str | None) -> Served:
    """Parse --served, such as "engines=2,max_num_seqs=128". Raises ExperimentError."""
    from servegym.baselines.registry import router
    from servegym.evaluation.recommend.recording import Served

    kinds = {field.name: field.type for field in dataclasses.fields(Served)}
    settings: dict[str, int | str] = {}
    for pair in (text or "").split(",") if text else []:
        name, _, value = pair.partition("=")
        if name not in kinds or name in settings or not value:
            raise ExperimentError(
                f"--served {pair!r}: it should be {', '.join(kinds)}, each KEY=VALUE and once, such as max_num_seqs=128"
            )
        if kinds[name] == "int":
            if not value.isdecimal() or int(value) < 1:
                raise ExperimentError(f"--served {pair}: it should be a whole number of 1 or more")
            settings[name] = int(value)
        else:
            settings[name] = router(value).label
    return Served(**settings)  # type: ignore[arg-type]
