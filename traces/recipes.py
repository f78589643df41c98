"""SLO recipes: priorities, weights and SLOs for the requests of a trace, as the papers' evaluations set them.

They are given as "name" or "name:key=value,key=value". To add one, register a function here that takes a trace and a
random generator, and keyword-only parameters, and returns an `Assignment`. Columns of the trace itself (`trace.given`)
take precedence over the recipe's; a recipe may read them. Random columns depend only on a request's position in the
trace, so they are the same at the beginning of a longer trace.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from servegym.errors import WorkloadError, unknown_name
from servegym.simulator.inputs.workload import DEFAULTS
from servegym.traces.arrivals import checked_positive
from servegym.traces.recipe_settings import ascending, checked_share, drawn, of_classes, shares_of
from servegym.traces.registry import Registry
from servegym.traces.trace import Trace


@dataclasses.dataclass(frozen=True)
class Assignment:
    """The result of a recipe: columns of `WORKLOAD` (arrays or scalars), and notes for the provenance."""

    columns: Mapping[str, Any]
    notes: tuple[str, ...] = ()


Recipe = Callable[..., Assignment]
RECIPES: Registry[Recipe] = Registry("SLO recipe")

HIGH_WEIGHT, LOW_WEIGHT = 2.0, 1.0

# ProServe prints no SLO values: these are the defaults of its engine, and doubled for 32B-class models.
PROSERVE_TTFT_S, PROSERVE_TPOT_S = 1.0, 0.05
PROSERVE_32B_TTFT_S, PROSERVE_32B_TPOT_S = 2.0, 0.1

# FlowPrefill, Table 2: TTFT SLO in seconds by model and request type; section 6.5: TBT SLO in seconds.
FLOWPREFILL_TTFT_S = {
    "llama3-8b": {"text": 0.25, "image": 0.5, "search": 4.0, "file": 6.0},
    "qwen2.5-14b": {"text": 0.4, "image": 0.8, "search": 6.5, "file": 9.0},
    "llama3-70b": {"text": 1.0, "image": 2.0, "search": 15.0, "file": 18.0},
}
FLOWPREFILL_TBT_S = {"text": 0.1, "image": 0.1, "search": 0.2, "file": 0.2}

# PolyServe, section 5.1.
POLYSERVE_TTFT_S, POLYSERVE_TPOT_S, POLYSERVE_TPOT_SHARES = "0.3-0.5-1", "0.02-0.03-0.05-0.1", "10-20-30-40"

# QoServe, Table 3: an interactive class and two with a TTLT.
QOSERVE_TTFT_S, QOSERVE_TBT_S = 6.0, 0.05
QOSERVE_TTLT_S = "600-1800"

URGENCY_LEVELS = 5  # of the Emergency Severity Index, 0 the most urgent


@RECIPES.register("given")
def given(trace: Trace, rng: np.random.Generator) -> Assignment:
    """Add nothing: keep the trace's own columns, and the defaults of a workload for missing ones."""
    del rng
    defaults = {"ttft_slo_s": f"TTFT {DEFAULTS['ttft_slo_s']:g} s", "tpot_slo_s": f"TPOT {DEFAULTS['tpot_slo_s']:g} s"}
    missing = [name for name in defaults if name not in trace.given]
    if not missing or np.isfinite(trace.given.get("ttlt_slo_s", np.inf)).all():
        return Assignment({})
    what = " and ".join(defaults[name] for name in missing)
    return Assignment({}, (f"the trace has no {' and '.join(missing)}: {what} by default",))


def _register_proserve(name: str, usual_ttft_s: float, usual_tpot_s: float, doc: str) -> None:
    """Register a recipe of ProServe's evaluation: two priorities, weights 2 : 1, and one TTFT and TPOT SLO."""

    def recipe(
        trace: Trace,
        rng: np.random.Generator,
        *,
        ttft_s: float = usual_ttft_s,
        tpot_s: float | None = None,
        high_share: float = 0.5,
        clients: int = 0,
        idle_tpot_s: float | None = None,
    ) -> Assignment:
        priorities = _two_priorities(trace, rng, checked_share(high_share, f"{name}: high_share"))
        columns = priorities | _clients(priorities["priority"], rng, clients)
        return _one_class(name, columns, ttft_s, tpot_s, usual_tpot_s, idle_tpot_s)

    recipe.__doc__ = doc
    RECIPES.register(name)(recipe)


