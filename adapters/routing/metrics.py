"""Prometheus metrics of a proxy."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

DECISION_S = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 1e-1)
OWN_S = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.5, 2.0)
WHOLE_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
TTFT_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class ProxyMetrics:
    """The metrics of one proxy, in their own registry."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()

        def name(text: str) -> str:
            return f"servegym_proxy_{text}"

        self.requests = Counter(
            name("requests"), "Requests answered, by how they ended", ["outcome"], registry=registry
        )
        self.by_engine = Counter(
            name("engine_requests"),
            "Requests at an engine, by outcome",
            ["engine", "outcome"],
            registry=registry,
        )
        self.by_client = Counter(
            name("client_requests"), "Requests of a client, by how they ended", ["client", "outcome"], registry=registry
        )
        self.client_tokens = Counter(name("client_tokens"), "Tokens of a client", ["client", "kind"], registry=registry)
        self.routed = Counter(name("routed"), "Requests sent to an engine", ["engine"], registry=registry)
        self.retries = Counter(name("retries"), "Requests sent again, by reason", ["reason"], registry=registry)
        self.tokens = Counter(name("tokens"), "Tokens streamed", ["engine"], registry=registry)
        self.malformed = Counter(name("malformed"), "Invalid SLOs and other terms of requests", registry=registry)
        self.fallbacks = Counter(
            name("fallbacks"), "Decisions of the policy that could not be carried out", registry=registry
        )
        self.decision_s = Histogram(
            name("decision_seconds"), "Time of the policy to choose an engine", buckets=DECISION_S, registry=registry
        )
        self.ttft_s = Histogram(
            name("ttft_seconds"), "From a request's arrival to its first token (or whole answer)", buckets=TTFT_S,
            registry=registry,
        )  # fmt: skip
        self.handling_s = Histogram(
            name("handling_seconds"), "From a request's arrival until it is sent to an engine, without waiting",
            buckets=OWN_S, registry=registry,
        )  # fmt: skip
        self.loop_lag_s = Histogram(
            name("loop_lag_seconds"), "Delay of the event loop, which is added to the times of tokens", buckets=OWN_S,
            registry=registry,
        )  # fmt: skip
        self.queue_s = Histogram(
            name("queue_seconds"), "Time a request waits at the proxy", buckets=TTFT_S, registry=registry
        )
        self.whole_s = Histogram(
            name("request_seconds"), "From a request's arrival to the end of its answer", ["outcome"], buckets=WHOLE_S,
            registry=registry,
        )  # fmt: skip
        self.in_flight = Gauge(name("in_flight"), "Requests at an engine", ["engine"], registry=registry)
        self.queued = Gauge(name("queued"), "Requests that wait at the proxy", registry=registry)
        self.up = Gauge(name("engine_up"), "1: the engine is sent requests", ["engine"], registry=registry)
        self.engine = Info(name("engine"), "Address of an engine", ["engine"], registry=registry)
        self.policy = Info(name("policy"), "The router policy that runs", registry=registry)
        self.reloads = Counter(name("reloads"), "Changes of the policy, by outcome", ["outcome"], registry=registry)
        self.draining = Gauge(name("draining"), "1: it is being shut down", registry=registry)

    def has_engine(self, engine: str, url: str, up: bool) -> None:
        """Set the address and state of an engine, new or in the place of another."""
        self.engine.labels(engine).info({"url": url})
        self.up.labels(engine).set(int(up))
        for metric in (self.routed, self.tokens, self.in_flight):
            metric.labels(engine)

    def text(self) -> bytes:
        """All metrics in Prometheus' format."""
        return generate_latest(self.registry)
