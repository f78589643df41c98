"""Answers that a proxy gives itself: errors, in the form in which OpenAI's interface has them."""

from __future__ import annotations

import json


class Refused(Exception):
    """A request that is answered with an error before anything was sent to its client.

    kind, code: `type` and `code` of the error; code: where OpenAI's interface has a word for it, else the status.
    """

    def __init__(self, status: int, message: str, kind: str, retry_after_s: int | None = None, code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.kind, self.retry_after_s, self.code = status, message, kind, retry_after_s, code

    @property
    def outcome(self) -> str:
        """How the request ended, as metrics count it."""
        return self.code or self.kind

    @property
    def body(self) -> bytes:
        return error_body(self.status, self.message, self.kind, self.code)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(self.body)).encode())]
        if self.retry_after_s is not None:
            headers.append((b"retry-after", str(self.retry_after_s).encode()))
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        return headers


def error_body(status: int, message: str, kind: str, code: str | None = None) -> bytes:
    """An error as a JSON document."""
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code or status}}).encode()


def error_event(status: int, message: str, kind: str) -> bytes:
    """An error as a server-sent event of its own, wherever the stream broke off."""
    return b"\n\ndata: " + error_body(status, message, kind) + b"\n\n"
