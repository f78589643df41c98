"""The page of `real_cpu_engine`: what was measured, and how far the simulation is off."""

import statistics
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from servegym.evaluation.markdown import narrow_header, row

WIDTH = 120  # characters of a line of text
MOST_WAITED = 0.05  # of an engine's time, for a core, in a measurement that is to be trusted

Figures = Mapping[str, Any]
# Shares are compared by their difference, times by their ratio.
SHARES: dict[str, Callable[[Figures], float]] = {
    "TDG ratio": lambda figures: figures["tdg_ratio"],
    "SLO attainment": lambda figures: figures["slo_attainment"],
}
TIMES: dict[str, Callable[[Figures], float]] = {
    "TTFT p50, s": lambda figures: figures["ttft_s"]["p50"],
    "TTFT p90, s": lambda figures: figures["ttft_s"]["p90"],
    "TPOT p50, ms": lambda figures: 1e3 * figures["tpot_s"]["p50"],
    "TPOT p90, ms": lambda figures: 1e3 * figures["tpot_s"]["p90"],
    "time for all, s": lambda figures: figures["span_s"],
}
COMMAND = "python -m experiments.engines.real_cpu_engine --page docs/results/vllm-cpu.md"


def page_of(document: Mapping[str, Any]) -> str:
    """The whole page in Markdown, from `results.json`."""
    return (
        "\n\n".join((heading(document), fit_section(document), runs_section(document), limits_section(document))) + "\n"
    )


def heading(document: Mapping[str, Any]) -> str:
    settings, model, facts, machine = (document[name] for name in ("settings", "model", "facts", "machine"))
    return f"""# A real engine: vLLM on a CPU core, measured and simulated

A small Llama of random weights on {facts["engine"].partition(",")[0]}: profiled, fitted, simulated, and served through
its HTTP server with the same requests at the same times. No number of the served runs went into the profile.

| | |
|---|---|
| model | Llama, {model["layers"]} layers, hidden {model["hidden"]}, {model["heads"]} heads ({model["kv_heads"]} of \
keys), MLP {model["intermediate"]}, {facts["dtype"].removeprefix("torch.")} |
| machine | {machine["cpu"]}, {machine["cores"]} cores; the model computes on one thread |
| engine | {settings["batch_tokens"]} tokens and {settings["sequences"]} requests a batch, contexts of \
{settings["context_tokens"]} tokens, no prefix cache, no asynchronous scheduling |
| requests | {settings["requests"]} of azure-conv that fit the context, SLOs of `proserve`, seed {settings["seed"]} |
| simulated | scheduler `vllm-v1` with the same limits |

Again, with the Python of [an engine's environment](../engines.md), on a machine that does nothing else:

    {COMMAND} \\
        --batches {settings["batches"]} --repeats {settings["repeats"]} --requests {settings["requests"]} \
--times {settings["times"]} --loads {",".join(f"{load:g}" for load in settings["loads"])}"""


def fit_section(document: Mapping[str, Any]) -> str:
    profiled = document["profiled"]
    lines = [
        "## The profile",
        "",
        textwrap.fill(
            f"{profiled['batches']} designed batches, {document['settings']['repeats']} repeats each, of "
            f"{1e3 * profiled['shortest_s']:.1f} to {1e3 * profiled['longest_s']:.0f} ms "
            f"([profiling](../profiling.md)). Slowest and fastest repeat of a "
            f"batch differ by {100 * profiled['median_spread']:.1f} % (median over "
            f"batches); in {100 * profiled['undisturbed']:.0f} % of the repeats the engine had its core throughout. "
            "Before anything was measured or served it had computed a batch of each number of tokens: the first "
            "of a size takes up to half as long again, as kernels are made for it.",
            WIDTH,
        ),
        "",
        *narrow_header("error on batches held out, %", "mean", "decode", "prefill", "mixed", "p95", "largest"),
    ]
    for form, error in document["fit"].items():
        chosen = ", used" if form == document["form"] else ""
        lines.append(row(f"device `{form}`{chosen}", *_errors(error)))
    lines.append(row("estimator `linear`, against the device", *_errors(document["estimator"])))
    return "\n".join(lines)


def _errors(error: Mapping[str, float]) -> list[str]:
    names = ("mape_percent", "decode_mape_percent", "prefill_mape_percent", "mixed_mape_percent", "p95_percent")
    return [f"{error[name]:.1f}" for name in (*names, "max_percent")]


