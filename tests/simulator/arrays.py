"""Comparing the arrays of a run."""

from collections.abc import Iterator

import numpy as np

from servegym.simulator.records.state import RouterState, SimulationState


def named_arrays(run: SimulationState) -> Iterator[tuple[str, np.ndarray]]:
    """Every array of a run with its name."""
    for name, value in run._asdict().items():
        if isinstance(value, np.ndarray):
            yield name, value
    for part in ("state", "cache"):
        for name, value in getattr(run, part)._asdict().items():
            if isinstance(value, np.ndarray):
                yield f"{part}.{name}", value


def as_bytes(run: SimulationState) -> dict[str, bytes]:
    """Every array to the last byte, to compare runs with; a difference is then named."""
    return {name: value.tobytes() for name, value in named_arrays(run)}


def router_bytes(router_state: RouterState) -> dict[str, bytes]:
    """Every array of the router's state, and of what the router knows, to the last byte."""
    named = router_state._asdict() | router_state.known._asdict() | {"sent": router_state.known.prefixes.sent}
    return {name: value.tobytes() for name, value in named.items() if isinstance(value, np.ndarray)}
