"""`servegym replay`: sends a workload to a live endpoint, and scores it as a simulation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from servegym.cli import options
from servegym.cli.ending import Interrupted
from servegym.cli.options import flag, option
from servegym.cli.output import number, show_notes
from servegym.cli.progress import bar_of
from servegym.cli.runners import Work, work_options
from servegym.cli.simulate import keep, rate_in_words, served_figures, show_figures
from servegym.cli.spec_options import Words, spec_options
from servegym.errors import ServegymError
from servegym.extras import needs

if TYPE_CHECKING:
    from rich.console import Console

    from servegym.adapters.replay.measuring import Measured

EXAMPLES = """\
[bold]Examples[/bold]

servegym replay --endpoint http://127.0.0.1:8000 --trace azure-conv --rate 2 --requests 200

servegym replay --endpoint http://127.0.0.1:8000 --device results/calibrate/mine.json --load high --out results/live

servegym replay --endpoint http://127.0.0.1:8000 --trace chat-sessions --clients 8 --requests 200

servegym replay --endpoint http://127.0.0.1:8000 --trace my.csv --speed 2 --json - | jq .tdg_ratio

The same workload, simulated: servegym simulate --device results/calibrate/mine.json --scheduler vllm-v1 --load high
"""
KEY = "OPENAI_API_KEY"


@spec_options(
    only=(
        "trace", "slo", "slo_scale", "keep_slos", "arrivals", "load_profile", "cv", "max_total_tokens",
        "max_prompt_tokens", "window", "columns", "time_unit", "drop_empty", "sort",
        "device", "engines", "rate_per_s", "load", "clients", "max_concurrency", "requests", "seed",
    ),
    help_texts={
        "device": "The endpoint's latency profile: --load is relative to its saturation, and recipes give no SLO that "
        "it cannot meet when idle, as in simulate.",
        "engines": "Engines behind the endpoint, for --load.",
    },
    shown={"device": "not known"},
)  # fmt: skip
@work_options(
    "", "Folder for the tables of requests and tokens, and run.json.",
    ("load_policies", "check", "jobs", "ray", "fresh"),
)  # fmt: skip
def replay(
    words: Words,
    work: Work,
    endpoint: Annotated[
        str,
        option(
            "URL",
            "An OpenAI-compatible server, such as http://127.0.0.1:8000. "
            f"A key in the environment variable {KEY} is sent.",
            options.WHAT,
        ),
    ],
    model: Annotated[
        str | None, option("NAME", "The model's name there.", options.WHAT, show_default="the first it serves")
    ] = None,
    speed: Annotated[
        float, option("X", "Divide arrival and think times by X; SLOs stay as they are.", options.HOW_MUCH)
    ] = 1.0,
    prompt: Annotated[
        str,
        option("ids|text", "Prompts as token ids, of exact length, or as words, of about the length.", options.ON_WHAT),
    ] = "ids",
    vocabulary: Annotated[int, option("N", "Token ids are drawn from 16 up to this.", options.ON_WHAT)] = 256,
    slos: Annotated[bool, flag("Send SLOs and weight as vllm_xargs.", options.ON_WHAT, "--slos/--no-slos")] = True,
    priority: Annotated[bool, flag("Send priorities.", options.ON_WHAT, "--priority/--no-priority")] = True,
    timeout: Annotated[
        float, option("SECONDS", "Time limit of a request, its stream included.", options.HOW_MUCH)
    ] = 600.0,
    csv: options.Csv = False,
) -> None:
    """Send a workload to a live endpoint, and print how well it was served.

    Requests are sent at their arrival times, whatever has been answered; turns of sessions, and requests of --clients,
    are sent when the ones before have ended. Figures have the same names as in simulate; those that only an engine can
    know are null. Needs the packages of servegym[serve].
    """
    if csv and work.out is None:
        raise ServegymError("--csv needs --out DIR, the folder of the tables")
    with needs("replay", "serve"):
        from servegym.adapters.replay import sending

    from servegym.adapters.replay.bodies import Bodies
    from servegym.adapters.replay.front import Limits
    from servegym.adapters.replay.measuring import Measured
    from servegym.adapters.replay.sending import timed
    from servegym.evaluation.identity import versions
    from servegym.scenarios.building import rate_of, whole_in
    from servegym.scenarios.spec import ServingSpec
    from servegym.traces.workloads import load_trace

    key = os.environ.get(KEY)
    target = sending.Endpoint(endpoint, timeout, headers=(("authorization", f"Bearer {key}"),) if key else ())
    spec = ServingSpec().with_overrides(words)
    demand = spec.demand
    limits = Limits(whole_in(spec, "clients"), whole_in(spec, "max_concurrency"))
    if "device" not in words:  # then SLOs cannot be compared with what the engine can do
        if demand.load is not None:
            raise ServegymError(
                "--load is relative to what the endpoint can serve: name its profile with --device, or give --rate"
            )
        paced = demand.rate_per_s is not None or limits.clients is not None
        if not paced and load_trace(str(demand.trace), default_requests=1, reading=demand.reading).arrival_s is None:
            raise ServegymError(
                f"trace '{demand.trace}' has no times of its own: give --rate or --clients, or --device and --load"
            )
        spec = spec.replaced(keep_slos=True)
    workload = timed(spec.workload(), speed)
    asked_per_s = None if demand.rate_per_s is None and demand.load is None else rate_of(spec)
    bodies = Bodies(model or target.model(), prompt, vocabulary, slos, priority, demand.seed)
    with bar_of("requests") as (_, progress):
        result = Measured(workload, sending.replay(workload, target, bodies, progress, limits))
    document = {
        **result.summary,
        "arguments": {
            "endpoint": endpoint,
            "model": bodies.model,
            **words,
            "speed": speed,
            "prompt": prompt,
            "vocabulary": vocabulary,
            "slos": slos,
            "priority": priority,
            "timeout": timeout,
        },
        "rate_per_s": workload.rate_per_s,
        "asked_rate_per_s": None if asked_per_s is None else asked_per_s * speed,
        "workload": {"name": workload.name, "digest": workload.digest, **workload.provenance},
        "versions": versions(),
    }
    show(document, work.console)
    if work.out is not None:
        keep(document, result.save(work.out, csv), work)
    work.write_json(document)
    if result.replayed.interrupted:
        raise Interrupted(left_of(result, work.out))


def left_of(result: Measured, out: Path | None) -> str:
    """Describe what is left of an interrupted replay."""
    sent, in_all = result.summary["requests"], len(result.scenario.workload)
    kept = f"; their results are in {out}" if out is not None else ""
    return f"{sent} of {in_all} requests were sent{kept}"


def show(document: dict[str, Any], console: Console) -> None:
    """Print the figures of a replay as two tables."""
    arguments = document["arguments"]
    clients = arguments.get("clients")
    pace = f"by {clients} clients" if clients is not None else f"at {rate_in_words(document)}"
    console.print(
        f"{arguments['model']} at {arguments['endpoint']}, {document['workload']['name']} {pace}, "
        f"seed {document['workload']['seed']}"
    )
    show_notes(document["workload"], console)
    ended = ", ".join(f"{count} {status}" for status, count in document["statuses"].items() if count)
    reasons = (("", f"{count} times: {reason}") for reason, count in document["reasons"].items())
    figures = served_figures(document, "time") | {
        "sent late by": f"{number(1e3 * document['lateness_s'].get('mean', 0.0), 1)} ms on average, "
        f"{number(1e3 * document['lateness_s'].get('max', 0.0), 1)} ms at most"
    }
    show_figures([("requests", ended), *reasons, *figures.items()], document, console)
