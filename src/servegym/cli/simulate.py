"""`servegym simulate`: one run, its figures, and its tables on request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servegym.cli import options
from servegym.cli.output import check_output_folder, console_for, new_table, number, write_json
from servegym.cli.user_policies import load_policy_files
from servegym.simulator.errors import ServegymError

if TYPE_CHECKING:
    from rich.console import Console

    from servegym.latency_models.profile import Profile

EXAMPLES = """\
[bold]Examples[/bold]

servegym simulate --scheduler edf --load high

servegym simulate --trace my.csv --rate 6 --scheduler slide-batching:gamma=2 --out results/mine

servegym simulate --requests 200 --json - | jq .tdg_ratio

servegym simulate --load 1.4 --report overload.html --perfetto overload.json.gz

servegym simulate --engines 4 --router gorouting --load high

servegym simulate --prefill 2 --decode 2 --router min-load --link-gb-per-s 10

servegym simulate --scheduler semantic --slo semantic --host-memory 64 --predictor length_error=0.2,latency_s=0.01

servegym simulate --trace mooncake.jsonl --engines 4 --router prefix-affinity --prefix-store-tokens 4000000

servegym simulate --slo qoserve:shares=70-15-15 --arrivals gamma:cv=3 --load high

servegym simulate --gain ta-slo --load overload

