"""Writes a profile with the terms that were fitted to measured runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from servegym.evaluation.measured.figures import means_of
from servegym.evaluation.measured.fitting import Fitted, Setting
from servegym.latency_models.documents import digits, latency
from servegym.latency_models.profile import Profile, parse_profile

BASIS = "serving points"


def fitted_document(
    name: str, document: Mapping[str, Any], base: Profile, terms: Fitted, settings: Sequence[Setting], command: str
) -> dict[str, Any]:
    """Return the JSON of profile `name`: a profile's, with the terms fitted to these runs, and its errors on them.

    document, base: of the profile that was fitted. Raises ProfileError for a name that no profile can have.
    """
    runs = [run.name for run, _, _ in settings if not run.overloaded]
    measured_runs = f"{len(runs)} measured runs ({', '.join(runs)})"
    bare = base.device.plus_constant(-base.cpu_overhead_s)
    front_end = dict(document.get("front_end", {}))
    made = {
        **document,
        "name": name,
        "title": f"{base.title}, fitted to {len(runs)} measured runs",
        "basis": BASIS,
        "cpu_overhead_s": digits(terms.factor * base.cpu_overhead_s + terms.step_cpu_s),
        "cpu_overhead_source": f"{document['cpu_overhead_source']} Times {terms.factor:.4g}, plus "
        f"{1e3 * terms.step_cpu_s:.3g} ms, fitted to {measured_runs}.",
        "device": latency(bare.times(terms.factor)),
        "estimator": latency(base.estimator.times(terms.factor).plus_constant(terms.step_cpu_s)),
        "front_end": front_end
        | {
            "request_s": digits(front_end.get("request_s", 0.0) + terms.client_s),
            "source": f"fitted to {measured_runs}",
            "error": "as device_vs_serving: from the client's clock, one number for the way there and back",
        },
        "error": {
            **{key: value for key, value in document["error"].items() if key == "estimator_vs_device"},
            "statement": f"Means of the runs that three terms were fitted to. Before that: {base.error['statement']}",
            "device_vs_serving": _errors(terms, settings),
        },
        "provenance": document["provenance"]
        | {
            "method": f"{document['provenance']['method']} Then three terms by least squares of the logarithms of the "
            f"runs' mean E2E, ITL and TTFT: every batch times {terms.factor:.4g}, {1e3 * terms.step_cpu_s:.3g} ms of "
            f"CPU time a step, {1e3 * terms.client_s:.3g} ms before the queue.",
            "command": command,
            "sources": [
                *document["provenance"]["sources"],
                *({"table": run, "repository": "-", "commit": "-", "licence": "-"} for run in runs),
            ],
        },
    }
    if "operators" in made:
        operators = made["operators"]
        rows = [[digits(terms.factor * number) for number in row] for row in operators["coefficients"]]
        made["operators"] = operators | {"coefficients": rows}
    parse_profile(made, f"profile '{name}'")
    return made


def _errors(terms: Fitted, settings: Sequence[Setting]) -> dict[str, Any]:
    points, percents = [], []
    for run, profile, of in settings:
        if run.overloaded:
            continue
        measured, found = means_of(run.requests, run), means_of(terms.served(run, profile, of), run)
        for metric, there in measured.items():
            here = found[metric]
            percents.append(100 * abs(here / there - 1))
            points.append(
                {
                    "name": f"mean {metric.upper()} of {run.name}",
                    "measured_ms": digits(1e3 * there),
                    "predicted_ms": digits(1e3 * here),
                    "fitted": True,
                }
            )
    mean = sum(percents) / len(percents)
    return {"mape_percent": round(mean, 3), "max_percent": round(max(percents), 3), "points": points}
