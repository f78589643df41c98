"""An OpenAI-compatible server that answers as it is told: tokens at given times, or a fault."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    """What a request gets.

    chunks: (seconds after the request came, tokens in the chunk). usage: how tokens are told: "each" chunk has a usage,
    the "last" has, or chunks have "ids", or "none". status: other than 200, with `body`. done: whether [DONE] is sent.
    dies: the connection ends without an end of the stream; hangs: nothing comes any more. live: called with the body,
    gives tokens as they come, instead of chunks.
    """

    chunks: list[tuple[float, int]] = field(default_factory=list)
    usage: str = "each"
    status: int = 200
    body: str = ""
    done: bool = True
    dies: bool = False
    hangs: bool = False
    live: Callable[[dict[str, Any]], AsyncIterator[int]] | None = None


Script = Callable[[int, dict[str, Any]], Answer]  # (number of the request, its body) -> what it gets


@dataclass
class Server:
    url: str
    bodies: list[dict[str, Any]]
    headers: list[dict[str, str]]
    answered: int = 0  # to their ends


@contextlib.contextmanager
def serving(script: Script) -> Iterator[Server]:
    """The server, on a free port of the loopback, until the end of the block."""
    loop, started = asyncio.new_event_loop(), threading.Event()
    found: list[Server] = []

    async def main() -> None:
        server = Server("", [], [])

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                    while await _exchange(reader, writer, script, server):
                        pass
            finally:  # Python 3.12.1 does not close the connection of a task that is cancelled, and waits for it
                writer.close()

        listening = await asyncio.start_server(connected, "127.0.0.1", 0)
        server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        found.append(server)
        started.set()
        async with listening:
            await listening.serve_forever()

    def run() -> None:
        asyncio.set_event_loop(loop)
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    task = loop.create_task(main())
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(lambda: [each.cancel() for each in asyncio.all_tasks(loop)])
        thread.join(10)
        loop.close()


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, script: Script, server: Server) -> bool:
    """One request and its answer; whether the connection stays open."""
    line = (await reader.readuntil(b"\r\n")).decode()
    headers = {}
    while header := (await reader.readuntil(b"\r\n")).decode().strip():
        name, _, value = header.partition(":")
        headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    if line.startswith("GET /v1/models"):
        return await _whole(writer, 200, json.dumps({"data": [{"id": "fake"}]}))
    if not line.startswith("POST /v1/completions"):
        return await _whole(writer, 404, "nothing here")
    number = len(server.bodies)
    server.bodies.append(json.loads(body))
    server.headers.append(headers)
    begin_s = asyncio.get_running_loop().time()
    answer = script(number, server.bodies[-1])
    if answer.status != 200:
        return await _whole(writer, answer.status, answer.body)
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    so_far = 0
    for at_s, tokens in answer.chunks:
        await asyncio.sleep(begin_s + at_s - asyncio.get_running_loop().time())
        so_far += tokens
        await _event(writer, json.dumps(_chunk(answer, tokens, so_far)))
    if answer.live is not None:
        async with contextlib.aclosing(answer.live(server.bodies[-1])) as coming:
            async for tokens in coming:
                so_far += tokens
                await _event(writer, json.dumps(_chunk(answer, tokens, so_far)))
    if answer.hangs:
        await asyncio.sleep(3600)
    if answer.dies:
        return False
    if answer.usage == "last":
        await _event(writer, json.dumps({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": so_far}}))
    if answer.done:
        await _event(writer, "[DONE]")
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    server.answered += 1
    return True


def _chunk(answer: Answer, tokens: int, so_far: int) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "text": "x" * tokens, "finish_reason": None}
    if answer.usage == "ids":
        choice["token_ids"] = [1] * tokens
    chunk: dict[str, Any] = {"choices": [choice]}
    if answer.usage == "each":
        chunk["usage"] = {"prompt_tokens": 7, "completion_tokens": so_far}
    return chunk


async def _event(writer: asyncio.StreamWriter, text: str) -> None:
    data = f"data: {text}\n\n".encode()
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()


async def _whole(writer: asyncio.StreamWriter, status: int, text: str) -> bool:
    data = text.encode()
    writer.write(f"HTTP/1.1 {status} x\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
    await writer.drain()
    return True
