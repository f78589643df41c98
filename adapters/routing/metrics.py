"""What a proxy counts, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

DECISION_S = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 1e-1)
TTFT_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class ProxyMetrics:
    """Counters of one proxy, in a registry of their own."""

    def __init__(self, engines: Sequence[str]) -> None:
        registry = self.registry = CollectorRegistry()

        def name(text: str) -> str:
            return f"servegym_proxy_{text}"

        self.requests = Counter(
            name("requests"), "Requests answered, by how they ended", ["outcome"], registry=registry
        )
        self.routed = Counter(name("routed"), "Requests sent to an engine", ["engine"], registry=registry)
        self.retries = Counter(name("retries"), "Requests sent once more, by why", ["reason"], registry=registry)
        self.tokens = Counter(name("tokens"), "Tokens streamed", ["engine"], registry=registry)
        self.malformed = Counter(name("malformed"), "SLOs and the like that were said wrongly", registry=registry)
        self.fallbacks = Counter(
            name("fallbacks"), "Decisions of the policy that could not be carried out", registry=registry
        )
        self.decision_s = Histogram(
            name("decision_seconds"), "Time the policy takes to name an engine", buckets=DECISION_S, registry=registry
        )
        self.ttft_s = Histogram(
            name("ttft_seconds"), "From a request's arrival to its first token (or whole answer)", buckets=TTFT_S,
            registry=registry,
        )  # fmt: skip
        self.in_flight = Gauge(name("in_flight"), "Requests at an engine", ["engine"], registry=registry)
        self.queued = Gauge(name("queued"), "Requests that wait at the proxy", registry=registry)
        self.up = Gauge(name("engine_up"), "1: the engine is sent requests", ["engine"], registry=registry)
        for engine in engines:
            self.up.labels(engine).set(1)
            for metric in (self.routed, self.tokens, self.in_flight):
                metric.labels(engine)

    def text(self) -> bytes:
        """All of it, in Prometheus' format."""
        return generate_latest(self.registry)
