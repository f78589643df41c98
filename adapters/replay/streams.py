"""Reading a streamed completion: server-sent events, and how many tokens each of them brought."""

from __future__ import annotations

import json
from typing import Any

from servegym.adapters.replay.records import Record

DONE = b"[DONE]"
LONGEST_EVENT = 2**20  # bytes; a longer line is no event of a completion


class StreamError(Exception):
    """The stream is not that of a completion, or holds an error from the server."""


class TokenStream:
    """Takes the bytes of a stream as they come and writes the tokens' times to a record.

    A chunk may hold several tokens, or none. How many is, in this order: the rise of `usage.completion_tokens`, the
    length of `token_ids`, or one. Where only the last chunk has a usage, and counts more tokens than were seen, the
    rest is given the time of the last chunk that had any; where it counts fewer, the last ones were none.
    """

    def __init__(self, record: Record, most_tokens: int):
        self.record, self.most_tokens = record, most_tokens
        self.done = False
        self._left = b""

    def feed(self, data: bytes, now_s: float) -> None:
        """Take in bytes that were received together. Raises StreamError."""
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
        if choice is None and isinstance(in_all, int) and times:  # the usage at the end
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
    """The message of an error as OpenAI's servers write it, on one line."""
    error = document.get("error", document) if isinstance(document, dict) else document
    message = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(message).split())[:200]
