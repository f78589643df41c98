"""Prometheus counters of the plug-in.

They belong to the process of the engine core. vLLM's /metrics shows them if PROMETHEUS_MULTIPROC_DIR names an empty
folder when the server starts; else `metrics_port` serves them.
"""

from __future__ import annotations

from typing import Any

from servegym.errors import VllmError

DECISION_BUCKETS_S = (5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2)
COUNTERS = {
    "decisions": "decisions enforced on a step",
    "fallback_steps": "steps that vLLM decided because the policy failed or was late",
    "failures": "decisions that failed",
    "late": "decisions that took longer than the limit",
    "deviating_steps": "steps in which vLLM scheduled a batch other than the planned one",
    "deviating_tokens": "tokens by which those steps differed from the plan",
    "found_tokens": "tokens that requests found in the prefix cache at their admission",
    "deviating_hits": "requests that vLLM scheduled with more or fewer computed tokens than planned",
    "broken": "errors in the plug-in itself, after which vLLM decides alone",
    "tokens": "output tokens delivered",
    "tokens_on_time": "output tokens delivered before their deadlines",
    "gain": "gain (TDG) of the delivered tokens",
    "ideal_gain": "gain of the delivered tokens if all had been on time",
    "malformed_xargs": "invalid values in vllm_xargs, which defaults replaced",
}
_registered: dict[str, Any] = {}  # Prometheus refuses to register a metric twice in a process


class Metrics:
    """Counts, and keeps the same counts as Prometheus metrics if prometheus_client is installed.

    port: serves them on the loopback address; 0: no port. Raises VllmError for a port that cannot be used.
    """

    def __init__(self, port: int = 0):
        self.counts = dict.fromkeys(COUNTERS, 0.0)
        self.decision_s = 0.0
        self.published = _prometheus()
        if port:
            self._serve(port)

    def add(self, name: str, amount: float = 1.0) -> None:
        if not amount:
            return
        self.counts[name] += amount
        if self.published:
            self.published[name].inc(amount)

    def decided(self, seconds: float) -> None:
        """Count an enforced decision and record its time in seconds."""
        self.add("decisions")
        self.decision_s += seconds
        if self.published:
            self.published["decision_seconds"].observe(seconds)

    def scaled(self, estimate_scale: float) -> None:
        """Record the present factor on the estimator's fit."""
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
    """Return the Prometheus metrics by name; empty without prometheus_client."""
    try:
        from prometheus_client import Counter, Gauge, Histogram
    except ImportError:
        return {}
    if not _registered:
        for name, doc in COUNTERS.items():
            _registered[name] = Counter(f"servegym_{name}", doc)
        _registered["decision_seconds"] = Histogram(
            "servegym_decision_seconds", "time of a decision", buckets=DECISION_BUCKETS_S
        )
        _registered["estimate_scale"] = Gauge(
            "servegym_estimate_scale", "factor on the estimator, corrected by measured steps",
            multiprocess_mode="livemostrecent",
        )  # fmt: skip
    return _registered
