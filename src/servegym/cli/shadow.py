"""`servegym shadow`: simulates other policies on a proxy's log; `servegym switch`: changes a proxy's policy."""

from __future__ import annotations

import dataclasses
import json as json_text
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from servegym.cli import options
from servegym.cli.options import option
from servegym.cli.output import console_for, number, write_json
from servegym.cli.tables import show_tables
from servegym.errors import ServegymError

if TYPE_CHECKING:
    from servegym.evaluation.shadow import Shadow

EXAMPLES = """\
[bold]Examples[/bold]

servegym shadow requests.jsonl --device h100-llama3-8b --router gorouting --router kv-aware

servegym shadow requests.jsonl --device h100-llama3-8b --scheduler slide-batching --last 3600 --every 600

servegym shadow requests.jsonl --device h100-llama3-8b --router lora-affinity --max-loras 4 --lora-load 0.5 \
--lora-activate 0.02
"""
SWITCH_EXAMPLES = """\
[bold]Examples[/bold]

SERVEGYM_ADMIN_KEY=... servegym switch http://127.0.0.1:8000 --policy policy.json

SERVEGYM_ADMIN_KEY=... servegym switch http://127.0.0.1:8000 --router gorouting --device h100-llama3-8b
"""
ADMIN_VARIABLE = "SERVEGYM_ADMIN_KEY"
SWITCH_TIMEOUT_S = 300.0  # a policy is compiled the first time


def shadow(
    log: Annotated[
        Path,
        typer.Argument(
            metavar="LOG",
            help="The log that servegym proxy --request-log has written, or another with a line of JSON a request "
            "(--columns names its fields).",
            show_default=False,
        ),
    ],
    device: Annotated[
        str, option("PROFILE", "The profile closest to the engines; it is fitted to the log.", options.WHAT)
    ] = ...,  # type: ignore[assignment]
    router: Annotated[
        list[str] | None, option(options.SCHEDULER_METAVAR, "A router to try. Repeatable.", options.WHAT)
    ] = None,
    scheduler: Annotated[
        list[str] | None,
        option(options.SCHEDULER_METAVAR, "A scheduler to try in the engines. Repeatable.", options.WHAT),
    ] = None,
    running_scheduler: Annotated[
        str, option(options.SCHEDULER_METAVAR, "The scheduler that ran.", options.ON_WHAT)
    ] = "vllm-v1",
    running_router: Annotated[
        str | None, option(options.SCHEDULER_METAVAR, "The router that ran.", options.ON_WHAT, show_default="the log's")
    ] = None,
    engines: Annotated[
        int | None, typer.Option(min=1, metavar="N", show_default="the log's", rich_help_panel=options.ON_WHAT)
    ] = None,
    kv_blocks: Annotated[
        int | None, option("N", "KV blocks of an engine.", options.ON_WHAT, min=1, show_default="the profile's")
    ] = None,
    max_sequences: Annotated[int, option("N", "max_num_seqs of the engines.", options.ON_WHAT, min=1)] = 256,
    batch_tokens: Annotated[int, option("N", "max_num_batched_tokens of the engines.", options.ON_WHAT, min=1)] = 2048,
    max_loras: Annotated[int | None, options.field_option("max_loras", options.ON_WHAT, min=1)] = None,
    max_cpu_loras: Annotated[int | None, options.field_option("max_cpu_loras", options.ON_WHAT, min=1)] = None,
    lora_load_s: Annotated[float | None, options.field_option("lora_load_s", options.ON_WHAT)] = None,
    lora_activate_s: Annotated[float | None, options.field_option("lora_activate_s", options.ON_WHAT)] = None,
    columns: options.Columns = None,
    time_unit: options.TimeUnit = None,
    last_s: Annotated[
        float | None,
        option("SECONDS", "Only requests from this time of the log on.", options.ON_WHAT, "--last", min=1.0),
    ] = None,
    every_s: Annotated[
        float | None,
        option(
            "SECONDS", "Follow the log: run again at this interval, until Ctrl-C.", options.ON_WHAT, "--every", min=1.0
        ),
    ] = None,
    profile: Annotated[
        Path | None, option("NAME.json", "Write the fitted profile.", options.OUTPUT, callback=options.file_to_write)
    ] = None,
    json: options.Json = None,
) -> None:
    """Simulate other routers or schedulers on the requests that a proxy has served.

    The profile is fitted to the first half of the requests; the second half is simulated under the policy that ran, to
    measure the error of the simulation, and under the others. Nothing is sent to the proxy or to its engines.
    """
    from servegym.baselines import registry
    from servegym.evaluation.shadow import Candidate, read_served
    from servegym.evaluation.shadow import shadow as shadow_of
    from servegym.latency_models.profile import load_profile
    from servegym.scenarios.fleets import adapters_of
    from servegym.scenarios.parts import Fleet
    from servegym.traces.reading import Reading

    if not router and not scheduler:
        raise ServegymError("name at least one policy to compare with: --router NAME, or --scheduler NAME")
    if every_s is not None and json is not None:
        raise ServegymError("--every has no end, and --json is one document; leave one of them out")
    base, reading = load_profile(device), Reading(columns or (), time_unit)
    for name in (*(router or ()), *filter(None, [running_router])):
        registry.router(name)
    for name in (*(scheduler or ()), running_scheduler):
        registry.scheduler(name)
    adapters = adapters_of(
        Fleet(
            max_loras=max_loras, max_cpu_loras=max_cpu_loras, lora_load_s=lora_load_s, lora_activate_s=lora_activate_s
        )
    )
    candidates = [Candidate(router=one) for one in router or []] + [Candidate(one) for one in scheduler or []]
    console = console_for(json)
    while True:
        served = read_served(
            log, running_scheduler, engines, running_router, last_s, max_sequences, batch_tokens, kv_blocks, adapters,
            reading,
        )  # fmt: skip
        if router and served.run.engines == 1:
            raise ServegymError(f"{log}: there was one engine, so a router decides nothing; try --scheduler")
        found = shadow_of(served, base, candidates)
        show_tables(console, {f"second half, {found.requests} requests": rows_of(found)}, ["TPOT, ms", "TTFT, ms"])
        console.print(conclusions(found, served.left_out))
        if profile is not None:
            _save(profile, device, served.run, found)
            console.print(f"written: {profile}", soft_wrap=True)
        write_json(dataclasses.asdict(found) | {"left_out": served.left_out}, json)
        if every_s is None:
            return
        time.sleep(every_s)


