"""Interrupting simulations in threads: the event loop returns to Python now and then, and checks here.

Ctrl-C reaches only the main thread. A caller that runs work in other threads gives them an event, and sets it when the
work is no longer needed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
_here = threading.local()  # .stop: the event of the work that this thread does


def stoppable(stop: threading.Event, function: Callable[[Item], Outcome]) -> Callable[[Item], Outcome]:
    """Return `function`, in which simulations raise KeyboardInterrupt once the event is set."""

    def run(item: Item) -> Outcome:
        _here.stop = stop
        try:
            return function(item)
        finally:
            del _here.stop

    return run


def stop_if_asked() -> None:
    """Raise KeyboardInterrupt if the event of this thread's work is set."""
    stop = getattr(_here, "stop", None)
    if stop is not None and stop.is_set():
        raise KeyboardInterrupt
