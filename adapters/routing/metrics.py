"""Prometheus metrics of a proxy."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

PREFIX = "servegym_proxy_"
DECISION_S = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 1e-1)
OWN_S = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.5, 2.0)
WHOLE_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
TTFT_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class ProxyMetrics:
    """The metrics of one proxy, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, doc: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, doc, labels, registry=self.registry)

        def gauge(name: str, doc: str, *labels: str) -> Gauge:
            return Gauge(PREFIX + name, doc, labels, registry=self.registry)

        def seconds(name: str, doc: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"{PREFIX}{name}_seconds", doc, labels, buckets=buckets, registry=self.registry)

        self.requests = counter("requests", "Requests answered, by how they ended", "outcome")
        self.by_engine = counter("engine_requests", "Requests at an engine, by outcome", "engine", "outcome")
        self.by_client = counter("client_requests", "Requests of a client, by how they ended", "client", "outcome")
        self.client_tokens = counter("client_tokens", "Tokens of a client", "client", "kind")
        self.routed = counter("routed", "Requests sent to an engine", "engine")
        self.retries = counter("retries", "Requests sent again, by reason", "reason")
        self.tokens = counter("tokens", "Tokens streamed", "engine")
        self.malformed = counter("malformed", "Invalid SLOs and other terms of requests")
        self.fallbacks = counter("fallbacks", "Decisions of the policy that could not be carried out")
        self.decision_s = seconds("decision", "Time of the policy to choose an engine", DECISION_S)
        self.ttft_s = seconds("ttft", "From a request's arrival to its first token (or whole answer)", TTFT_S)
        self.handling_s = seconds(
            "handling", "From a request's arrival until it is sent to an engine, without waiting", OWN_S
        )
        self.loop_lag_s = seconds("loop_lag", "Delay of the event loop, which is added to the times of tokens", OWN_S)
        self.queue_s = seconds("queue", "Time a request waits at the proxy", TTFT_S)
        self.whole_s = seconds("request", "From a request's arrival to the end of its answer", WHOLE_S, "outcome")
        self.in_flight = gauge("in_flight", "Requests at an engine", "engine")
        self.queued = gauge("queued", "Requests that wait at the proxy")
        self.up = gauge("engine_up", "1: the engine is sent requests", "engine")
        self.engine = Info(PREFIX + "engine", "Address of an engine", ["engine"], registry=self.registry)
        self.policy = Info(PREFIX + "policy", "The router policy that runs", registry=self.registry)
        self.reloads = counter("reloads", "Changes of the policy, by outcome", "outcome")
        self.draining = gauge("draining", "1: it is being shut down")

    def has_engine(self, engine: str, url: str, up: bool) -> None:
        """Set the address and state of an engine, new or in the place of another."""
        self.engine.labels(engine).info({"url": url})
        self.up.labels(engine).set(int(up))
        for metric in (self.routed, self.tokens, self.in_flight):
            metric.labels(engine)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' format."""
        return generate_latest(self.registry)
