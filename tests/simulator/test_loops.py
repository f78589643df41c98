"""Event loops compiled without what a run has not: each has all that its runs need, and all give the same bytes."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from numba.core.errors import TypingError

from servegym.baselines.registry import router_names, scheduler_names
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.compilation import numba_types as types
from servegym.simulator.compilation.digests import source_digest
from servegym.simulator.compilation.kernels import Compiled, compiled, hook, kernel, uncompiled_kernels
from servegym.simulator.compilation.settings import JIT_DISABLED
from servegym.simulator.compilation.variants import variant
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.loops import FLEET, LOOPS, PLAIN, WHOLE
from servegym.simulator.runs.simulation import Simulation
from tests import strategies
from tests.seeds import drawn

pytestmark = pytest.mark.skipif(JIT_DISABLED, reason="without compilation there is one loop")

SMALL: dict[str, Any] = {"trace": "azure-conv", "requests": 20, "rate_per_s": 2.0}


@pytest.mark.parametrize(("fields", "loop"), [
    ({}, PLAIN),
    ({"noise": 0.1, "host_memory_gib": 4.0}, PLAIN),
    ({"engines": 2}, FLEET),
    ({"prefill": 1, "decode": 1}, FLEET),
    ({"engines": 2, "incidents": ["fail:0@1"]}, FLEET),
    ({"scheduler": "flow-prefill"}, FLEET),
    ({"scheduler": "flow-prefill", "correction": True}, WHOLE),
    ({"speculation": "k=2,acceptance=0.5"}, WHOLE),
    ({"front_end": "request_s=0.01"}, WHOLE),
    ({"front_end": "streamed_s_per_token=1e-5,one_process=yes"}, WHOLE),
    ({"max_concurrency": 4}, WHOLE),
    ({"correction": True}, WHOLE),
])  # fmt: skip
def test_a_run_gets_the_first_loop_that_has_all_it_has(fields: dict[str, Any], loop: Compiled) -> None:
    assert Simulation(ServingSpec().replaced(**(SMALL | fields)).build(0)).loop is loop


def bytes_of(scenario: Scenario, loop: Compiled) -> list[bytes]:
    simulation = Simulation(scenario, record_timeline=True)
    simulation.loop = loop
    simulation.run()
    run = simulation.arrays
    events = run.timeline[: run.status[0].timeline_used]
    return [table.tobytes() for table in (run.requests, run.outcomes, run.engines, events)]


def check_loops(scenario: Scenario) -> None:
    """All loops that have what the scenario has give the same."""
    first = LOOPS.index(Simulation(scenario).loop)
    given_bytes = bytes_of(scenario, LOOPS[first])
    for other in LOOPS[first + 1 :]:
        assert bytes_of(scenario, other) == given_bytes


@pytest.mark.parametrize("name", scheduler_names())
@drawn(10, slow=True)
def test_the_same_bytes_on_engines(name: str, data: st.DataObject) -> None:
    check_loops(data.draw(strategies.scenarios(name, most_engines=data.draw(st.sampled_from([1, 1, 2])))))


@pytest.mark.parametrize("name", router_names())
@drawn(5, slow=True)
def test_the_same_bytes_on_clusters(name: str, data: st.DataObject) -> None:
    check_loops(data.draw(strategies.cluster_scenarios(name)))


PART = True


@kernel
def cannot_be_compiled(x):
    return x.no_such_field


@kernel
def add_one(x):
    return x + 1.0


@kernel
def with_part(x):
    if PART and x > 0.0:
        return cannot_be_compiled(x)
    return add_one(x)


@compiled(types.float64(types.float64))
def template(x):
    return with_part(x)


def test_what_a_false_constant_guards_is_not_even_typed() -> None:
    without = variant(template, "without", (("PART", False),))
    assert "py_func" not in vars(without), "its kernels are copied when they are needed"
    assert without(1.0) == 2.0 and without is variant(template, "without", (("PART", False),))
    with pytest.raises(TypingError, match="no_such_field"):
        template(1.0)
    made = without.py_func.__globals__["with_part"].py_func
    assert made.__name__ == "with_part_without" and made.__globals__["add_one"] is add_one  # shared


@hook
def at_point(x, row):
    if PART:
        cannot_be_compiled(x)
    return row[1:]  # no function of its own could return part of an array


@compiled(types.float64(types.float64, types.Array(types.float64, 1, "C")))
def of_hook(x, row):
    return x + at_point(x, row)[0]


def test_a_hook_is_text_of_its_caller_and_nothing_where_its_constants_are_false() -> None:
    without = variant(of_hook, "without", (("PART", False),))
    assert without(1.0, np.array([2.0, 3.0])) == 4.0
    assert not at_point.overloads and uncompiled_kernels(without) == 1  # cannot_be_compiled
    with pytest.raises(TypingError, match="no_such_field"):
        of_hook(1.0, np.array([2.0, 3.0]))


def test_loops_are_apart_and_found_again() -> None:
    assert len({source_digest(loop) for loop in LOOPS}) == len(LOOPS)
    assert all(pickle.loads(pickle.dumps(loop)) is loop for loop in LOOPS)
