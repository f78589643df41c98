"""Reads a request's body, and makes the job that serves it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import aiohttp
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

from servegym.adapters.routing.backends import as_text
from servegym.adapters.routing.clients import Client
from servegym.adapters.routing.jobs import Job
from servegym.adapters.routing.operation import Operation
from servegym.adapters.routing.proxy import Proxy
from servegym.adapters.routing.refusals import Refused
from servegym.adapters.routing.relay import NOT_TO_ENGINES, passed_on
from servegym.adapters.routing.request_log import Measured
from servegym.adapters.routing.request_terms import LONGEST_PROMPT_TOKENS, chunks_of, prompt_tokens, request_terms_of

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
COUNT_TIMEOUT_S = 1.0
GONE = "client-gone"


async def read_body(request: Request, proxy: Proxy) -> bytes:
    """Read a request's body. Raises Refused if it is too long, or comes too slowly."""
    settings = proxy.settings
    too_long = Refused(413, f"the body is longer than {settings.max_body_bytes} bytes", "too_large")
    if int(request.headers.get("content-length", "0")) > settings.max_body_bytes:
        raise too_long
    parts, length, loop = [], 0, asyncio.get_running_loop()
    end_s = loop.time() + settings.body_s
    try:
        async with asyncio.timeout(settings.read_s) as deadline:
            async for part in request.stream():
                parts.append(part)
                length += len(part)
                if length > settings.max_body_bytes:
                    raise too_long
                deadline.reschedule(min(end_s, loop.time() + settings.read_s))
    except TimeoutError:
        raise Refused(408, "the body came too slowly", "timeout") from None
    except ClientDisconnect:
        raise Refused(400, "the connection was closed", GONE) from None
    return b"".join(parts)


async def job_of(
    headers: Headers,
    proxy: Proxy,
    operation: Operation,
    client: Client,
    body: bytes,
    document: dict[str, Any],
    chat: bool,
    arrived_s: float,
) -> Job:
    """Make the job of a request: its terms, prompt chunks, and what is sent to the engine. Raises Refused for a model
    that no engine serves."""
    settings, router = proxy.settings, proxy.router
    by_engine = settings.count_by_engine or settings.kv_events_port > 0
    tokens, ids = await _tokenized(proxy, operation, document, chat) if by_engine else (None, None)
    if tokens is None:
        tokens = prompt_tokens(document, chat, settings.characters_per_token)
    adapter, lacking = proxy.loras.named_by(document.get("model"))
    asked, more, wrong = request_terms_of(document, headers, tokens, proxy.reader)
    asked = dataclasses.replace(asked, adapter=adapter)
    proxy.metrics.malformed.inc(wrong)
    if more:  # engines read terms from the body only
        body = json.dumps(document | more).encode()
    chunks: list[int] = []
    name = document["model"] if adapter else ""
    if router.known.prefixes.sent.shape[1] > 0:
        chunk_tokens = router.known.prefixes.chunk_tokens
        if ids is not None and settings.kv_events_port > 0:  # engines publish token ids
            chunks = chunks_of({"prompt": ids}, False, chunk_tokens, settings.characters_per_token, name)
        else:
            chunks = chunks_of(document, chat, chunk_tokens, settings.characters_per_token, name)
    dropped = NOT_TO_ENGINES | ({b"authorization"} if operation.clients.all or operation.engine_headers else set())
    passed = [*passed_on(headers.raw, dropped), (b"accept-encoding", b"identity"), *operation.engine_headers]
    path = CHAT if chat else COMPLETIONS
    return Job(path, body, passed, asked, chunks, client, Measured(arrived_s, asked), excluded=lacking)


async def _tokenized(
    proxy: Proxy, operation: Operation, document: dict[str, Any], chat: bool
) -> tuple[int | None, list[int] | None]:
    """Have an engine tokenize a prompt. Returns the number of tokens, and their ids if the engine sends them; None: no
    engine answers in time, or the prompt has token ids already."""
    prompt = document.get("prompt")
    if not chat and not isinstance(prompt, str):
        return None, None
    asked = {"model": document.get("model")} | ({"messages": document["messages"]} if chat else {"prompt": prompt})
    up = [one for one in proxy.backends.all if one.takes]
    if not up:
        return None, None
    try:
        async with asyncio.timeout(COUNT_TIMEOUT_S):
            headers = as_text(operation.engine_headers)
            async with proxy.backends.client.post(f"{up[0].url}/tokenize", json=asked, headers=headers) as answer:
                found = json.loads(await answer.read())
        count, ids = found["count"], found.get("tokens")
        if type(count) is not int or not 0 < count < LONGEST_PROMPT_TOKENS:
            return None, None
        whole = isinstance(ids, list) and len(ids) == count and set(map(type, ids)) == {int}
        return count, ids if whole else None
    except (aiohttp.ClientError, OSError, ValueError, LookupError, TypeError, AttributeError):
        return None, None
