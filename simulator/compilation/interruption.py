"""Simulations that are given up midway: the event loop returns to Python every now and then, and looks here.

Ctrl-C reaches the main thread alone. A caller that hands work to other threads gives them an event, and sets it when
nothing waits for that work any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
_here = threading.local()  # .stop: the event of the work that this thread does


def stoppable(stop: threading.Event, function: Callable[[Item], Outcome]) -> Callable[[Item], Outcome]:
    """`function`, in which simulations end with KeyboardInterrupt once the event is set."""

    def run(item: Item) -> Outcome:
        _here.stop = stop
        try:
            return function(item)
        finally:
            del _here.stop

    return run


def stop_if_asked() -> None:
    """Raise KeyboardInterrupt if nothing waits for the work of this thread."""
    stop = getattr(_here, "stop", None)
    if stop is not None and stop.is_set():
        raise KeyboardInterrupt
