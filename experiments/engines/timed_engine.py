"""An engine whose batches take as long as a latency profile says, in real time: OpenAI's completions without a model.

    python -m experiments.engines.timed_engine PORT PROFILE FACTOR

It schedules as vLLM V1 does where memory is not short (running requests first, then those that wait, in order; prompts
in chunks, within a budget of tokens), and sleeps for as long as the device model says of the batch, times FACTOR. Each
token is an event. For what needs an engine that serves, whatever it answers.
"""

import asyncio
import contextlib
import dataclasses
import json
import sys

import numpy as np

from servegym.latency_models.profile import Profile, load_profile
from servegym.simulator.records.types import BATCH

HOST = "127.0.0.1"
TOKEN_BUDGET, SEQUENCES = 2048, 256
EVENT = b'data: {"id":"cmpl-0","object":"text_completion","choices":[{"index":0,"text":" token"}]}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclasses.dataclass(eq=False)
class Job:
    """A request. computed: tokens of its context that are; out: tokens of its answer that are."""

    prompt: int
    most: int
    computed: int = 0
    out: int = 0
    news: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)


def take(sums: np.ndarray, job: Job, tokens: int) -> None:
    """Add a request that computes so many tokens to the sums of a batch (BATCH[1])."""
    batch, cached = sums[0], job.computed
    if job.out:
        batch["decode_requests"] += 1
        batch["decode_cached_tokens"] += cached
        batch["longest_decode_cached"] = max(batch["longest_decode_cached"], cached)
        return
    batch["prefill_requests"] += 1
    batch["prefill_tokens"] += tokens
    batch["prefill_tokens_squared"] += tokens * tokens
    batch["prefill_tokens_cached"] += tokens * cached
    batch["prefill_cached_tokens"] += cached
    batch["longest_prefill_tokens"] = max(batch["longest_prefill_tokens"], tokens)


class TimedEngine:
    """Runs batches one after the other; `serve` answers HTTP."""

    def __init__(self, profile: Profile, factor: float = 1.0):
        self._model = profile.device.times(factor)
        self._jobs: list[Job] = []  # in order of arrival
        self._some = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        at_s = loop.time()
        while True:
            if not self._jobs:
                self._some.clear()
                await self._some.wait()
                at_s = loop.time()
            sums, taken, left = np.zeros(1, BATCH), [], TOKEN_BUDGET
            for job in sorted(self._jobs[:SEQUENCES], key=lambda job: job.computed == 0):
                tokens = min(left, job.prompt + job.out - job.computed)
                if tokens < 1:
                    break
                take(sums, job, tokens)
                taken.append((job, tokens))
                left -= tokens
            # Steps follow each other without drift: a wake-up that came late is made up for by the next.
            at_s = max(at_s, loop.time() - 0.1) + float(self._model.evaluate(sums)[0])
            await asyncio.sleep(max(0.0, at_s - loop.time()))
            for job, tokens in taken:
                job.computed += tokens
                if job.computed == job.prompt + job.out:
                    job.out += 1
                    job.news.set()
                    if job.out == job.most:
                        self._drop(job)

    def _drop(self, job: Job) -> None:
        if job in self._jobs:
            self._jobs.remove(job)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"GET"):
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                    continue
                lines = head.lower().split(b"\r\n")
                length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
                body = json.loads(await reader.readexactly(length))
                job = Job(len(body["prompt"]), int(body["max_tokens"]))
                self._jobs.append(job)
                self._some.set()
                try:
                    await self._stream(job, writer)
                finally:
                    self._drop(job)
        writer.close()

    async def _stream(self, job: Job, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        sent = 0
        while sent < job.most:
            await job.news.wait()
            job.news.clear()
            events, sent = EVENT * (job.out - sent), job.out
            writer.write(b"%x\r\n%s\r\n" % (len(events), events))
            await writer.drain()
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        await writer.drain()


async def main(port: int, profile: str, factor: float) -> None:
    """Serve until it is killed."""
    engine = TimedEngine(load_profile(profile), factor)
    server = await asyncio.start_server(engine.serve, HOST, port, backlog=256)
    async with server:
        await asyncio.gather(server.serve_forever(), engine.run())


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