def rows_of(found: Shadow) -> list[dict[str, str]]:
    """Make the rows with TDG ratios, mean latencies, and differences to the policy that ran with 95 % intervals."""
    rows = []
    for one in (found.measured, found.simulated, *found.others):
        itself = one in (found.measured, found.simulated)
        rows.append(
            {
                "policy": one.label,
                "TDG ratio": number(one.tdg, 4),
                "difference": "" if itself else one.against.in_words(),
                "TTFT, ms": number(1e3 * one.ttft_s, 1),
                "TPOT, ms": number(1e3 * one.tpot_s, 2),
            }
        )
    return rows


def conclusions(found: Shadow, left_out: dict[str, int]) -> str:
    terms, error = found.terms, found.error
    lines = [
        f"fitted to the first half: batches times {terms.factor:.4g}, {1e3 * terms.step_cpu_s:.3g} ms of CPU a step, "
        f"{1e3 * terms.client_s:.3g} ms before the queue",
        f"the error of the simulated TDG ratio in the second half is {error.in_words()}",
    ]
    best = max(found.others, key=lambda one: one.against.mean)
    if best.beyond_error and best.against.mean > 0:
        lines.append(f"{best.label} would have gained more, by more than the simulation's error")
    else:
        lines.append("no candidate would have gained more by more than the simulation's error: keep the policy")
    if left_out:
        lines.append(f"not simulated: {', '.join(f'{count} {name}' for name, count in left_out.items())}")
    return "\n".join(lines)


def _save(path: Path, device: str, run: object, found: Shadow) -> None:
    from servegym.evaluation.measured.fitted_profile import fitted_document
    from servegym.evaluation.measured.runs import Run
    from servegym.evaluation.shadow import NOTHING_BESIDE
    from servegym.latency_models.documents import to_text
    from servegym.latency_models.estimators import ESTIMATOR
    from servegym.latency_models.profile import load_profile, profile_document

    assert isinstance(run, Run)
    base = load_profile(device)
    document = fitted_document(
        path.stem, profile_document(device.partition(ESTIMATOR)[0]), base, found.terms, [(run, base, NOTHING_BESIDE)],
        f"servegym shadow {run.name} --device {device}",
    )  # fmt: skip
    path.write_text(to_text(document), encoding="utf-8")


def switch(
    proxy: Annotated[str, typer.Argument(metavar="URL", help="Address of a servegym proxy.", show_default=False)],
    policy: Annotated[Path | None, option("ARTIFACT", "A policy's file, with a router.", options.WHAT)] = None,
    router: Annotated[str | None, option(options.SCHEDULER_METAVAR, "A router by its name.", options.WHAT)] = None,
    device: Annotated[
        str | None,
        option(
            "PROFILE",
            "The latency profile of the engines; use it with --router.",
            options.WHAT,
            show_default="the proxy's",
        ),
    ] = None,
    json: options.Json = None,
) -> None:
    """Change the policy of a running proxy. Requests under way stay where they are.

    The proxy's admin key is read from SERVEGYM_ADMIN_KEY. A policy that cannot be used changes nothing, and is an error
    that says why.
    """
    if (policy is None) == (router is None):
        raise ServegymError("name a policy: --policy ARTIFACT, or --router NAME")
    key = os.environ.get(ADMIN_VARIABLE)
    if not key:
        raise ServegymError(f"{ADMIN_VARIABLE} is not set: a proxy takes policies from its admin only")
    if policy is not None:
        try:
            body = policy.read_bytes()
        except OSError as error:
            raise ServegymError(f"{policy}: cannot be read: {error.strerror}") from None
    else:
        body = json_text.dumps({"router": router} | ({"device": device} if device else {})).encode()
    label = _put(proxy.rstrip("/") + "/admin/policy", body, key)
    console_for(json).print(f"the proxy routes by {label}", soft_wrap=True)
    write_json({"router": label}, json)


def _put(url: str, body: bytes, key: str) -> str:
    """Send a policy to a proxy; returns the label of the policy that then runs. Raises ServegymError."""
    import urllib.error
    import urllib.request

    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    try:
        request = urllib.request.Request(url, body, headers, method="PUT")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=SWITCH_TIMEOUT_S) as answer:
            return str(json_text.load(answer)["router"])
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        try:
            message = json_text.loads(text)["error"]["message"]
        except (ValueError, LookupError, TypeError):
            message = f"HTTP {error.code}"
        hint = " (was it started with SERVEGYM_ADMIN_KEY?)" if error.code == 404 else ""
        raise ServegymError(f"{url}: {message}{hint}") from None
    except (OSError, ValueError, LookupError) as error:
        raise ServegymError(f"{url}: {getattr(error, 'reason', error)}") from None