_register_proserve(
    "proserve", PROSERVE_TTFT_S, PROSERVE_TPOT_S,
    """Two priorities at random, half and half, weights 2 : 1; TTFT 1 s, TPOT 50 ms (8B-class models).

    high_share: share of priority 0. clients: number of clients that send the requests (`_clients`); 0: no client
    column.
    Source: ProServe, evaluation. The paper prints no SLO values: these are the defaults of its engine.
    """,
)  # fmt: skip
_register_proserve(
    "proserve-32b", PROSERVE_32B_TTFT_S, PROSERVE_32B_TPOT_S,
    """As `proserve`, with TTFT 2 s and TPOT 100 ms (32B-class models).

    Source: ProServe, evaluation. The paper prints no SLO values: these are its engine's defaults, doubled.
    """,
)  # fmt: skip
_register_proserve(
    "industrial", PROSERVE_32B_TTFT_S, PROSERVE_32B_TPOT_S,
    """As `proserve-32b`; meant for industrial-day arrivals.

    Priorities do not depend on the time, so that both have the same shape of arrivals (Fig. 1).

    Source: ProServe, sections 1 and 5.7 (Qwen3-32B). Its weights are not published: 2 : 1 is ours.
    """,
)  # fmt: skip


@RECIPES.register("flowprefill")
def flowprefill(
    trace: Trace,
    rng: np.random.Generator,
    *,
    model: str = "llama3-8b",
    scale: float = 1.0,
    ttft_s: str | None = None,
    tpot_s: str | None = None,
    idle_tpot_s: float | None = None,
) -> Assignment:
    """TTFT by request type (application) and model; requests of a trace without types are text.

    model: llama3-8b, qwen2.5-14b or llama3-70b. scale: factor on all TTFT SLOs (Fig. 9, second row).
    ttft_s: TTFT SLOs in place of the model's, for text, image, search and file, as "0.25-0.5-4-6". tpot_s: likewise.
    TPOT is 100 ms for text and image, 200 ms for search and file; the paper judges it in co-located runs only.
    Source: FlowPrefill, Table 2 and section 6.
    """
    del rng
    if model not in FLOWPREFILL_TTFT_S:
        raise WorkloadError(unknown_name("model of recipe flowprefill", model, sorted(FLOWPREFILL_TTFT_S)))
    scale = checked_positive(scale, "flowprefill: scale")
    types = tuple(FLOWPREFILL_TBT_S)
    ttft = FLOWPREFILL_TTFT_S[model] if ttft_s is None else of_classes(ttft_s, "flowprefill: ttft_s", types)
    tpot = FLOWPREFILL_TBT_S if tpot_s is None else of_classes(tpot_s, "flowprefill: tpot_s", types)
    columns = {"ttft_slo_s": scale * _by_type(trace, ttft), "tpot_slo_s": _by_type(trace, tpot)}
    return _with_slack(columns, idle_tpot_s if tpot_s is None else None)


@RECIPES.register("flowprefill-colocated")
def flowprefill_colocated(
    trace: Trace,
    rng: np.random.Generator,
    *,
    model: str = "llama3-8b",
    scale: float = 1.0,
    ttft_s: str | None = None,
    tpot_s: str | None = None,
    idle_tpot_s: float | None = None,
) -> Assignment:
    """As `flowprefill`, with three times its TTFT: prefill and decode share half the GPUs. Source: section 6.5."""
    return flowprefill(trace, rng, model=model, scale=3 * scale, ttft_s=ttft_s, tpot_s=tpot_s, idle_tpot_s=idle_tpot_s)


