"""Recipes with SLOs that the user gives, for all requests or for classes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from servegym.errors import WorkloadError, unknown_name
from servegym.simulator.inputs.workload import DEFAULTS
from servegym.traces.arrivals import checked_positive
from servegym.traces.recipe_settings import drawn
from servegym.traces.recipes import RECIPES, Assignment
from servegym.traces.trace import Trace

FIELD = {"ttft_s": "ttft_slo_s", "tpot_s": "tpot_slo_s", "ttlt_s": "ttlt_slo_s"}
SAME = "same"
RIGHT = "it should have ttft_s and tpot_s, or ttlt_s"
DEFAULT_CLASSES = {"chat": "0.8:ttft_s=1:tpot_s=0.05", "batch": "0.2:ttlt_s=600"}


def recipe_named(text: str) -> str:
    """Expand the short form: "ttft_s=2,tpot_s=0.06" is the recipe `same` with these settings."""
    return f"{SAME}:{text}" if "=" in text.partition(":")[0] else text


def recipe_of(text: str, **defaults: Any) -> Callable[..., Assignment]:
    """Return the recipe of `text`, also in the short form, with its settings bound. Raises WorkloadError."""
    try:
        return RECIPES.bound(recipe_named(text), **defaults)
    except WorkloadError as error:
        raise WorkloadError(str(error).replace(f"SLO recipe '{SAME}'", f"SLOs '{text}'")) from None


@RECIPES.register(SAME)
def same(
    trace: Trace,
    rng: np.random.Generator,
    *,
    ttft_s: float | None = None,
    tpot_s: float | None = None,
    ttlt_s: float | None = None,
) -> Assignment:
    """Set the same SLOs for all requests, and nothing else: by default TTFT 1 s and TPOT 50 ms.

    ttlt_s: in place of the other two. Values are kept even if an idle engine cannot meet them. "ttft_s=2,tpot_s=0.06"
    is short for this recipe.
    """
    del trace, rng
    given = {"ttft_s": ttft_s, "tpot_s": tpot_s, "ttlt_s": ttlt_s}
    slos = {key: value for key, value in given.items() if value is not None}
    columns = {FIELD[key]: value for key, value in _slos(slos, "the SLO").items()} if slos else {}
    return Assignment(columns)


@RECIPES.register("classes")
def classes(trace: Trace, rng: np.random.Generator, /, **shares: str) -> Assignment:
    """Draw classes of requests by shares, with SLOs for each: NAME=SHARE:ttft_s=2:tpot_s=0.06 or
    NAME=SHARE:ttlt_s=1800.

    Shares are divided by their sum. The class is also the application. By default there are
    chat=0.8:ttft_s=1:tpot_s=0.05 and batch=0.2:ttlt_s=600.
    """
    parts, slos = [], []
    for name, text in (shares or DEFAULT_CLASSES).items():
        share, *settings = text.split(":")
        what = f"class {name}"
        pairs = dict(setting.partition("=")[::2] for setting in settings)
        if len(pairs) < len(settings):
            raise WorkloadError(f"{what}: {text!r} sets something twice")
        for key in pairs:
            if key not in FIELD:
                raise WorkloadError(f"{what}: {unknown_name('setting', key, list(FIELD))}")
        parts.append(_number(share, f"{what}: its share"))
        slos.append(_slos({key: _number(value, f"{what}: {key}") for key, value in pairs.items()}, what))
    kind = drawn(rng.random(len(trace)), np.array(parts), np.ones(len(parts), bool)).astype("i4")
    columns = {
        field: np.array([of.get(key, DEFAULTS[field]) for of in slos], "f8")[kind] for key, field in FIELD.items()
    }
    return Assignment({"application": kind, **columns})


def _slos(given: dict[str, float], what: str) -> dict[str, float]:
    """Check SLOs. Raises WorkloadError if one is missing or there are too many."""
    checked = {key: checked_positive(value, f"{what}: {key}") for key, value in given.items()}
    if set(given) not in ({"ttft_s", "tpot_s"}, {"ttlt_s"}):
        raise WorkloadError(f"{what} has {' and '.join(given) or 'no SLO'}; {RIGHT}")
    return checked


def _number(text: str, what: str) -> float:
    try:
        return checked_positive(float(text), what)
    except ValueError:
        raise WorkloadError(f"{what} is {text!r}; it should be a number above 0") from None


def with_own_first(trace: Trace, assignment: Assignment, slo: str) -> Assignment:
    """Leave out what a recipe sets against the trace's own SLOs, and note that they win.

    A request with a TTLT is judged by nothing else, so a recipe gives none to a trace with TTFT or TPOT.
    """
    own = [field for field in FIELD.values() if field in trace.given]
    if not own or not set(assignment.columns) & set(FIELD.values()):
        return assignment
    columns = {name: column for name, column in assignment.columns.items() if name != FIELD["ttlt_s"]}
    return Assignment(columns, (*assignment.notes, own_win(own, slo)))


def own_win(own: Iterable[str], slo: str) -> str:
    return f"the trace's own {', '.join(own)} take precedence over those of {slo}"
