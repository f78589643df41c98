"""A request router of Ray Serve that routes by a servegym policy.

    request_router_config=RequestRouterConfig(
        request_router_class="servegym.adapters.routing.ray_serve:PolicyRouter",
        request_router_kwargs={"policy": "/path/policy.json"},
        request_routing_stats_period_s=0.2,
    )

Replicas that are `Reporting` report tokens; from others the router only gets the ends of answers.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from servegym.adapters.routing.assumptions import Assumptions
from servegym.adapters.routing.live import LiveRouter
from servegym.adapters.routing.refusals import Refused
from servegym.adapters.routing.request_terms import check, prompt_tokens, request_terms_of
from servegym.adapters.routing.rows import RequestTerms
from servegym.adapters.vllm.terms import TermsReader
from servegym.errors import DeploymentError, RoutingError
from servegym.simulator.features.adapters import Adapters
from servegym.simulator.records.types import HOLD

LOG = logging.getLogger("ray.serve")
STATS = "servegym"  # key of our entry in a replica's routing stats


class PolicyRouter(RequestRouter):
    """Sends each request to the replica that a router policy chooses.

    request_router_kwargs: policy (path of an artifact), or router ("NAME:key=value"); device (latency profile, where
    the artifact has no estimator); replicas (most there may be, 64); characters_per_token (4); adapters (of
    `simulator.features.adapters.Adapters`), for requests that name a multiplexed model, a LoRA adapter here.
    Each deployment handle and each HTTP proxy has a router of its own, which knows of what went through it.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        """Take request_router_kwargs from Ray Serve. Raises RoutingError, ArtifactError, ProfileError."""
        known = {"policy", "router", "device", "replicas", "characters_per_token", "adapters"}
        if unknown := sorted(kwargs.keys() - known):
            raise RoutingError(f"request_router_kwargs: {unknown[0]} is unknown; known: {', '.join(sorted(known))}")
        if ("policy" in kwargs) == ("router" in kwargs):
            raise RoutingError("request_router_kwargs: there should be a policy (a file), or a router (a name)")
        if "policy" in kwargs:
            assumptions = Assumptions.of_artifact(kwargs["policy"], kwargs.get("device"))
        else:
            from servegym.baselines import registry

            assumptions = Assumptions.of(registry.router(kwargs["router"]), kwargs.get("device"))
        self._characters = float(kwargs.get("characters_per_token", 4.0))
        self._reader = TermsReader(assumptions.defaults)
        try:
            loras = Adapters(**kwargs["adapters"]) if "adapters" in kwargs else None
        except (TypeError, DeploymentError) as error:
            right = '{"max_loras": 4, "load_s": 0.5, "activate_s": 0.02}'
            raise RoutingError(f"request_router_kwargs: adapters: {error}; it should be like {right}") from None
        nothing_kept = dataclasses.replace(assumptions, prefix_cache_tokens=0, adapters=loras)
        self._live: LiveRouter = nothing_kept.live([str(engine) for engine in range(int(kwargs.get("replicas", 64)))])
        self._began_s = time.monotonic()
        self._engine_of: dict[ReplicaID, int] = {}
        self._adapters: dict[str, int] | None = None if loras is None else {}  # numbers by multiplexed model
        self._rows: dict[str, int] = {}  # by internal request id
        self._tried: dict[str, set[int]] = {}  # engines that did not take a request
        self._reported: dict[int, Any] = {}  # the latest stats of an engine
        self.routed: dict[str, int] = {}  # requests by replica, since it began
        for engine in range(len(self._live.engines)):
            self._live.set_open(engine, up=False)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Put the replica first that the policy chooses, then the others by their number of requests. A refused request
        goes to the one with the fewest, as a router of Ray Serve cannot refuse."""
        self._follow(candidate_replicas)
        # Without a backoff, Ray would ask again at once, and forever.
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        by_engine = {self._engine_of[replica.replica_id]: replica for replica in candidate_replicas}
        chosen = HOLD if pending_request is None else self._choose(pending_request, set(by_engine))
        if chosen == HOLD and pending_request is not None and self._live.is_open(min(by_engine, default=0)):
            return []  # the policy holds it: it will be asked again
        requests = self._live.snapshots["requests"]
        others = sorted((engine for engine in by_engine if engine != chosen), key=lambda engine: int(requests[engine]))
        order = ([chosen] if chosen in by_engine else []) + others
        return [[by_engine[engine]] for engine in order]

    def _choose(self, pending: PendingRequest, engines: set[int]) -> int:
        """Return the engine that the policy chooses, to which the request counts as sent."""
        now_s, request = self._now_s(), pending.metadata.internal_request_id
        live, tried = self._live, self._tried.setdefault(request, set())
        if request in self._rows:
            r = self._rows[request]
            if live.rows.held_queue[r] >= 0:
                for other, engine in live.ask_again(now_s):
                    if other == r:
                        return engine
                return HOLD
            if live.rows.engine[r] >= 0:
                tried.add(int(live.rows.engine[r]))  # the engine did not take the request
            live.recall(now_s, r)
        else:
            waited_s = max(0.0, time.time() - pending.created_at)
            r = live.arrive(max(0.0, now_s - waited_s), self._terms(pending))
            self._rows[request] = r
        pending.future.add_done_callback(lambda future: self._forget(request) if future.cancelled() else None)
        return live.route(now_s, r, tried if engines - tried else ())

    def asked(self, pending: PendingRequest) -> RequestTerms:
        """Return the terms of a request, read from an OpenAI body (a mapping) among its arguments. Override it for
        other requests."""
        for body in (*pending.args, *pending.kwargs.values(), pending.kwargs):
            if isinstance(body, Mapping) and ("prompt" in body or "messages" in body or "prompt_tokens" in body):
                chat = "messages" in body
                tokens = body.get("prompt_tokens")
                if type(tokens) is not int or tokens < 1:
                    try:
                        check(body, chat)
                        tokens = prompt_tokens(body, chat, self._characters)
                    except Refused:
                        tokens = 1
                return request_terms_of(body, {}, tokens, self._reader)[0]
        return request_terms_of({}, {}, 1, self._reader)[0]

    def _terms(self, pending: PendingRequest) -> RequestTerms:
        name = pending.metadata.multiplexed_model_id if self._adapters is not None else ""
        return dataclasses.replace(self.asked(pending), adapter=self._number(name) if name else 0)

    def _number(self, name: str) -> int:
        assert self._adapters is not None
        return self._adapters.setdefault(name, len(self._adapters) + 1)

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Record that a replica has accepted a request, perhaps another one than the policy chose."""
        request, engine = pending_request.metadata.internal_request_id, self._engine_of.get(replica_id)
        self._tried.pop(request, None)
        if engine is None:
            return
        self.routed[replica_id.unique_id] = self.routed.get(replica_id.unique_id, 0) + 1
        if request not in self._rows:
            self._rows[request] = self._live.arrive(self._now_s(), self._terms(pending_request))
        r = self._rows[request]
        if self._live.rows.engine[r] != engine:
            self._live.send(self._now_s(), r, engine)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Record that a request has left a replica: answered, failed, or rejected."""
        r, engine = self._rows.get(internal_request_id), self._engine_of.get(replica_id)
        if r is not None and engine is not None and self._live.rows.engine[r] == engine:
            self._forget(internal_request_id, finished=True)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Record that a replica is gone."""
        super().on_replica_actor_died(replica_id)
        self._drop(replica_id)

    def _forget(self, request: str, finished: bool = False) -> None:
        r = self._rows.pop(request, None)
        self._tried.pop(request, None)
        if r is not None:
            self._live.leave(self._now_s(), r, finished)

    def _follow(self, replicas: list[RunningReplica]) -> None:
        """Update the replicas, and their latest statistics."""
        there = {replica.replica_id for replica in replicas}
        for gone in self._engine_of.keys() - there:
            self._drop(gone)
        free = sorted(set(range(len(self._live.engines))) - set(self._engine_of.values()))
        for replica in replicas:
            if replica.replica_id not in self._engine_of:
                if not free:
                    raise RoutingError(f"there are more than {len(self._live.engines)} replicas; set replicas")
                engine = self._engine_of[replica.replica_id] = free.pop(0)
                self._live.set_open(engine, up=True)
            engine = self._engine_of[replica.replica_id]
            if self._adapters is not None:
                loaded = [self._number(name) for name in sorted(replica.multiplexed_model_ids)]
                self._live.report_adapters(engine, loaded, (), int(self._live.snapshots["max_loras"][engine]))
            stats = (replica.routing_stats or {}).get(STATS)
            if isinstance(stats, Mapping) and stats != self._reported.get(engine):
                self._reported[engine] = stats
                self._report(engine, stats)

    def _report(self, engine: int, stats: Mapping[str, Any]) -> None:
        tokens, free_blocks = stats.get("tokens"), stats.get("free_blocks")
        for request, count in tokens.items() if isinstance(tokens, Mapping) else ():
            r = self._rows.get(request)
            if r is not None and type(count) is int and self._live.rows.engine[r] == engine:
                self._live.token(self._now_s(), r, count - int(self._live.rows.emitted[r]))
        if type(free_blocks) is int and free_blocks >= 0:
            self._live.report(engine, free_blocks=free_blocks)

    def _drop(self, replica_id: ReplicaID) -> None:
        engine = self._engine_of.pop(replica_id, None)
        if engine is None:
            return
        self._reported.pop(engine, None)
        self._live.lose(self._now_s(), engine)

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s


class Reporting:
    """Mixin for a deployment's class, whose replicas then report tokens to the router.

        class Engine(Reporting):
            async def __call__(self, body):
                async for token in ...:
                    self.note_token()
                    yield token

    Ray Serve asks for it every request_routing_stats_period_s. `free_blocks` of KV memory may be set too.
    """

    free_blocks: int | None = None

    def note_token(self, count: int = 1) -> None:
        """Count tokens of the request that is being served here."""
        from ray.serve.context import _get_serve_request_context

        request = _get_serve_request_context()._internal_request_id
        counts = self._counts()
        counts[request] = counts.get(request, 0) + count

    def note_end(self) -> None:
        """Record the end of the request that is being served here."""
        from ray.serve.context import _get_serve_request_context

        self._counts().pop(_get_serve_request_context()._internal_request_id, None)

    def record_routing_stats(self) -> dict[str, Any]:
        """Return the statistics that Ray Serve passes to the router."""
        return {STATS: {"tokens": dict(self._counts()), "free_blocks": self.free_blocks}}

    def _counts(self) -> dict[str, int]:
        if "_tokens_of_requests" not in self.__dict__:
            self._tokens_of_requests: dict[str, int] = {}
        return self._tokens_of_requests