@RECIPES.register("polyserve")
def polyserve(
    trace: Trace,
    rng: np.random.Generator,
    *,
    ttft_s: str = POLYSERVE_TTFT_S,
    tpot_s: str = POLYSERVE_TPOT_S,
    shares: str = POLYSERVE_TPOT_SHARES,
    idle_tpot_s: float | None = None,
    idle_prefill_tokens_per_s: float | None = None,
) -> Assignment:
    """TTFT 0.3, 0.5 or 1 s, each as likely; TPOT 20, 30, 50 or 100 ms for 10, 20, 30 and 40 %.

    ttft_s, tpot_s: the values, ascending; shares: of the TPOT values, divided by their sum.
    Only SLOs that an idle engine can meet are assigned: TPOT above idle_tpot_s, and TTFT above prompt tokens /
    idle_prefill_tokens_per_s; if no value fits, the loosest. If either is None, every value fits.

    Source: PolyServe, section 5.1. SLOs are not scaled: those out of reach are left out.
    """
    ttfts = np.array(ascending(ttft_s, "polyserve: ttft_s"))
    tpots = np.array(ascending(tpot_s, "polyserve: tpot_s"))
    parts = shares_of(shares, "polyserve: shares", [f"{1e3 * one:g} ms" for one in tpots])
    tpot_met, ttft_met = np.ones(len(tpots), bool), np.ones((len(trace), len(ttfts)), bool)
    if idle_tpot_s is not None:
        tpot_met = checked_positive(idle_tpot_s, "idle_tpot_s") < tpots
    if idle_prefill_tokens_per_s is not None:
        prefill_s = trace.prompt_tokens / checked_positive(idle_prefill_tokens_per_s, "idle_prefill_tokens_per_s")
        ttft_met = prefill_s[:, None] < ttfts
    level = rng.random((len(trace), 2))
    columns = {
        "ttft_slo_s": ttfts[drawn(level[:, 0], np.ones(len(ttfts)), ttft_met)],
        "tpot_slo_s": tpots[drawn(level[:, 1], parts, tpot_met)],
    }
    notes = []
    if not tpot_met.all():
        left_out = ", ".join(f"{1e3 * one:g}" for one in tpots[~tpot_met])
        notes.append(f"TPOT SLOs of {left_out} ms left out: an idle engine takes {1e3 * (idle_tpot_s or 0):g} ms")
    if restricted := int((~ttft_met).any(axis=1).sum()):
        notes.append(f"TTFT SLOs an idle engine cannot meet left out for {restricted} requests")
    return Assignment(columns, tuple(notes))


@RECIPES.register("qoserve")
def qoserve(
    trace: Trace,
    rng: np.random.Generator,
    *,
    shares: str = "1-1-1",
    ttft_s: float = QOSERVE_TTFT_S,
    tpot_s: float | None = None,
    ttlt_s: str = QOSERVE_TTLT_S,
    low_share: float = 0.0,
    idle_tpot_s: float | None = None,
) -> Assignment:
    """Thirds: interactive (TTFT 6 s, TBT 50 ms), TTLT 600 s, TTLT 1800 s; the class is the application too.

    shares: of these three classes, such as "70-15-15", divided by their sum. ttft_s, tpot_s: of the interactive class;
    ttlt_s: of the two others. low_share: share of low importance (priority 1) in each class; 0.2 in the transient test.

    Source: QoServe, Table 3 and section 4.3. It has no weights: all are 1.
    """
    low_share = checked_share(low_share, "qoserve: low_share")
    ttlts = [np.inf, *of_classes(ttlt_s, "qoserve: ttlt_s", ("the second class", "the third")).values()]
    parts = shares_of(shares, "qoserve: shares", ("interactive", "the second class", "the third"))
    level = rng.random((len(trace), 2))
    kind = drawn(level[:, 0], parts, np.ones(len(parts), bool)).astype("i4")
    columns = {
        "application": kind,
        "priority": (level[:, 1] < low_share).astype("i4"),
        "ttlt_slo_s": np.array(ttlts)[kind],
    }
    return _one_class("qoserve", columns, ttft_s, tpot_s, QOSERVE_TBT_S, idle_tpot_s)


@RECIPES.register("semantic")
def semantic(trace: Trace, rng: np.random.Generator) -> Assignment:
    """Five equally likely urgency levels, 0 the most urgent; the priority is the urgency.

    Source: semantic scheduling, section 4.1. It measures waiting times and has no SLOs: the workload's defaults apply.
    """
    drawn = rng.integers(0, URGENCY_LEVELS, len(trace)).astype("i4")
    urgency = trace.given.get("urgency", drawn)
    return Assignment({"urgency": urgency, "priority": urgency})


