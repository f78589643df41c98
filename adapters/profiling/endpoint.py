"""Measures the steps of a server from outside, by the times of the tokens that it streams.

Requests that decode together get a token at the end of each step, so the time between two tokens of a request is the
time of a step, and the network's delay cancels out. A prompt sent meanwhile is prefilled in the step at whose end its
first token comes. So prefills are measured beside at least one decode, never alone, and with no cached tokens: each
prompt is random and fits the server's token budget.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import numpy as np

from servegym.adapters.profiling.design import Batch, Prefill, Space
from servegym.adapters.profiling.measuring import Measurement
from servegym.adapters.replay.records import Record
from servegym.adapters.replay.sending import HEADERS, Clients, Endpoint, error_of_body, reason_of
from servegym.adapters.replay.streams import StreamError, TokenStream
from servegym.errors import ProfilingError

FIRST_ID = 16
LEAST_DECODES = 1
SETTLED_TOKENS = 3  # tokens of each stream before the first measured step
TRIES = 3  # attempts per repeat, since some prompts are not prefilled in one step
WAIT_S = 0.002
SHORTEST_STEP = 0.5  # share of the usual step, below which a step with a prefill is not counted


class EndpointMeter:
    """Measures batches on a server with /v1/completions.

    space: limits of the server's batches; a token budget above the server's own would cut prompts into several steps.

    Raises ProfilingError if the server does not answer as an OpenAI-compatible one.
    """

    def __init__(self, endpoint: Endpoint, model: str, space: Space, vocabulary: int = 256):
        self.endpoint, self.model, self.space, self.vocabulary = endpoint, model, space, vocabulary
        self._rng = np.random.default_rng(time.time_ns())  # prompts of an earlier run might be cached

    def facts(self) -> dict[str, Any]:
        return {
            "engine": "a server, by the tokens that it streams",
            "endpoint": self.endpoint.url,
            "model": self.model,
            "clock": "time.monotonic at the client, between tokens",
        }

    def warm_up(self) -> None:
        self.measure(Batch((Prefill(min(64, self.space.batch_tokens - 1)),), (16,)), 2)

    def measure(self, batch: Batch, repeats: int) -> Measurement | None:
        batch = Batch(
            tuple(Prefill(each.tokens) for each in batch.prefills), batch.decodes or (FIRST_ID,) * LEAST_DECODES
        )
        room = self.space.batch_tokens - len(batch.decodes)
        if sum(each.tokens for each in batch.prefills) > room:
            batch = Batch((Prefill(room // len(batch.prefills)),) * len(batch.prefills), batch.decodes)
        return asyncio.run(self._measure(batch, repeats))

    async def _measure(self, batch: Batch, repeats: int) -> Measurement | None:
        decodes = [Record(0.0) for _ in batch.decodes]
        longest = self.space.context_tokens - max(batch.decodes)
        clients = Clients(self.endpoint)
        tasks = [
            asyncio.create_task(self._stream(clients, tokens, longest, record))
            for tokens, record in zip(batch.decodes, decodes, strict=True)
        ]
        try:
            await self._until(tasks, lambda: all(len(each.token_s) >= SETTLED_TOKENS for each in decodes))
            if batch.prefills:
                found = await self._beside(clients, batch, decodes, tasks, repeats)
            else:
                found = await self._alone(decodes, tasks, repeats)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await clients.close()
        if not found:
            return None
        emitted = np.mean([context for context, _ in found])
        ran = Batch(batch.prefills, tuple(int(tokens + emitted) for tokens in batch.decodes))
        return Measurement(ran.sums(), np.array([seconds for _, seconds in found]))

    async def _alone(self, decodes: list[Record], tasks: list[Any], repeats: int) -> list[tuple[int, float]]:
        """Measure steps of decodes only. Returns (output tokens before the step, seconds) of each."""
        times, first = decodes[0].token_s, len(decodes[0].token_s)
        await self._until(tasks, lambda: len(times) > first + repeats)
        return [(at, times[at] - times[at - 1]) for at in range(first + 1, first + repeats + 1)]

    async def _beside(
        self, clients: Clients, batch: Batch, decodes: list[Record], tasks: list[Any], repeats: int
    ) -> list[tuple[int, float]]:
        """Measure steps that computed all prefills of the batch. Returns the same as `_alone`."""
        found: list[tuple[int, float]] = []
        witness = decodes[0].token_s
        for _ in range(TRIES * repeats):
            firsts = [Record(0.0) for _ in batch.prefills]
            await asyncio.gather(
                *(
                    self._stream(clients, each.tokens, 1, first)
                    for each, first in zip(batch.prefills, firsts, strict=True)
                )
            )
            count = len(witness)
            await self._until(tasks, lambda count=count: len(witness) > count)  # until the decode's token of this step
            steps = {int(np.argmin(np.abs(np.array(witness) - first.token_s[0]))) for first in firsts if first.token_s}
            if len(steps) == 1 and all(first.token_s for first in firsts):
                (at,) = steps
                step_s, usual_s = witness[at] - witness[at - 1], float(np.median(np.diff(witness)))
                if step_s > usual_s * SHORTEST_STEP:  # a shorter one: its tokens came late, with those of the next step
                    found.append((at, step_s))
            if len(found) == repeats:
                break
        return found

    async def _until(self, tasks: list[Any], come: Any) -> None:
        """Wait until `come()` is true. Raises ProfilingError if a stream ends first, or no token comes."""
        deadline_s = time.monotonic() + self.endpoint.timeout_s
        while not come():
            for task in tasks:
                if task.done():
                    task.result()  # raises the task's error
                    raise ProfilingError(
                        f"{self.endpoint.url} ended a stream early; are the limits of the server right?"
                    )
            if time.monotonic() > deadline_s:
                raise ProfilingError(f"{self.endpoint.url}: no token in {self.endpoint.timeout_s:g} s")
            await asyncio.sleep(WAIT_S)

    async def _stream(self, clients: Clients, prompt_tokens: int, output_tokens: int, record: Record) -> None:
        document = {
            "model": self.model,
            "prompt": self._rng.integers(FIRST_ID, self.vocabulary, prompt_tokens).tolist(),
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        stream = TokenStream(record, output_tokens)
        body, url = json.dumps(document).encode(), f"{self.endpoint.base}/completions"
        try:
            async with clients.one() as client, client.stream("POST", url, content=body, headers=HEADERS) as answer:
                if answer.status_code != httpx.codes.OK:
                    reason = f"{answer.status_code}: {error_of_body(await answer.aread())}"
                    raise ProfilingError(f"{self.endpoint.url} answered {reason}")
                async for data in answer.aiter_raw():
                    stream.feed(data, time.monotonic())
        except (httpx.HTTPError, StreamError) as error:
            raise ProfilingError(f"{self.endpoint.url} closed the connection: {reason_of(error)}") from None

    def close(self) -> None:
        """Do nothing: no connection is held between batches."""