servegym simulate --engines 4 --router min-load --signal-delay 0.05 --incident fail:1@20 --incident return:1@40
"""


def simulate(
    trace: options.Trace = "azure-conv",
    slo: options.Slo = "proserve",
    arrivals: options.Arrivals = None,
    gain: options.Gain = "tdg",
    device: options.Device = "a100-llama3-8b",
    engines: options.Engines = 1,
    prefill: options.Prefill = 0,
    decode: options.Decode = 0,
    link_gb_per_s: options.LinkBandwidth = 25.0,
    signal_delay: options.SignalDelay = 0.0,
    incident: options.Incidents = None,
    noise: options.Noise = 0.0,
    drift: options.Drift = 0.0,
    correct: options.Correct = False,
    host_memory: options.HostMemory = 0.0,
    host_bandwidth: options.HostBandwidth = 25.0,
    prefix_store_tokens: options.PrefixStoreTokens = 0,
    predictor: options.Predictor = None,
    scheduler: options.Scheduler = "slide-batching",
    decode_scheduler: options.DecodeScheduler = None,
    router: options.Router = options.ROUTER,
    scaler: options.Scaler = None,
    load_policies: options.LoadPolicies = None,
    check: options.Check = None,
    rate: options.Rate = None,
    load: options.Load = None,
    requests: options.Requests = None,
    seed: options.Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar=options.OUT_METAVAR,
            help="Write the tables of requests and engines there, and run.json.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    csv: options.Csv = False,
    timeline: Annotated[
        bool,
        typer.Option("--timeline", help="Record every event to a table too.", rich_help_panel=options.OUTPUT),
    ] = False,
    report: options.Report = None,
    perfetto: options.Perfetto = None,
    json: options.Json = None,
) -> None:
    """Serve a trace once and print how well it went.

    Without --rate and --load a trace keeps its own arrival times, and --arrivals their own pace where they have one
    (such as waves:n=5,gap_s=0.1); what has none arrives at load medium (0.7).
    Without --requests a file is served whole, and of a family 1000 requests.
    """
    if (csv or timeline) and out is None:
        raise ServegymError(f"{'--csv' if csv else '--timeline'} needs --out DIR, the folder of the tables")
    if out is not None:
        check_output_folder(out)
    load_policy_files(load_policies, check)

    from servegym.api import simulate as serve
    from servegym.baselines.registry import router as find_router
    from servegym.baselines.registry import scaler as find_scaler
    from servegym.baselines.registry import scheduler as find_scheduler
    from servegym.experiments.deployments import Engines, parse_incident
    from servegym.experiments.identity import versions
    from servegym.latency_models.profile import load_profile
    from servegym.simulator.disturbances import Correction, Disturbance
    from servegym.simulator.gains import gain_of
    from servegym.simulator.predictors import predictor_of
    from servegym.traces.workloads import build_workload

    earning = gain_of(gain)
    policy, routing, profile = find_scheduler(scheduler), find_router(router), load_profile(device)
    scaling = find_scaler(scaler) if scaler is not None else None
    serving = Engines(
        engines, prefill, decode, link_gb_per_s, decode_scheduler, signal_delay, prefix_store_tokens, host_bandwidth
    )
    happenings = [parse_incident(text, serving.total) for text in incident or []]
    deployment = serving.deployment(profile, profile.host_memory(host_memory, host_bandwidth) if host_memory else None)
    rate_per_s = arrival_rate_per_s(rate, load, trace, profile, serving.total, slo, arrivals)
    workload = build_workload(
        trace, requests=requests, rate_per_s=rate_per_s, slo=slo, arrivals=arrivals, seed=seed, window="seed",
        idle_tpot_s=profile.idle_tpot_s,
    )  # fmt: skip
    serving.check_serves(workload)
    recorded = timeline or report is not None or perfetto is not None
    result = serve(
        workload,
        scheduler=policy,
        device=profile,
        deployment=deployment,
        router=routing,
        scaler=scaling,
        incidents=happenings,
        gain=earning,
        disturbance=Disturbance(noise, drift, seed=seed),
        correction=Correction() if correct else None,
        predictor=predictor_of(predictor) if predictor is not None else None,
        record_timeline=recorded,
    )
    document = {
        **result.summary,
        "arguments": {
            "trace": trace,
            "slo": slo,
            "arrivals": arrivals,
            "gain": gain,
            "device": device,
            "engines": serving.total,
            "prefill": prefill,
            "decode": decode,
            "link_gb_per_s": link_gb_per_s if serving.is_disaggregated else None,
            "signal_delay": signal_delay,
            "incidents": incident or [],
            "noise": noise,
            "drift": drift,
            "correct": correct,
            "host_memory": host_memory,
            "host_bandwidth": host_bandwidth,
            "prefix_store_tokens": prefix_store_tokens,
            "predictor": predictor,
            "scheduler": policy.label,
            "decode_scheduler": serving.decoding.label if serving.decoding else None,
            "router": routing.label,
            "scaler": scaling.label if scaling else None,
            "load_policies": load_policies or [],
            "rate": rate,
            "load": load,
            "requests": requests,
            "seed": seed,
        },
        "rate_per_s": workload.rate_per_s,
        "workload": {"name": workload.name, "digest": workload.digest, **workload.provenance},
        "versions": versions(),
    }
    console = console_for(json)
    show(document, console)
    if out is not None:
        written = result.save(out, csv, timeline)
        write_json(document, out / "run.json")
        console.print("Written:", ", ".join(str(path) for path in [*written, out / "run.json"]))
    if report is not None:
        from servegym.experiments.reports.simulate_report import simulate_report

        console.print(f"Report: {simulate_report(result, report, profile=profile, arguments=document['arguments'])}")
    if perfetto is not None:
        from servegym.experiments.reports.perfetto import write_perfetto

        write_perfetto(result, perfetto)
        console.print(f"Timeline: {perfetto}; open it at ui.perfetto.dev or chrome://tracing")
    if json is not None:
        write_json(document, json)


def arrival_rate_per_s(
    rate_per_s: float | None,
    load: str | None,
    trace: str,
    profile: Profile,
    engines: int,
    slo: str,
    arrivals: str | None = None,
) -> float | None:
    """The rate that --rate or --load asks for; None: the trace's own times."""
    from servegym.experiments.load import parse_load, saturation_rate_per_s
    from servegym.traces.arrivals import needs_rate
    from servegym.traces.workloads import load_trace

    if rate_per_s is not None and load is not None:
        raise ServegymError("--rate and --load are both given; one says how fast requests arrive")
    if rate_per_s is not None:
        return rate_per_s
    if load is None and (
        not needs_rate(arrivals)
        if arrivals is not None
        else load_trace(trace, default_requests=1).arrival_s is not None
    ):
        return None
    return parse_load(load or "medium") * saturation_rate_per_s(trace, profile, engines, slo)


