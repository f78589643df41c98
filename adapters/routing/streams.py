"""Counts the tokens of a stream of server-sent events while its bytes pass."""

from __future__ import annotations

import json
import re
from typing import Any

# Nearly all events: one choice with some text of an answer, without a count of tokens or an error. (In JSON a quote
# within a text is \", so what is matched is no part of one.) Any other event is read as JSON.
PLAIN = re.compile(rb'"(?:text|content)": ?"[^"]')
NOT_PLAIN = re.compile(rb'"(?:usage|error|logprobs)": *+(?!null)')
LONGEST_LINE = 2**20  # bytes; a longer line is not counted
MOST_PROMPT_TOKENS = 2**24


def prompt_tokens_in(usage: Any) -> int | None:
    """Read the engine's count of a prompt's tokens from an answer's usage; None: it has none."""
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return count if type(count) is int and 0 < count < MOST_PROMPT_TOKENS else None


class EventCounter:
    """Tokens in the `data:` lines of an OpenAI stream.

    done: `data: [DONE]` has come. failed: an event was an error. tokens: so far. prompt_tokens: by the engine's
    count; None: it has not said.
    """

    def __init__(self) -> None:
        self.done = False
        self.failed = False
        self.tokens = 0
        self.prompt_tokens: int | None = None
        self._rest = b""  # an incomplete line
        self._too_long = False

    def feed(self, data: bytes) -> int:
        """Take the next bytes; returns the number of tokens in them."""
        before = self.tokens
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            if self._too_long:
                self._too_long = False
                continue
            self._line(line)
        if len(rest) > LONGEST_LINE:
            self._too_long, rest = True, b""
        self._rest = rest
        return self.tokens - before

    def _line(self, line: bytes) -> None:
        if not line.startswith(b"data:"):
            return
        text = line[5:].strip()
        if text == b"[DONE]":
            self.done = True
            return
        if text.count(b'"index":') == 1 and len(PLAIN.findall(text)) == 1 and NOT_PLAIN.search(text) is None:
            self.tokens += 1
            return
        try:
            event = json.loads(text)
        except (ValueError, RecursionError):
            return
        if not isinstance(event, dict):
            return
        if event.get("error") is not None:
            self.failed = True
        self._count(event)

    def _count(self, event: dict[str, Any]) -> None:
        usage = event.get("usage")
        self.prompt_tokens = prompt_tokens_in(usage) or self.prompt_tokens
        reported = usage.get("completion_tokens") if isinstance(usage, dict) else None
        if type(reported) is int and reported < 2**31:  # so far; an event may bring several
            self.tokens = max(self.tokens, reported)
            return
        choices = event.get("choices")
        if isinstance(choices, list):
            self.tokens += sum(isinstance(choice, dict) and _says(choice) for choice in choices)


def _says(choice: dict[str, Any]) -> bool:
    """Whether a choice of an event has a part of an answer."""
    delta = choice.get("delta")
    parts = delta if isinstance(delta, dict) else choice
    return any(parts.get(key) for key in ("text", "content", "reasoning_content", "reasoning", "tool_calls"))
