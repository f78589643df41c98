"""Hypothesis strategies: a latency model of every form, with any coefficients that it can have.

Times are of the size of those in strategies.py. Vectors are drawn form by form; a form without has nothing here.
"""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from servegym.latency_models.forms import forms, get_form
from servegym.latency_models.model import LatencyModel

some_s = st.one_of(st.sampled_from([0.0, 1 / 64]), st.floats(0, 1 / 8))
NUMBERS = {
    "s": some_s,
    "s/token": some_s,
    "s/token^2": st.one_of(st.just(0.0), st.floats(0, 2**-10)),
    "s/token^3": st.one_of(st.just(0.0), st.floats(0, 2**-16)),
    "1": st.floats(0.125, 1.0),  # efficiencies
    # A roofline of some tokens a second.
    "FLOP/token": st.floats(0, 10),
    "FLOP/token^2": st.floats(0, 0.1),
    "bytes": st.floats(0, 10),
    "bytes/token": st.floats(0, 1),
    "FLOP/s": st.floats(10, 1000),
    "bytes/s": st.floats(10, 1000),
}


def rising(draw: st.DrawFn, high: int) -> list[float]:
    """Two to six knots, from near 0 to beyond most batches or not."""
    return [float(knot) for knot in sorted(draw(st.sets(st.integers(0, high), min_size=2, max_size=6)))]


@st.composite
def piecewise_vectors(draw: st.DrawFn) -> dict[str, Any]:
    knots = rising(draw, 100)
    steps = draw(st.lists(some_s, min_size=len(knots), max_size=len(knots)))
    return {"knots_tokens": knots, "base_s": np.cumsum(steps).tolist()}


@st.composite
def table_vectors(draw: st.DrawFn) -> dict[str, Any]:
    tokens, cached = rising(draw, 100), rising(draw, 400)
    n = len(tokens) * len(cached)
    steps = np.array(draw(st.lists(some_s, min_size=n, max_size=n))).reshape(len(tokens), len(cached))
    table_s = (steps / 8).cumsum(axis=0).cumsum(axis=1)
    return {"tokens": tokens, "cached_tokens": cached, "table_s": table_s.ravel().tolist()}


@st.composite
def shares_vectors(draw: st.DrawFn) -> dict[str, Any]:
    vectors = draw(table_vectors())
    return {**vectors, "prefill_s": (np.array(vectors["table_s"]) * draw(st.floats(0, 1 / 64))).tolist()}


@st.composite
def steps_vectors(draw: st.DrawFn, additive: bool = False) -> dict[str, Any]:
    """Any tables, or additive ones: a chunk added to a step costs time.

    Measured tables need not be additive: a token of prefill has the time of the step's mean chunk, which an added short
    chunk lowers, and decodes alone run another kernel than decodes beside prefills.
    """
    highs = {"tokens": 100, "prefills": 8, "chunks": 60, "prefixes": 400, "decodes": 20, "contexts": 400}
    knots = {name: rising(draw, high) for name, high in highs.items()}
    axes = {
        "rest_s": ("tokens",), "prefill_s": ("prefills", "chunks", "prefixes"), "decode_s": ("decodes", "contexts"),
        "alone_s": ("decodes", "contexts"),
    }  # fmt: skip
    tables = {}
    for name, of in axes.items():
        n = int(np.prod([len(knots[axis]) for axis in of]))
        tables[name] = draw(some_s) + np.linspace(0.0, draw(some_s), n)
    if additive:
        by_chunk, by_prefix = (np.multiply(knots[name], draw(some_s) / 64) for name in ("chunks", "prefixes"))
        tables["prefill_s"] = draw(some_s) + np.tile(np.add.outer(by_chunk, by_prefix).ravel(), len(knots["prefills"]))
        tables["alone_s"] = tables["decode_s"] + draw(st.floats(0, 1)) * tables["rest_s"][0]
    return {**knots, **{name: table.tolist() for name, table in tables.items()}}


VECTORS = {
    "piecewise": piecewise_vectors(), "piecewise-mixed": piecewise_vectors(),
    "piecewise-requests": piecewise_vectors(), "steps": steps_vectors(), "table": table_vectors(),
    "table-shares": shares_vectors(),
}  # fmt: skip


@st.composite
def models(draw: st.DrawFn, form: str | None = None, additive: bool = False) -> LatencyModel:
    """Of this form, or of any; if additive, none in which another chunk shortens a step (`steps_vectors`)."""
    name = form or draw(st.sampled_from(sorted(forms())))
    numbers = {c.name: draw(NUMBERS[c.unit]) for c in get_form(name).coefficients if not c.vector}
    tables = VECTORS | {"steps": steps_vectors(additive=True)} if additive else VECTORS
    vectors = draw(tables[name]) if name in tables else {}
    # An iteration takes some time.
    constant_s = draw(st.one_of(st.just(1 / 64), st.floats(2**-10, 1 / 2)))
    return LatencyModel.from_values(name, {**numbers, **vectors, get_form(name).constant: constant_s})
