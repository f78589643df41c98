"""A Ray Serve deployment of three toy engines behind `PolicyRouter`, for test_ray_serve.py."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

from servegym.adapters.routing.ray_serve import PolicyRouter, Reporting


class Toy(Reporting):
    """Streams tokens: a prompt token takes 10 us, an output token as long as the body says."""

    def __init__(self) -> None:
        from ray import serve

        self.name = serve.get_replica_context().replica_id.unique_id

    async def generate(self, body: dict[str, Any]) -> AsyncIterator[str]:
        await asyncio.sleep(body["prompt_tokens"] * 1e-5)
        try:
            for _ in range(body["max_tokens"]):
                self.note_token()
                yield self.name
                await asyncio.sleep(body["token_s"])
        finally:
            self.note_end()

    async def die(self) -> None:
        os._exit(1)


class Watched(PolicyRouter):
    """Which says what it knows."""

    # On a busy machine a replica may take longer to say its queue's length than Ray's 0.1 s, and is then passed over.
    queue_len_response_deadline_s = 30.0

    async def choose_replicas(self, candidate_replicas: Any, pending_request: Any = None) -> Any:
        ranked = await super().choose_replicas(candidate_replicas, pending_request)
        body = pending_request.args[0] if pending_request is not None and pending_request.args else {}
        if "watch" in body:
            snapshots = self._live.snapshots[: len(self._engine_of)]
            with open(body["watch"], "a") as stream:
                print([snapshots["prefills"].tolist(), snapshots["decodes"].tolist(), len(self._rows)], file=stream)
        return ranked
