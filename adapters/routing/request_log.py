"""A log of a proxy's requests, a line of JSON at the end of each. It is a trace, which `servegym shadow` reads."""

from __future__ import annotations

import json
import logging
import math
import time
from pathlib import Path
from typing import Any, TextIO

from servegym.adapters.routing.rows import RequestTerms
from servegym.errors import RoutingError

LOG = logging.getLogger("servegym.proxy")


class Measured:
    """Measurements of one request at the proxy. Times are of the proxy's clock; first_s: of the first token.
    prompt_tokens: by the engine's count; None: it has not said, and the router's estimate stands."""

    def __init__(self, arrived_s: float, asked: RequestTerms):
        self.arrived_s, self.asked = arrived_s, asked
        self.first_s: float | None = None
        self.prompt_tokens: int | None = None
        self.tokens = 0
        self.in_time = 0

    def token(self, now_s: float, count: int) -> None:
        """Count received tokens; each has its deadline (TTFT SLO + k TPOT SLOs, or the TTLT SLO)."""
        asked, late_s = self.asked, now_s - self.arrived_s
        if self.first_s is None:
            self.first_s = now_s
        if math.isfinite(asked.ttlt_slo_s):
            in_time = count if late_s <= asked.ttlt_slo_s else 0
        else:  # of tokens k = tokens .. tokens + count - 1, from 0: those with ttft + k tpot >= late_s
            first = math.ceil(max(0.0, late_s - asked.ttft_slo_s) / asked.tpot_slo_s)
            in_time = min(count, max(0, self.tokens + count - first))
        self.tokens += count
        self.in_time += in_time

    def line(self, now_s: float, **more: Any) -> dict[str, Any]:
        """Return the entry of the log, without its wall-clock time."""
        asked = self.asked
        return {
            "prompt_tokens": self.prompt_tokens or asked.prompt_tokens,
            "output_tokens": self.tokens,
            "ttft_s": None if self.first_s is None else round(self.first_s - self.arrived_s, 6),
            "e2e_s": round(now_s - self.arrived_s, 6),
            "tokens_in_time": self.in_time,
            "ttft_slo_s": asked.ttft_slo_s,
            "tpot_slo_s": asked.tpot_slo_s,
            "ttlt_slo_s": asked.ttlt_slo_s if math.isfinite(asked.ttlt_slo_s) else None,
            "priority": asked.priority,
            "weight": asked.weight,
            "session": asked.session,
        } | more


class RequestLog:
    """Appends to a file. Neither prompts nor answers nor keys are in it.

    Raises RoutingError where the file cannot be opened. A line that cannot be written is lost, and that is logged.
    """

    def __init__(self, path: Path):
        self._path = path
        self._offset_s = time.time() - time.monotonic()
        self._start_s = _start_of(path)
        self._file = self._open()

    def _open(self) -> TextIO:
        try:
            return self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise RoutingError(f"{self._path}: cannot be written: {error.strerror}") from None

    def reopen(self) -> None:
        """Open the file again after it has been moved away (logrotate)."""
        fresh = self._open()
        self.close()
        self._file = fresh

    def write(self, arrived_monotonic_s: float, line: dict[str, Any]) -> None:
        """Write an entry. Its at_s is in seconds since 1970, its arrival_s since the start of the log file."""
        at_s = arrived_monotonic_s + self._offset_s
        document = {"arrival_s": round(at_s - self._start_s, 6), "at_s": round(at_s, 6)} | line
        try:
            self._file.write(json.dumps(document, separators=(",", ":")) + "\n")
            self._file.flush()
        except (OSError, ValueError) as error:
            LOG.warning("%s: a request was not logged: %s", self._path, error)

    def close(self) -> None:
        self._file.close()


def _start_of(path: Path) -> float:
    """Return the start of an existing log, from its first line; else now."""
    try:
        with path.open(encoding="utf-8") as there:
            first = json.loads(there.readline())
        return float(first["at_s"] - first["arrival_s"])
    except (OSError, ValueError, LookupError, TypeError):
        return time.time()
