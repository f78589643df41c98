"""Variants of the event loop. A run gets the first that has all features of the run.

Each is compiled when it is first needed. `PLAIN` compiles in a third of the time of `WHOLE` and runs an eighth faster,
`FLEET` a tenth (servegym bench --loops).
"""

from __future__ import annotations

from servegym.simulator.compilation.kernels import Compiled
from servegym.simulator.compilation.variants import variant
from servegym.simulator.features import FEATURES
from servegym.simulator.records.state import RouterState, SimulationState
from servegym.simulator.records.types import ROLE_BOTH
from servegym.simulator.runs.loop import advance

PLAIN = variant(advance, "plain", tuple((name, False) for name in FEATURES))
# With preemptible batches, as the schedulers that form them are for prefill engines of a fleet.
FLEET = variant(advance, "fleet", tuple((name, False) for name in FEATURES if name not in ("HAS_CLUSTER", "HAS_TASKS")))
WHOLE = advance
LOOPS = (PLAIN, FLEET, WHOLE)  # each has all features of those before it


def loop_of(run: SimulationState, router_state: RouterState) -> Compiled:
    """Return the loop for a run before its first event."""
    if has_extras(run):
        return WHOLE
    return FLEET if is_fleet(run, router_state) else PLAIN


def is_fleet(run: SimulationState, router_state: RouterState) -> bool:
    """Return whether a run needs HAS_CLUSTER or HAS_TASKS."""
    status, engines = run.status, run.engines  # columns: fields of a record take twice as long to read
    return bool(
        len(engines) > 1
        or engines["role"][0] != ROLE_BOTH
        or len(router_state.incidents) > 0
        or status["scaler"]["interval_s"] > 0
        or status["signals"]["delay_s"] > 0
        or run.state.tasks.shape[1] > 0
    )


def has_extras(run: SimulationState) -> bool:
    """Return whether a run needs any of the other `features`."""
    status, engines = run.status, run.engines
    return bool(
        engines["cache"]["on"].any()
        or engines["store_sets"].any()
        or engines["speculation"]["k"].any()
        or status["front"]["depends"]
        or status["front_end"]["delays"]
        or status["front_end"]["one_process"]
        or run.correction["window_iterations"][0] > 0
        or engines["ahead"]["on"].any()
        or (engines["lockstep"]["ranks"] > 1).any()
        or engines["kv_groups"]["on"].any()
        or engines["adapters"]["max_loras"].any()
    )
