"""Reads the terms of an OpenAI request from its body: the prompt's length, SLOs, priority and weight.

Invalid terms count as missing, so that no client can stop a router with them, but an invalid body is refused.
"""

from __future__ import annotations

import json
import math
import zlib
from array import array
from collections.abc import Mapping
from typing import Any

from servegym.adapters.routing.refusals import Refused
from servegym.adapters.routing.rows import RequestTerms
from servegym.adapters.vllm.terms import MILLISECONDS, Defaults, TermsReader

LONGEST_PROMPT_TOKENS = 2**24
LONGEST_NUMBER = 64  # characters
PER_MESSAGE_TOKENS = 4  # of a chat template, around each message
HEADER = "x-servegym-"
SESSION_HEADER = "x-session-id"
SESSION_FIELDS = ("prompt_cache_key", "user")  # of OpenAI's interface; the first one present names the session
LARGEST_NUMBER = 2**31 - 1  # of a session or a chunk


# Terms of a request that sends none, if the policy's file has none either.
DEFAULTS = Defaults(ttft_slo_s=1.0, tpot_slo_s=0.05)
BY_HEADER = ("ttft_slo_s", "tpot_slo_s", "ttlt_slo_s", "weight", "predicted_output_tokens")


def defaults_of(workload: Mapping[str, Any] | None) -> Defaults:
    """Read the default terms of an artifact's workload; missing ones are those of DEFAULTS."""
    given = {name: value for name, value in (workload or {}).items() if value is not None}
    return Defaults.of_workload({"ttft_slo_s": DEFAULTS.ttft_slo_s, "tpot_slo_s": DEFAULTS.tpot_slo_s} | given)


def bad_body(message: str) -> Refused:
    """Make the refusal of a body that is not a request."""
    return Refused(400, message, "invalid_request_error")


def parse(body: bytes, chat: bool) -> dict[str, Any]:
    """Parse the JSON object of a request. Raises Refused (400)."""
    try:
        document = json.loads(body)
    except RecursionError:
        raise bad_body("the body is nested too deeply") from None
    except ValueError as error:  # of the syntax, of the encoding, or of a number too long
        raise bad_body(f"the body is not JSON: {error}"[:200]) from None
    if not isinstance(document, dict):
        raise bad_body(f"the body is a JSON {type(document).__name__}; it should be an object")
    check(document, chat)
    return document


def check(document: Mapping[str, Any], chat: bool) -> None:
    """Raise Refused (400) if a field that is read here has a wrong type."""
    if chat:
        messages = document.get("messages")
        if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
            raise bad_body("'messages' should be a list of at least one object")
    elif not _is_prompt(document.get("prompt")):
        raise bad_body("'prompt' should be a text, a list of token ids, or a list of such")
    if not isinstance(document.get("stream"), bool | None):
        raise bad_body("'stream' should be true or false")


def _is_prompt(prompt: Any) -> bool:
    if isinstance(prompt, str):
        return True
    if not isinstance(prompt, list) or not prompt:
        return False
    return _is_ids(prompt) or all(isinstance(one, str) or (isinstance(one, list) and _is_ids(one)) for one in prompt)


def _is_ids(items: list[Any]) -> bool:
    return set(map(type, items)) <= {int}  # several times as fast as asking each


def prompt_tokens(document: Mapping[str, Any], chat: bool, characters_per_token: float) -> int:
    """Count prompt tokens: token ids, or the characters of texts divided; several prompts are added."""
    if chat:
        texts = [_text_of(message.get("content")) for message in document["messages"]]
        tokens = sum(PER_MESSAGE_TOKENS + math.ceil(len(text) / characters_per_token) for text in texts)
    else:
        prompt = document["prompt"]
        parts = [prompt] if isinstance(prompt, str) or _is_ids(prompt) else prompt
        tokens = sum(
            math.ceil(len(part) / characters_per_token) if isinstance(part, str) else len(part) for part in parts
        )
    return max(1, min(LONGEST_PROMPT_TOKENS, tokens))


