"""Reads a streamed completion: server-sent events, and the number of tokens in each."""

from __future__ import annotations

import json
from typing import Any

from servegym.adapters.replay.records import Record

DONE = b"[DONE]"
LONGEST_EVENT = 2**20  # bytes; a longer line cannot be an event of a completion


class StreamError(Exception):
    """A stream that is not that of a completion, or that has an error of the server."""


class TokenStream:
    """Parses the bytes of a stream as they come and writes the times of tokens to a record.

    A chunk may hold several tokens, or none. Their number is the increase of `usage.completion_tokens`, else the length
    of `token_ids`, else 1. If only the last chunk has a usage and it counts more tokens than were seen, the others get
    the time of the last chunk with a token; if it counts fewer, the last times are dropped.
    """

    def __init__(self, record: Record, most_tokens: int):
        self.record, self.most_tokens = record, most_tokens
        self.done = False
        self._left = b""

    def feed(self, data: bytes, now_s: float) -> None:
        """Parse bytes that were received together at now_s. Raises StreamError."""
        *lines, self._left = (self._left + data).split(b"\n")
        if len(self._left) > LONGEST_EVENT:
            raise StreamError(f"an event of more than {LONGEST_EVENT} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now_s)

    def _event(self, text: bytes, now_s: float) -> None:
        if text == DONE:
            self.done = True
            return
        try:
            event = json.loads(text)
        except ValueError:
            raise StreamError(f"an event that is no JSON: {text[:60]!r}") from None
        if not isinstance(event, dict):
            raise StreamError(f"an event that is no object: {text[:60]!r}")
        if "error" in event:
            raise StreamError(f"the server: {error_text(event)}")
        self._count(event, now_s)

    def _count(self, event: dict[str, Any], now_s: float) -> None:
        times = self.record.token_s
        usage, choices = event.get("usage"), event.get("choices")
        in_all = usage.get("completion_tokens") if isinstance(usage, dict) else None
        if isinstance(usage, dict) and isinstance(usage.get("prompt_tokens"), int):
            self.record.prompt_tokens = usage["prompt_tokens"]
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
        if choice is None and isinstance(in_all, int) and times:  # the last chunk, which has only a usage
            del times[in_all:]
            now_s = times[-1] if times else now_s
        if isinstance(in_all, int):
            new = in_all - len(times)
        elif choice is None:
            new = 0
        elif isinstance(choice.get("token_ids"), list):
            new = len(choice["token_ids"])
        else:
            new = 1 if choice.get("text") or choice.get("finish_reason") is None else 0
        times.extend([now_s] * min(new, self.most_tokens - len(times)))


def error_text(document: Any) -> str:
    """Return the message of an error object of an OpenAI-compatible server, in one line."""
    error = document.get("error", document) if isinstance(document, dict) else document
    message = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(message).split())[:200]
