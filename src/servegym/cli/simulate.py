"""`servegym simulate`: one run, its figures, and its tables on request."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from servegym.cli import options
from servegym.cli.options import flag
from servegym.cli.output import new_table, number, show_notes, write_json
from servegym.cli.progress import working
from servegym.cli.runners import Work, work_options
from servegym.cli.spec_options import Words, spec_options
from servegym.errors import ServegymError

if TYPE_CHECKING:
    from rich.console import Console

    from servegym.scenarios.spec import ServingSpec
    from servegym.simulator.inputs.scenario import Scenario


Document = dict[str, Any]
EXAMPLES = """\
[bold]Examples[/bold]

servegym simulate --scheduler edf --load high

servegym simulate --trace my.csv --rate 6 --scheduler slide-batching:gamma=2 --out results/mine

servegym simulate --requests 200 --json - | jq .tdg_ratio

servegym simulate --trace year.parquet --slo given --engines 4 --stream --out results/year

servegym simulate --load 1.4 --report overload.html --perfetto overload.json.gz

servegym simulate --engines 4 --router gorouting --load high

servegym simulate --prefill 2 --decode 2 --router min-load --link-gb-per-s 10

servegym simulate --scheduler semantic --slo semantic --host-memory 64 --predictor length_error=0.2,latency_s=0.01

servegym simulate --trace mooncake.jsonl --engines 4 --router prefix-affinity --prefix-store-tokens 4000000
servegym simulate --trace mooncake.jsonl --engines 4 --prefix-caching off

servegym simulate --slo qoserve:shares=70-15-15 --arrivals gamma:cv=3 --load high

servegym simulate --gain ta-slo --load overload