def _text_of(content: Any) -> str:
    """Join the text of a message; other parts (images) are left out."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [part.get("text") for part in content if isinstance(part, dict)]
    return "".join(part for part in parts if isinstance(part, str))


def chunks_of(
    document: Mapping[str, Any], chat: bool, chunk_tokens: int, characters_per_token: float, adapter: str = ""
) -> list[int]:
    """Number the prompt's full chunks; numbers are equal for prompts that are equal up to the end of the chunk.

    Each is a hash of everything up to the chunk's end: of ids, or of the characters that count as the chunk's tokens.
    (Two chunks have the same number with probability 2^-31; a router then assumes a block where it is not.)
    adapter: name of the request's LoRA adapter, as KV under different ones differs.
    """
    if chat:
        text = "\0".join(
            f"{message.get('role')}\0{_text_of(message.get('content'))}" for message in document["messages"]
        )
        prompt: Any = text
    else:
        prompt = document["prompt"]
    if isinstance(prompt, list) and not _is_ids(prompt):
        return []  # several prompts
    if isinstance(prompt, str):
        data, length = prompt.encode("utf-32-le", "replace"), 4 * max(1, int(chunk_tokens * characters_per_token))
    else:
        try:
            data, length = array("q", prompt).tobytes(), 8 * chunk_tokens
        except OverflowError:  # no engine has such ids
            return []
    numbers, number = [], first_number(adapter)
    for end in range(length, len(data) + 1, length):
        number = zlib.crc32(data[end - length : end], number)
        numbers.append(number & LARGEST_NUMBER)
    return numbers


def first_number(adapter: str) -> int:
    """Return the number before a prompt's first chunk, under the LoRA adapter of this name. 0: "", no adapter."""
    return zlib.crc32(adapter.encode(errors="replace"))


def session_of(document: Mapping[str, Any], headers: Mapping[str, str]) -> int:
    """Number the request's session by a hash, so that all proxies agree on it; -1: it names none."""
    names = [headers.get(SESSION_HEADER), *(document.get(field) for field in SESSION_FIELDS)]
    name = next((one for one in names if isinstance(one, str) and one), None)
    return -1 if name is None else zlib.crc32(name.encode(errors="replace")) & LARGEST_NUMBER


def request_terms_of(
    document: Mapping[str, Any], headers: Mapping[str, str], tokens: int, reader: TermsReader
) -> tuple[RequestTerms, dict[str, Any], int]:
    """Read a request's terms. Returns them, the fields that its headers add to its body, and the number of invalid
    ones.

    A body has them in `vllm_xargs` and `priority`, as for the plug-in; headers are x-servegym-ttft-slo-s and so on. The
    body takes precedence.
    """
    xargs = document.get("vllm_xargs")
    sent = xargs if isinstance(xargs, dict) else {}
    added: dict[str, Any] = {}
    wrong = 0
    for name in BY_HEADER:
        text = headers.get(HEADER + name.replace("_", "-"))
        if text is None or name in sent or (name.endswith("_s") and name.removesuffix("_s") + MILLISECONDS in sent):
            continue
        value = _number(text)
        if value is None:
            wrong += 1
        else:
            added[name] = value
    priority = document.get("priority", headers.get(HEADER + "priority", 0))
    number = _number(priority)
    if number is None or number != int(number) or not -(2**31) <= number < 2**31:
        wrong += 1
        number = 0.0
    more: dict[str, Any] = {"vllm_xargs": {**added, **sent}} if added else {}
    if "priority" not in document and number != 0:
        more["priority"] = int(number)
    terms = reader.read({**added, **sent}, int(number))
    wrong += terms.malformed + (xargs is not None and sent is not xargs)
    asked = RequestTerms(
        tokens, terms.ttft_slo_s, terms.tpot_slo_s, terms.ttlt_slo_s, int(number), terms.weight,
        reader.defaults.first_token_weight, terms.predicted_output_tokens, session_of(document, headers),
    )  # fmt: skip
    return asked, more, wrong


def _number(value: Any) -> float | None:
    """Read a finite number, also from a text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and len(value) > LONGEST_NUMBER:
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
