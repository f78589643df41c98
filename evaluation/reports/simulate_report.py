"""One HTML page about one run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from servegym.errors import ExperimentError
from servegym.evaluation.identity import versions
from servegym.evaluation.measures import ATTAINMENT, GAIN_RATIO, LATE_TOKEN, RATIOS, TDG, shows_late_tokens
from servegym.evaluation.reports import page
from servegym.evaluation.reports.figures_table import figures_rows
from servegym.evaluation.reports.latency_plots import plot_latencies
from servegym.evaluation.reports.notes import fleet_notes, profile_notes, run_notes
from servegym.evaluation.reports.plots import plot_batches, plot_gain, plot_kv_memory, plot_requests, plot_urgency
from servegym.evaluation.reports.urgency import urgency
from servegym.latency_models.profile import Profile
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.records.types import POOL
from servegym.simulator.runs.figures import quantiles
from servegym.simulator.runs.results import Result

MOST_ITERATIONS_AGAIN = 100_000  # most iterations to step through again, which takes about 8 s
CAPTIONS = {
    plot_latencies: "How long requests took, by priority: a curve gives the share of requests at or below a time, so "
    "the height at which it meets the dotted line is the share within the SLO; a curve that ends below 1 has requests "
    "that had not come so far.",
    plot_gain: "Gain earned in each moment (area) against what the requests that arrived in it are worth if all their "
    "tokens are in time (line): the two areas are the gain and the ideal gain, and gain is lost where the line stays "
    "above for longer than answers take.",
    plot_requests: "Requests in all engines: those running hold KV memory, those waiting hold none, and where the line "
    "climbs more arrives than is served.",
    plot_kv_memory: "KV blocks in use: where the curve reaches the dotted line, memory is full and requests wait for "
    "it or are evicted.",
    plot_batches: "What an iteration computes at that time: a prefill adds many tokens, a decode one, so tokens above "
    "say how long iterations take and requests below how many tokens they give.",
}
URGENCY_CAPTION = (
    "Plain: urgent requests, whose deadlines are nearer than the time that all work at hand would take; SlideBatching "
    "ranks them by gain per second of work. Hatched: the others, which it ranks by deadline. Times of many urgent "
    "requests are overload."
)


def simulate_report(
    result: Result, path: str | Path, *, profiles: Sequence[Profile] = (), arguments: Mapping[str, Any] | None = None
) -> Path:
    """Write the page and return its path.

    Without a recorded timeline most pictures are left out, and the page says so. profiles: of the deployment, for
    notes on its times. arguments: of the command.
    """
    scenario, summary = result.scenario, result.summary
    late_tokens = shows_late_tokens(str(scenario.workload.provenance.get("slo", "")))
    lead = (
        f"{summary['requests']:,} requests of {scenario.workload.name} at "
        f"{page.text_of(scenario.workload.rate_per_s)} requests/s; {summary['finished']:,} finished within "
        f"{summary['span_s']:,.1f} s of simulated time."
    )
    body = [
        page.paragraph(lead, "lead"),
        page.tiles(_headline(summary, late_tokens)),
        page.section("By priority", page.table(_by_priority(result, late_tokens))),
        *_by_class(summary, late_tokens),
        page.section("How it went", *_pictures(result)),
        page.section("Engines", page.table(_engines(result))),
        page.section(
            "What these figures are not",
            page.bullets([*(fleet_notes(profiles) or profile_notes(None)), *run_notes(result)]),
        ),
        page.section("All figures", page.table(_all_figures(summary), "units")),
        page.section("What was run", page.facts(_what_was_run(result, arguments or {}))),
    ]
    title = f"{scenario.scheduler.label} on {scenario.deployment.name}"
    Path(path).write_text(page.page(title, body), encoding="utf-8")
    return Path(path)


def _headline(summary: Mapping[str, Any], late_tokens: bool) -> dict[str, str]:
    text = page.text_of
    return {
        ATTAINMENT.title: text(summary["slo_attainment"]),
        RATIOS[GAIN_RATIO if summary["tdg_ratio"] is None else TDG].title: text(summary["gain_ratio"]),
        **({LATE_TOKEN.title: text(summary["violations"])} if late_tokens else {}),
        "starved": text(summary["starved"]),
        "fairness by length": text(summary["fairness_by_length"]),
        "tokens in time": text(summary["on_time_token_share"]),
        "within SLO": f"{text(summary['slo_throughput_per_s'])} requests/s",
        "throughput": f"{text(summary['throughput_tokens_per_s'])} tokens/s",
        "TTFT p50, p99": f"{text(summary['ttft_s']['p50'])}, {text(summary['ttft_s']['p99'])} s",
        "TPOT p50, p99": f"{text(summary['tpot_s']['p50'])}, {text(summary['tpot_s']['p99'])} s",
        "evictions": text(summary["evictions"]),
    }


def _by_priority(result: Result, late_tokens: bool) -> pd.DataFrame:
    """Return a row for each figure, a column for each priority."""
    ratio = RATIOS[TDG if result.scenario.gain.name == "tdg" else GAIN_RATIO].title
    columns: dict[str, dict[str, Any]] = {}
    for priority, of in result.requests.groupby("priority"):
        columns[f"priority {priority}"] = {
            "requests": len(of),
            "finished": int(of["finish_s"].notna().sum()),
            ATTAINMENT.title: of["attained"].mean(),
            **({LATE_TOKEN.title: of["violated"].mean()} if late_tokens else {}),
            "starved": of["starved"].mean(),
            ratio: of["gain"].sum() / of["ideal_gain"].sum(),
            **{
                f"{name.upper()} {quantile} (s)": value
                for name in ("ttft", "tpot", "ttlt")
                for quantile, value in quantiles(of[f"{name}_s"].to_numpy()).items()
            },
            "evictions": int(of["evictions"].sum()),
        }
    names = list(next(iter(columns.values()), {}))
    return pd.DataFrame({"": names} | {name: list(column.values()) for name, column in columns.items()}, dtype=object)


def _by_class(summary: Mapping[str, Any], late_tokens: bool) -> list[str]:
    """Return a section on the attainment of each class of SLOs, if there are several.

    late_tokens: with the share of requests with a late token.
    """
    attained = summary["slo_attainment_by_class"]
    if len(attained) < 2:
        return []
    columns = {"class": list(attained), ATTAINMENT.title: list(attained.values())}
    if late_tokens:
        columns[LATE_TOKEN.title] = list(summary["violations_by_class"].values())
    return [page.section("By class of SLOs", page.table(pd.DataFrame(columns)))]


def _engines(result: Result) -> pd.DataFrame:
    """Return the table of engines, without columns that are irrelevant in this run."""
    table = result.engines
    unused = ["rounds"]
    if len(result.scenario.deployment.pools) == 1:
        unused += ["pool", "role"]
    if (table["tier"] == POOL).all():
        unused.append("tier")
    if not table["suspensions"].any():
        unused += ["suspensions", "blocking_mean_s", "blocking_longest_s"]
    if not result.scenario.takes_back:
        unused += ["failures", "recalled", "lost_tokens", "service_s"]
    return table.drop(columns=unused).rename(
        columns={
            "requests": "requests served",
            "scheduled_tokens": "tokens computed",
            "num_output_tokens": "tokens emitted",
            "busy_s": "busy (s)",
            "peak_blocks": "peak KV blocks",
            "failures": "failed (times)",
            "recalled": "requests taken back",
            "lost_tokens": "tokens lost",
            "suspensions": "prefills suspended",
            "blocking_mean_s": "blocking, mean (s)",
            "blocking_longest_s": "blocking, longest (s)",
            "service_s": "in service (s)",
            "utilisation": "busy (share)",
            "kv_use_mean": "KV use, mean (share)",
            "kv_use_peak": "KV use, peak (share)",
        }
    )


def _all_figures(summary: Mapping[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(figures_rows(summary), columns=["figure", "unit", "value"], dtype=object)


def _pictures(result: Result) -> Iterator[str]:
    """Yield the pictures with their captions, and a remark on those that cannot be drawn."""
    if not result.summary["requests"]:
        yield page.paragraph("No request had arrived when the run stopped.")
        return
    recorded = bool(result.arrays.status[0].recording)
    drawn = list(CAPTIONS) if recorded else [plot_latencies]
    for number, plot in enumerate(drawn):
        yield page.drawing(plot(result), f"picture{number}", CAPTIONS[plot])
        if plot is plot_requests and result.scenario.scheduler.urgent_tier is not None:
            yield _urgency_picture(result)
    if not recorded:
        yield page.paragraph("The run was not recorded with its timeline, so nothing can be drawn over time.")


def _urgency_picture(result: Result) -> str:
    if result.summary["iterations"] > MOST_ITERATIONS_AGAIN:
        return page.paragraph(
            f"Urgent and normal requests are not drawn: that runs all iterations again, and there are more than "
            f"{MOST_ITERATIONS_AGAIN:,}."
        )
    try:
        counts = urgency(result)
    except ExperimentError as error:
        return page.paragraph(f"Urgent and normal requests are not drawn: {error}.")
    return page.drawing(plot_urgency(result, counts), "urgency", URGENCY_CAPTION)


def _what_was_run(result: Result, arguments: Mapping[str, Any]) -> dict[str, Any]:
    scenario = result.scenario
    workload = scenario.workload
    return {
        "scheduler": scenario.scheduler.label,
        "parameter": scenario.scheduler.values(scenario.fact),
        **_routing(scenario),
        **_moving(scenario),
        "deployment": _deployment(scenario),
        "gain": dataclasses.asdict(scenario.gain),
        "device disturbance": dataclasses.asdict(scenario.disturbance),
        "estimator correction": dataclasses.asdict(scenario.correction) if scenario.correction else None,
        "until_s": scenario.until_s,
        "workload": {"name": workload.name, "digest": workload.digest, "rate_per_s": workload.rate_per_s}
        | dict(workload.provenance),
        "argument": arguments,
        "version": versions(),
    }


def _routing(scenario: Scenario) -> dict[str, Any]:
    """Return the router and its parameters; nothing for one engine."""
    if scenario.deployment.engines == 1 or scenario.router is None:
        return {}
    return {"router": scenario.router.label, "router's parameter": scenario.router.values(scenario.fact)}


def _moving(scenario: Scenario) -> dict[str, Any]:
    """Return the scaler with its parameters, and the incidents, if there are any."""
    rows: dict[str, Any] = {}
    if scenario.scaler is not None:
        rows |= {"scaler": scenario.scaler.label, "scaler's parameter": scenario.scaler.values(scenario.fact)}
    if scenario.incidents:
        rows["incident"] = {
            str(number): f"{incident.kind} engine {incident.engine} at {incident.time_s:g} s"
            for number, incident in enumerate(scenario.incidents)
        }
    return rows


def _deployment(scenario: Scenario) -> dict[str, Any]:
    deployment = scenario.deployment
    pools = [
        {"engines": pool.engines, "KV blocks of an engine": pool.total_blocks, "tokens in a block": pool.block_tokens}
        for pool in deployment.pools
    ]
    if not isinstance(deployment, Cluster):
        return {"name": deployment.name, **pools[0]}
    more = [{"role": pool.role, "scheduler": (pool.scheduler or scenario.scheduler).label} for pool in deployment.pools]
    return {
        "name": deployment.name,
        **{f"pool {place}": a | b for place, (a, b) in enumerate(zip(more, pools, strict=True))},
        "link": dataclasses.asdict(deployment.link),
        "signals to the router take (s)": deployment.signal_delay_s,
        **({} if deployment.tiers is None else {"tiers, TPOT SLO (s)": deployment.tiers}),
    }
