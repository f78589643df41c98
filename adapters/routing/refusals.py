"""Answers that a proxy gives itself: errors, in the form in which OpenAI's interface has them."""

from __future__ import annotations

import json


class Refused(Exception):
    """A request that is answered with an error before anything was sent to its client."""

    def __init__(self, status: int, message: str, kind: str, retry_after_s: int | None = None):
        super().__init__(message)
        self.status, self.message, self.kind, self.retry_after_s = status, message, kind, retry_after_s

    @property
    def body(self) -> bytes:
        return error_body(self.status, self.message, self.kind)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(self.body)).encode())]
        if self.retry_after_s is not None:
            headers.append((b"retry-after", str(self.retry_after_s).encode()))
        return headers


def error_body(status: int, message: str, kind: str) -> bytes:
    """An error as a JSON document."""
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": status}}).encode()


def error_event(status: int, message: str, kind: str) -> bytes:
    """An error as a server-sent event of its own, wherever the stream broke off."""
    return b"\n\ndata: " + error_body(status, message, kind) + b"\n\n"
