"""Violations as QoServe counts them, of all requests and by class, importance and length.

A request violates its SLO when any of its tokens is late by the deadlines of the paper's Eq. 1 to 3 (`simulator.slos`).
"""

import dataclasses
from typing import Any

import numpy as np

from experiments.claims.harness.cells import Cell, simulation
from experiments.claims.harness.settings import rules_of, slo_recipe
from servegym.simulator.runs.simulation import Simulation
from servegym.simulator.runs.slos import violated

CLASSES = {"interactive": 0, "TTLT 600 s": 1, "TTLT 1800 s": 2}  # by the application that recipe qoserve assigns
LONGEST_TTLT_S = 1800.0
LONG_QUANTILE = 0.9  # of the prompts; at it or above a request is long (QoServe, section 4.2)
# The chunk all classes share in the paper is 256 tokens, "to meet the TBT targets of the strictest tier". On this model
# of a 70B device a batch of 256 takes longer than the TBT, one of 128 does not.
SHARED_CHUNK = {"a100-llama3-70b-tp4": 128}
QOSERVE, QOSERVE_CODE = "qoserve", "qoserve:dynamic_chunking=code,relegation=code"


def sarathi(order: str, device: str) -> str:
    """Sarathi with the shared chunk. order: fcfs, edf, srpf or sjf."""
    return f"sarathi-{order}:max_num_batched_tokens={SHARED_CHUNK.get(rules_of(device), 256)}"


def slo_of(device: str, **parameters: float) -> str:
    """Recipe qoserve for any family, with more parameters."""
    return ",".join([slo_recipe(device, "qoserve-code"), *(f"{name}={value!r}" for name, value in parameters.items())])


def serve_violations(cell: Cell) -> dict[str, Any]:
    """Violations of a cell (`violations_of`)."""
    return violations_of(simulation(cell))


def violations_of(run: Simulation) -> dict[str, Any]:
    """Shares of requests that violate their SLOs, and the median time to the last token.

    The run ends when the last deadlines are past, whatever is still queued: a request not served by then has violated
    its SLO, and counts as slower than any other. A share is None where there is no such request.
    """
    workload = run.scenario.workload
    table, arrays = workload.table, run.arrays
    end_s = float(table["arrival_s"][-1]) + LONGEST_TTLT_S
    run.scenario = dataclasses.replace(run.scenario, until_s=end_s)
    run.run()
    arrays = run.arrays
    bad = violated(arrays, workload, end_s)
    long = table["prompt_tokens"] >= np.quantile(table["prompt_tokens"], LONG_QUANTILE)
    groups = {
        "": np.ones(len(table), bool),
        " important": table["priority"] == 0,
        " unimportant": table["priority"] > 0,
        " long": long,
        " short": ~long,
        **{f" {name}": table["application"] == application for name, application in CLASSES.items()},
    }
    latency_s = np.where(np.isfinite(arrays.outcomes["finish_s"]), arrays.outcomes["finish_s"], np.inf)
    median_s = float(np.median(latency_s - table["arrival_s"]))
    return {
        **{f"violations{name}": float(bad[group].mean()) if group.any() else None for name, group in groups.items()},
        "latency_p50_s": median_s if np.isfinite(median_s) else None,
    }