def engines_of(arguments: dict[str, Any]) -> str:
    """How many engines there are."""
    if arguments["prefill"]:
        return f"{arguments['prefill']} prefill + {arguments['decode']} decode"
    return str(arguments["engines"])


def show(document: dict[str, Any], console: Console) -> None:
    """The figures of a run as two tables."""
    arguments = document["arguments"]
    routed = f", router {arguments['router']}" if arguments["engines"] > 1 else ""
    if arguments["scaler"]:
        routed += f", scaler {arguments['scaler']}"
    console.print(
        f"{arguments['scheduler']} on {engines_of(arguments)} x {arguments['device']}{routed}, "
        f"{document['workload']['name']} at {number(document['rate_per_s'])} requests/s, seed {arguments['seed']}"
    )
    for note in document["workload"].get("slo_notes", ()):
        console.print(f"SLOs: {note}")
    figures = new_table("", "", numbers=False)
    for name, value in {
        "requests finished": f"{number(document['finished'])} of {number(document['requests'])}",
        "TDG ratio" if document["tdg_ratio"] is not None else "gain / ideal gain": number(document["gain_ratio"], 4),
        "SLO attainment": f"{number(document['slo_attainment'])} ({by_priority(document, 'slo_attainment')})",
        "violations": f"{number(document['violations'])} ({by_priority(document, 'violations')})",
        **violations_by_class(document),
        "tokens in time": number(document["on_time_token_share"]),
        "simulated time": f"{number(document['span_s'], 1)} s",
        "throughput": f"{number(document['throughput_tokens_per_s'], 1)} tokens/s, "
        f"{number(document['throughput_requests_per_s'], 2)} requests/s, "
        f"{number(document['slo_throughput_per_s'], 2)} within SLO",
        "KV memory in use": f"{number(document['kv_use_mean'])} on average, {number(document['kv_use_peak'])} at most",
        "preemptions": number(document["preemptions"]),
        **asked_for(document),
        "iterations": f"{number(document['iterations'])} in {number(document['wall_s'])} s of wall-clock time",
    }.items():
        figures.add_row(name, value)
    latencies = new_table("seconds", "p50", "p90", "p99")
    for name in ("ttft", "tpot", "tbt", "ttlt"):
        latencies.add_row(name.upper(), *(number(value, 4) for value in document[f"{name}_s"].values()))
    console.print(figures, latencies)


def by_priority(document: dict[str, Any], figure: str) -> str:
    shares = document[f"{figure}_by_priority"].items()
    return ", ".join(f"priority {priority}: {number(share)}" for priority, share in shares)


def violations_by_class(document: dict[str, Any]) -> dict[str, str]:
    """Where there are several classes of SLOs."""
    shares = document["violations_by_class"]
    return {f"  of {name}": number(share) for name, share in shares.items()} if len(shares) > 1 else {}


def asked_for(document: dict[str, Any]) -> dict[str, str]:
    """Figures of what not every run has: prefix stores, incidents, a scaler."""
    arguments, figures = document["arguments"], {}
    if arguments["prefix_store_tokens"]:
        figures["prompt tokens from prefix stores"] = number(document["cached_tokens"])
    if arguments["incidents"] or arguments["scaler"]:
        figures["requests taken back"] = (
            f"{number(document['reroutes'])}, with {number(document['lost_tokens'])} tokens of KV"
        )
        figures["engines in service"] = f"{number(document['cost_engine_s'], 1)} s in all"
    return figures