def runs_section(document: Mapping[str, Any]) -> str:
    times, terms = document["settings"]["times"], document["server"]
    loads = " and ".join(f"{load:g}" for load in terms["fitted_at_loads"])
    lines = [
        "## Served and simulated",
        "",
        textwrap.fill(
            f"Load is relative to the simulated saturation, {document['saturation_per_s']:.2f} requests/s. Each load "
            f"was served {times} time{'s' * (times > 1)} in each way; errors are those of the simulation against their "
            "mean.",
            WIDTH,
        ),
        "",
        "### In process",
        "",
        textwrap.fill(
            "The engine core is handed each request at its arrival and stepped; the clock is the time that its thread "
            "computes, so that what else the machine does is not in it.",
            WIDTH,
        ),
        "",
        *comparison(document, "in_process", {"simulated": "simulated"}),
        "",
        textwrap.fill(
            "The batches that vLLM formed, one by one: what the profile says of each against what it took. Where these "
            "are near, what is left between the two columns above comes of the batches, not of the device.",
            WIDTH,
        ),
        "",
        *steps(document),
        "",
        "### Over HTTP",
        "",
        textwrap.fill(
            "`servegym replay` against vLLM's server, by the clock on the wall. What the server adds, no batch "
            "measured in process has in it: its front end and the client take turns with the engine on the cores, and "
            "the engine's threads wait for each other. So, as [`servegym validate --fit`](../validation.md#a-profile-"
            "fitted-to-them) does, three terms were fitted to other requests, "
            f"{document['settings']['requests']} each at loads {loads}, served "
            f"before: batches take {terms['factor']:.3f} times as long, and {1e3 * terms['step_cpu_s']:.2f} ms more, "
            f"and a request is {1e3 * terms['client_s']:.1f} ms on its way. *Batches alone* is the simulation without.",
            WIDTH,
            break_long_words=False,
            break_on_hyphens=False,
        ),
        "",
        *comparison(document, "measured", {"batches alone": "simulated", "simulated": "on_server"}),
    ]
    lines += disturbed(document)
    lines += ["", *narrow_header("load", "requests", "engine waited for a core", "sent late, at most")]
    for run in document["runs"]:
        for one in run["measured"]:
            ended = ", ".join(f"{count} {status}" for status, count in one["statuses"].items())
            late_ms, waited = 1e3 * one["lateness_s"]["max"], 100 * one["engine_waited_share"]
            lines.append(row(f"{run['load']:g}", ended, f"{waited:.1f} % of the time", f"{late_ms:.0f} ms"))
    return "\n".join(lines)


def comparison(document: Mapping[str, Any], way: str, simulations: Mapping[str, str]) -> list[str]:
    """The table of a way of serving beside simulations, by the heads of their columns; errors are the last one's."""
    lines = narrow_header("load", "figure", *simulations, "measured", "of each serving", "error")
    for run in document["runs"]:
        for name, read in (SHARES | TIMES).items():
            guesses, found = [read(run[key]) for key in simulations.values()], [read(one) for one in run[way]]
            guess, mean = guesses[-1], statistics.fmean(found)
            error = f"{guess - mean:+.3f}" if name in SHARES else f"{100 * (guess / mean - 1):+.1f} %"
            each = ", ".join(f"{value:.3f}" for value in found)
            said = (f"{one:.3f}" for one in (*guesses, mean))
            lines.append(row(f"{run['load']:g}", name, *said, each, error))
    return lines


def steps(document: Mapping[str, Any]) -> list[str]:
    """The table of the steps of the first serving of each load in process."""
    lines = narrow_header(
        "load", "batches", "steps", "profile, s in all", "measured, s in all", "error", "mean error of a step"
    )
    for run in document["runs"]:
        for name, each in run["in_process"][0]["by_regime"].items():
            error = 100 * (each["modelled_s"] / each["measured_s"] - 1)
            seconds = (f"{each[key]:.2f}" for key in ("modelled_s", "measured_s"))
            errors = f"{error:+.1f} %", f"{each['mape_percent']:.1f} %"
            lines.append(row(f"{run['load']:g}", name, f"{each['steps']:,}", *seconds, *errors))
    return lines


def disturbed(document: Mapping[str, Any]) -> list[str]:
    """A warning, where other work on the machine decided what was measured."""
    waited = max(one["engine_waited_share"] for run in document["runs"] for one in run["measured"])
    if waited <= MOST_WAITED:
        return []
    warning = (
        f"**Disturbed:** other processes held the cores, the server's frontend and the client among them; the engine "
        f"waited up to {100 * waited:.0f} % of its time. The differences over HTTP are the machine's as much as the "
        "simulation's: near saturation so much less of a core makes a queue grow."
    )
    return ["", textwrap.fill(warning, WIDTH)]


def limits_section(document: Mapping[str, Any]) -> str:
    del document
    return """## What it does not say

- The profile holds the engine core's step. HTTP, the exchange of messages between vLLM's processes and the client's own
  reading are three numbers, the same for all requests.
- Where other work runs on the machine, measured times hold the wait for a core; the table above says how much it was.
- One core and a small model: a step of few tokens is mostly vLLM's Python, which no form of a profile depends on."""