servegym simulate --engines 4 --router min-load --signal-delay 0.05 --incident fail:1@20 --incident return:1@40
"""


@spec_options(shown={"router": options.ROUTER})
@work_options("", "Folder for the tables of requests and engines, and run.json.", ("jobs", "ray", "fresh"))
def simulate(
    words: Words,
    work: Work,
    csv: options.Csv = False,
    timeline: Annotated[bool, flag("Record every event to a table too.", options.OUTPUT, "--timeline")] = False,
    stream: Annotated[
        bool,
        flag(
            "Read the trace and write the tables during the run, with only unfinished requests in memory.",
            options.OUTPUT,
            "--stream",
        ),
    ] = False,
    report: options.Report = None,
    perfetto: options.Perfetto = None,
) -> None:
    """Serve a trace once and print figures of the run.

    Without --rate and --load, a trace keeps its own arrival times, and --arrivals keeps its own rate if it has one
    (waves:n=5,gap_s=0.1); else requests arrive at load medium (0.7).
    Without --requests, all requests of a file are served, and 1000 of a family.
    """
    if (csv or timeline) and work.out is None:
        raise ServegymError(f"{'--csv' if csv else '--timeline'} needs --out DIR, the folder of the tables")
    if stream and (work.out is None or csv or timeline or report is not None or perfetto is not None):
        raise ServegymError(
            "--stream writes the tables of requests and engines as Parquet, and keeps no request in memory: it needs "
            "--out DIR, and excludes --csv, --timeline, --report and --perfetto"
        )
    from servegym.scenarios.building import rate_of
    from servegym.scenarios.fleets import profiles_of
    from servegym.scenarios.parts import Policies
    from servegym.scenarios.spec import ServingSpec
    from servegym.simulator.runs.simulation import Simulation

    spec = ServingSpec(policies=Policies(router=options.ROUTER)).with_overrides(words)
    if stream and work.out is not None:
        from servegym.evaluation.streaming import stream as serve_streamed

        with working(f"serving {spec.demand.trace}"):
            streamed = serve_streamed(spec, work.out)
        workload = {"name": streamed.scenario.workload.name, **streamed.scenario.workload.provenance}
        rates = {"rate_per_s": streamed.rate_per_s, "asked_rate_per_s": None}
        document = document_of(streamed.summary, spec, streamed.scenario, work, rates, workload)
        show(document, work.console)
        keep(document, streamed.files, work)
        work.write_json(document)
        return
    with working("reading and drawing requests"):
        scenario = spec.build()
    recorded = timeline or report is not None or perfetto is not None
    served = scenario.workload
    with working(f"serving {len(served):,} requests"):
        result = Simulation(scenario, recorded).run()
    workload = {"name": served.name, "digest": served.digest, **served.provenance}
    rates = {"rate_per_s": served.rate_per_s, "asked_rate_per_s": rate_of(spec)}
    document = document_of(result.summary, spec, scenario, work, rates, workload)
    show(document, work.console)
    if work.out is not None:
        keep(document, result.save(work.out, csv, timeline), work)
    if report is not None:
        from servegym.evaluation.reports.simulate_report import simulate_report

        with working(f"writing {report}"):
            made = simulate_report(result, report, profiles=profiles_of(spec), arguments=document["arguments"])
        work.console.print(f"Report: {made}")
    if perfetto is not None:
        from servegym.evaluation.reports.perfetto import write_perfetto

        with working(f"writing {perfetto}"):
            write_perfetto(result, perfetto)
        work.console.print(f"Timeline: {perfetto}; open it at ui.perfetto.dev or chrome://tracing")
    work.write_json(document)


def document_of(
    summary: dict[str, Any], spec: ServingSpec, scenario: Scenario, work: Work, rates: Document, workload: Document
) -> Document:
    """Make the JSON document of a run: its figures, engines, arguments, rates (as drawn, and asked for), workload."""
    from servegym.evaluation.identity import versions

    return {
        **summary,
        "serving": scenario.deployment.name,
        "engines": sum(pool.engines for pool in scenario.deployment.pools),
        "arguments": {**spec.overrides(), "load_policies": work.load_policies or []},
        **rates,
        "workload": workload,
        "versions": versions(),
    }


def keep(document: dict[str, Any], tables: Iterable[Path], work: Work) -> None:
    """Write run.json beside the tables of a run, and print the names of all of them."""
    assert work.out is not None
    path = work.out / "run.json"
    write_json(document, path)
    work.written([*tables, path])


def show(document: dict[str, Any], console: Console) -> None:
    """Print the figures of a run as two tables."""
    arguments = document["arguments"]
    routed = f", router {arguments['router']}" if document["engines"] > 1 else ""
    if arguments["scaler"]:
        routed += f", scaler {arguments['scaler']}"
    console.print(
        f"{arguments['scheduler']} on {document['serving']}{routed}, "
        f"{document['workload']['name']} at {rate_in_words(document)}, seed {arguments['seed']}"
    )
    show_notes(document["workload"], console)
    figures = {
        "requests finished": f"{number(document['finished'])} of {number(document['requests'])}",
        **served_figures(document, "simulated time"),
        "KV memory in use": f"{number(document['kv_use_mean'])} on average, {number(document['kv_use_peak'])} at most",
        "evictions": number(document["evictions"]),
        **asked_for(document),
        "iterations": f"{number(document['iterations'])} in {number(document['wall_s'])} s of wall-clock time",
    }
    show_figures(figures.items(), document, console)


def show_figures(figures: Iterable[tuple[str, str]], document: dict[str, Any], console: Console) -> None:
    """Print a table of figures, and one of the run's latencies."""
    table = new_table("", "", numbers=False)
    for name, value in figures:
        table.add_row(name, value)
    latencies = new_table("seconds", "p50", "p90", "p99")
    for name in ("ttft", "tpot", "tbt", "ttlt"):
        latencies.add_row(name.upper(), *(number(value, 4) for value in document[f"{name}_s"].values()))
        if f"engine_{name}_s" in document:  # there is a front end
            of_engine = (number(value, 4) for value in document[f"engine_{name}_s"].values())
            latencies.add_row(f"  at the engine {name.upper()}", *of_engine)
    if "sessions" in document:
        latencies.add_row("sessions", *(number(value, 4) for value in document["session_s"].values()))
    console.print(table, latencies)


