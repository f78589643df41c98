"""SLO recipes: priorities, weights and SLOs for the requests of a trace, as the papers' evaluations set them.

To add one, register a function here that takes a trace and a random generator and returns columns of
`WORKLOAD`. What the trace has itself (`trace.given`) wins over the recipe's columns; a recipe may read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from servegym.traces.registry import Registry
from servegym.traces.trace import Trace

Recipe = Callable[[Trace, np.random.Generator], Mapping[str, Any]]
RECIPES: Registry[Recipe] = Registry("SLO recipe")

HIGH_SHARE = 0.5
HIGH_WEIGHT, LOW_WEIGHT = 2.0, 1.0


@RECIPES.register("given")
def given(trace: Trace, rng: np.random.Generator) -> Mapping[str, Any]:
    """Nothing added: the trace's own columns, and the defaults of a workload for those it lacks."""
    del trace, rng
    return {}


@RECIPES.register("proserve")
def proserve(trace: Trace, rng: np.random.Generator) -> Mapping[str, Any]:
    """Two priorities at random, half and half, weights 2 : 1; TTFT 1 s, TPOT 50 ms (8B-class models).

    Source: ProServe, evaluation. The paper prints no SLO values: these are the defaults of its engine.
    """
    return _two_priorities(trace, rng) | {"ttft_slo_s": 1.0, "tpot_slo_s": 0.05}


@RECIPES.register("proserve-32b")
def proserve_32b(trace: Trace, rng: np.random.Generator) -> Mapping[str, Any]:
    """As `proserve`, with TTFT 2 s and TPOT 100 ms (32B-class models).

    Source: ProServe, evaluation. The paper prints no SLO values: these are its engine's defaults, doubled.
    """
    return _two_priorities(trace, rng) | {"ttft_slo_s": 2.0, "tpot_slo_s": 0.1}


def _two_priorities(trace: Trace, rng: np.random.Generator) -> dict[str, Any]:
    """Priority 0 (high) and 1 (low) with weights, in agreement with a priority or weight the trace has.

    A request's priority is drawn by its place in the trace: the first of more requests have the same.
    """
    low = (rng.random(len(trace)) >= HIGH_SHARE).astype("i4")
    if "priority" in trace.given:
        priority = trace.given["priority"]
    elif "weight" in trace.given:  # the heaviest is the highest
        priority = np.unique(-trace.given["weight"], return_inverse=True)[1].astype("i4")
    else:
        priority = low
    return {"priority": priority, "weight": np.where(priority == 0, HIGH_WEIGHT, LOW_WEIGHT)}
