"""Counters of the plug-in, for Prometheus.

They live in the process of the engine core. vLLM's /metrics shows them where PROMETHEUS_MULTIPROC_DIR is set (to an
empty folder) before the server starts; else they can have a port of their own.
"""

from __future__ import annotations

from typing import Any

from servegym.errors import VllmError

DECISION_BUCKETS_S = (5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2)
COUNTERS = {
    "decisions": "decisions that were enforced on a step",
    "fallback_steps": "steps that vLLM decided itself, because the policy failed or was late",
    "failures": "decisions that failed",
    "late": "decisions that took longer than the limit",
    "deviating_steps": "steps in which vLLM scheduled something else than was decided",
    "deviating_tokens": "tokens by which those steps differed",
    "found_tokens": "tokens that requests found in the prefix cache when they were admitted",
    "deviating_hits": "requests that vLLM scheduled with other tokens computed before than was decided",
    "broken": "errors in the plug-in itself: vLLM decides alone from then on",
    "tokens": "tokens that came out",
    "tokens_on_time": "tokens that came out before their deadlines",
    "gain": "gain (TDG) of the tokens that came out",
    "ideal_gain": "what they would have gained had all been on time",
    "malformed_xargs": "values of vllm_xargs that were not what they should be; defaults took their place",
}
_made: dict[str, Any] = {}  # a metric can be registered once in a process


class Metrics:
    """Counts, and the same counts as Prometheus metrics where prometheus_client is there.

    port: where they are served on the loopback address; 0: nowhere. Raises VllmError for a port that is taken.
    """

    def __init__(self, port: int = 0):
        self.counts = dict.fromkeys(COUNTERS, 0.0)
        self.decision_s = 0.0
        self.published = _prometheus()
        if port:
            self._serve(port)

    def add(self, name: str, amount: float = 1.0) -> None:
        """`amount` more of a counter."""
        if not amount:
            return
        self.counts[name] += amount
        if self.published:
            self.published[name].inc(amount)

    def decided(self, seconds: float) -> None:
        """A decision was enforced, and took so long."""
        self.add("decisions")
        self.decision_s += seconds
        if self.published:
            self.published["decision_seconds"].observe(seconds)

    def scaled(self, estimate_scale: float) -> None:
        """Record the factor that the estimator's fit is now multiplied by."""
        if self.published:
            self.published["estimate_scale"].set(estimate_scale)

    def _serve(self, port: int) -> None:
        if not self.published:
            raise VllmError(f"metrics_port is {port}, and prometheus_client is not installed; install it, or set 0")
        from prometheus_client import start_http_server

        try:
            start_http_server(port, addr="127.0.0.1")
        except OSError as error:
            raise VllmError(f"metrics_port {port} cannot be used: {error.strerror}; choose a free one") from None


def _prometheus() -> dict[str, Any]:
    """The metrics by name; none without prometheus_client."""
    try:
        from prometheus_client import Counter, Gauge, Histogram
    except ImportError:
        return {}
    if not _made:
        for name, doc in COUNTERS.items():
            _made[name] = Counter(f"servegym_{name}", doc)
        _made["decision_seconds"] = Histogram(
            "servegym_decision_seconds", "time of a decision", buckets=DECISION_BUCKETS_S
        )
        _made["estimate_scale"] = Gauge(
            "servegym_estimate_scale", "what the estimator is multiplied by, to follow measured steps",
            multiprocess_mode="livemostrecent",
        )  # fmt: skip
    return _made
