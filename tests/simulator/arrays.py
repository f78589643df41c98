"""Copying and comparing the arrays of a run."""

from collections.abc import Iterator

import numpy as np

from servegym.simulator.signatures import Books, Run


def named_arrays(run: Run) -> Iterator[tuple[str, np.ndarray]]:
    """Every array of a run with its name."""
    for name, value in run._asdict().items():
        if isinstance(value, np.ndarray):
            yield name, value
    for name, value in run.state._asdict().items():
        yield f"state.{name}", value


def copied(run: Run) -> Run:
    """A run that can go on without touching this one."""
    arrays = {name: value.copy() for name, value in run._asdict().items() if isinstance(value, np.ndarray)}
    state = type(run.state)(*(value.copy() for value in run.state))
    return run._replace(**arrays, state=state)


def as_bytes(run: Run) -> dict[str, bytes]:
    """Every array to the last byte, to compare runs with; a difference is then named."""
    return {name: value.tobytes() for name, value in named_arrays(run)}


def book_bytes(books: Books) -> dict[str, bytes]:
    """Every array of the books between engines, and of what the router knows, to the last byte."""
    named = books._asdict() | books.known._asdict() | {"sent": books.known.prefixes.sent}
    return {name: value.tobytes() for name, value in named.items() if isinstance(value, np.ndarray)}
