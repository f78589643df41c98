"""The proxy's own answers: errors in the form of OpenAI's interface."""

from __future__ import annotations

import asyncio
import json

from starlette.types import Receive, Scope, Send

LINGER_BYTES = 64 * 2**20  # most bytes read of the rest of a refused request; LINGER_S: longest time for it
LINGER_S = 30.0
LINGER_IDLE_S = 2.0


class Refused(Exception):
    """A request that is answered with an error before anything is sent to its client.

    kind, code: `type` and `code` of the error; code None: the status, as OpenAI's interface has no code for it.
    """

    def __init__(self, status: int, message: str, kind: str, retry_after_s: int | None = None, code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.kind, self.retry_after_s, self.code = status, message, kind, retry_after_s, code

    @property
    def outcome(self) -> str:
        """The outcome of the request in metrics."""
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


class Refusal:
    """The answer to a request that is refused.

    read: whether its body has been read. Where it has not, the connection is closed, but only once the client has
    had time to send the rest and to read the answer: closing a socket with unread data resets it, and many
    clients read only after they have sent all.
    """

    def __init__(self, refused: Refused, read: bool = True):
        self._refused, self._read = refused, read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        refused = self._refused
        headers = refused.headers if self._read else [*refused.headers, (b"connection", b"close")]
        await send({"type": "http.response.start", "status": refused.status, "headers": headers})
        await send({"type": "http.response.body", "body": refused.body, "more_body": not self._read})
        if not self._read:
            await _discard(receive)
            await send({"type": "http.response.body", "body": b""})


async def _discard(receive: Receive) -> None:
    """Read the rest of a request, within bounds."""
    loop, left = asyncio.get_running_loop(), LINGER_BYTES
    end_s = loop.time() + LINGER_S
    more = True
    while more and left > 0 and loop.time() < end_s:
        try:
            message = await asyncio.wait_for(receive(), LINGER_IDLE_S)
        except TimeoutError:
            return
        left -= len(message.get("body", b""))
        more = message.get("more_body", False)


def error_body(status: int, message: str, kind: str, code: str | None = None) -> bytes:
    """Make an error as a JSON document."""
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code or status}}).encode()


def error_event(status: int, message: str, kind: str) -> bytes:
    """Make an error as a server-sent event, which is valid wherever the stream broke off."""
    return b"\n\ndata: " + error_body(status, message, kind) + b"\n\n"