def rate_in_words(document: Document) -> str:
    """The rate that was asked for, and that of the arrivals as drawn; the latter alone where none was asked for."""
    asked, drawn = (number(document[name]) for name in ("asked_rate_per_s", "rate_per_s"))
    if document["asked_rate_per_s"] is None or asked == drawn:
        return f"{drawn} requests/s"
    return f"{asked} requests/s ({drawn} as drawn)"


def served_figures(document: dict[str, Any], time: str) -> dict[str, str]:
    """Say in words how well requests were served, by the names of the figures. time: the name of the run's duration."""
    return {
        **slos_met(document),
        "TDG ratio" if document["tdg_ratio"] is not None else "gain / ideal gain": number(document["gain_ratio"], 4),
        "starved": f"{number(document['starved'])} ({by_priority(document, 'starved')})",
        "fairness": fairness(document),
        "tokens in time": number(document["on_time_token_share"]),
        time: f"{number(document['span_s'], 1)} s",
        "throughput": f"{number(document['throughput_tokens_per_s'], 1)} tokens/s, "
        f"{number(document['throughput_requests_per_s'], 2)} requests/s, "
        f"{number(document['slo_throughput_per_s'], 2)} within SLO",
    }


def fairness(document: dict[str, Any]) -> str:
    """Write Jain's fairness indices of gain / ideal gain by group, as text."""
    of = {name: document[f"fairness_by_{name}"] for name in ("client", "length")}
    return ", ".join(f"by {name}: {number(value)}" for name, value in of.items() if value is not None) or "-"


def by_priority(document: dict[str, Any], figure: str) -> str:
    shares = document[f"{figure}_by_priority"].items()
    return ", ".join(f"priority {priority}: {number(share)}" for priority, share in shares)


def slos_met(document: dict[str, Any]) -> dict[str, str]:
    """Write the SLO attainment, and with QoServe's recipe the late-token share; also by class if there are several."""
    from servegym.evaluation.measures import ATTAINMENT, LATE_TOKEN, shows_late_tokens

    shown = [ATTAINMENT, *([LATE_TOKEN] if shows_late_tokens(document["workload"].get("slo", "")) else [])]
    found = {}
    for one in shown:
        found[one.title] = f"{number(document[one.column])} ({by_priority(document, one.column)})"
        shares = document[f"{one.column}_by_class"]
        if len(shares) > 1:
            found |= {f"  {one.title} of {name}": number(share) for name, share in shares.items()}
    return found


def asked_for(document: dict[str, Any]) -> dict[str, str]:
    """List the figures that only some runs have: of sessions, shared prefixes, incidents, a scaler."""
    arguments, figures = document["arguments"], {}
    if "sessions" in document:
        figures["sessions in time"] = f"{number(document['session_slo_attainment'])} of {document['sessions']:,}"
    if document["cached_tokens"]:
        figures["tokens from prefix caches"] = (
            f"{number(document['cached_tokens'])}, {document['cached_share']:.1%} of those admitted"
        )
    if arguments["incidents"] or arguments["scaler"]:
        figures["requests taken back"] = (
            f"{number(document['reroutes'])}, with {number(document['lost_tokens'])} tokens of KV"
        )
        figures["engines in service"] = f"{number(document['cost_engine_s'], 1)} s in all"
    return figures | costs(document)


def costs(document: dict[str, Any]) -> dict[str, str]:
    """List the figures of costs, if prices or power are given."""
    words = {"cost": ("price_per_hour", ""), "energy_kwh": ("busy_w", " kWh")}
    return {
        f"{figure.partition('_')[0]} (a million tokens)": (
            f"{number(document[figure])}{unit} ({number(document[f'{figure}_per_million_tokens'])})"
        )
        for figure, (argument, unit) in words.items()
        if document["arguments"][argument] is not None and figure in document
    }
