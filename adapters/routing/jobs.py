"""A request on its way through a proxy, and its failures."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from servegym.adapters.routing.clients import Client
from servegym.adapters.routing.request_log import Measured
from servegym.adapters.routing.rows import RequestTerms

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclasses.dataclass
class Job:
    """A request on its way.

    measured: times and tokens so far. started: whether its client has been sent something. complete: whether all of its
    answer has come. waited_s: time at the proxy. engine: name of the engine it was sent to last. excluded: numbers of
    engines that it must not go to.
    """

    path: str
    body: bytes
    headers: list[tuple[bytes, bytes]]
    asked: RequestTerms
    chunks: list[int]
    client: Client
    measured: Measured
    started: bool = False
    complete: bool = False
    waited_s: float = 0.0
    engine: str = ""
    excluded: set[int] = dataclasses.field(default_factory=set)


class Failure(Exception):
    """An engine that did not serve a request. answer: the engine's own error response; refused: no connection.

    again: another engine may be tried if nothing has been streamed. counts: it counts against the engine.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        status: int = 502,
        answer: tuple[int, list[tuple[bytes, bytes]], bytes] | None = None,
        again: bool = True,
        counts: bool = True,
    ):
        super().__init__(message)
        self.reason, self.message, self.status, self.answer = reason, message, status, answer
        self.again, self.counts = again, counts


class ClientGone(Exception):
    """A client that has closed its connection, or does not read its answer."""