def _two_priorities(trace: Trace, rng: np.random.Generator, high_share: float = 0.5) -> dict[str, Any]:
    """Priority 0 (high) and 1 (low) with weights, consistent with a priority or weight that the trace has."""
    low = (rng.random(len(trace)) >= high_share).astype("i4")
    if "priority" in trace.given:
        priority = trace.given["priority"]
    elif "weight" in trace.given:  # the heaviest is the highest
        priority = np.unique(-trace.given["weight"], return_inverse=True)[1].astype("i4")
    else:
        priority = low
    return {"priority": priority, "weight": np.where(priority == 0, HIGH_WEIGHT, LOW_WEIGHT)}


def _clients(priority: np.ndarray, rng: np.random.Generator, clients: int) -> dict[str, np.ndarray]:
    """Draw the client of each request, int32: half of the clients have high priority (even numbers), half low (odd).

    A client has one priority, as in ProServe (section 1, footnote). The k-th client of each half has a share
    proportional to 1 / k, which is our choice: of 26 clients the largest two send 16 % of the requests each and the
    largest five 52 %; of the 27 clients of the multi-tenant LMSYS arena trace (VTC's) the largest two send 20 and 17 %,
    the largest five 63 %. Clients are drawn from a generator of their own, so that priorities do not depend on them.
    """
    if clients == 0:
        return {}
    if clients < 2 or clients % 2:
        raise WorkloadError(f"clients is {clients}; it should be 0, or even: half of them have high priority")
    ends = np.cumsum(1 / np.arange(1, clients // 2 + 1))
    rank = np.searchsorted(ends[:-1] / ends[-1], rng.spawn(1)[0].random(len(priority)), "right")
    return {"client": (2 * rank + (priority > 0)).astype("i4")}


def _one_class(
    recipe: str,
    columns: dict[str, Any],
    ttft_s: float,
    tpot_s: float | None,
    usual_tpot_s: float,
    idle_tpot_s: float | None,
) -> Assignment:
    """Add one TTFT and one TPOT SLO. tpot_s: is kept as it is; None: usual_tpot_s, scaled by `_with_slack`."""
    slos = {
        "ttft_slo_s": checked_positive(ttft_s, f"{recipe}: ttft_s"),
        "tpot_slo_s": usual_tpot_s if tpot_s is None else checked_positive(tpot_s, f"{recipe}: tpot_s"),
    }
    return _with_slack(columns | slos, idle_tpot_s if tpot_s is None else None)


def _with_slack(columns: dict[str, Any], idle_tpot_s: float | None) -> Assignment:
    """Scale all TPOT SLOs by one factor if the smallest is below twice the idle TPOT.

    idle_tpot_s: time between tokens of a request alone on the device; None: no scaling.
    """
    if idle_tpot_s is None:
        return Assignment(columns)
    factor = 2 * checked_positive(idle_tpot_s, "idle_tpot_s") / float(np.min(columns["tpot_slo_s"]))
    if factor <= 1:
        return Assignment(columns)
    idle_ms = f"{1e3 * idle_tpot_s:.3g} ms"
    note = f"TPOT SLOs times {factor:.4g}, so that the smallest is twice the {idle_ms} of an idle engine"
    return Assignment({**columns, "tpot_slo_s": columns["tpot_slo_s"] * factor}, (note,))


def _by_type(trace: Trace, values: Mapping[str, float]) -> np.ndarray:
    """Return the value for each request's type, float64 of shape (requests,); without types, that of text."""
    if "application" not in trace.given:
        return np.full(len(trace), values["text"])
    types = trace.labels.get("application", ())
    if not types or not set(types) <= set(values):
        raise WorkloadError(
            f"trace '{trace.name}': recipe flowprefill depends on the type of a request, so application should be"
            f" {', '.join(values)}; it is {', '.join(types[:8]) or 'numbers'}"
        )
    return np.array([values[name] for name in types])[trace.given["application"]]
