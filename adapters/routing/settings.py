"""The settings of a proxy: addresses, limits and times."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from urllib.parse import urlsplit

from servegym.errors import RoutingError

LOOPBACK = "127.0.0.1"
MAY_BE_ZERO = ("port", "max_queued", "retries", "poll_s", "kv_events_port", "drain_notice_s")


@dataclasses.dataclass(frozen=True)
class ProxySettings:
    """Where it listens, how much it takes at once, and how long it waits.

    host, port: where it listens; port 0: any free one. max_body_bytes: of a request. max_answer_bytes: of an answer
    that is not streamed, which is kept until it is complete.
    max_in_flight: requests at the engines at once. max_queued: those that wait for that, or for an engine that takes
    them; more are answered 429. queue_s: how long they may wait, then 503.
    connect_s: to an engine. first_token_s: from sending a request to the first byte of its answer. between_tokens_s:
    between bytes of an answer. total_s: of a request. write_s: for a client to take a piece of its answer, or an engine
    a piece of a request. read_s: for a client to send its headers, or another piece of its request; body_s: the whole.
    retries: engines that are tried after the first one that was reached, as long as nothing has been streamed.
    health_s: between checks of an engine. health_timeout_s: of a check. health_failures: checks failed in a row, or
    requests, that close an engine. longest_backoff_s: between checks of a closed one.
    characters_per_token: of prompts that come as text. count_by_engine: ask an engine's /tokenize instead.
    poll_s: how often an engine's /metrics is read for its KV memory; 0: never.
    kv_events_port: of each engine's host, where it publishes KV events; 0: they are not read. Then prompts that come as
    text are turned into token ids by an engine's /tokenize.
    drain_notice_s: how long it goes on taking requests after SIGTERM, while /ready answers 503. drain_s: how long those
    in flight then have to end.
    certificate, certificate_key: PEM files; with them it speaks TLS.

    Raises RoutingError for a number that is out of range.
    """

    host: str = LOOPBACK
    port: int = 8000
    max_body_bytes: int = 4 * 2**20
    max_answer_bytes: int = 64 * 2**20
    max_in_flight: int = 1024
    max_queued: int = 1024
    queue_s: float = 30.0
    connect_s: float = 10.0
    first_token_s: float = 300.0
    between_tokens_s: float = 60.0
    total_s: float = 3600.0
    write_s: float = 30.0
    read_s: float = 10.0
    body_s: float = 60.0
    retries: int = 2
    health_s: float = 2.0
    health_timeout_s: float = 5.0
    health_failures: int = 3
    longest_backoff_s: float = 30.0
    characters_per_token: float = 4.0
    count_by_engine: bool = False
    poll_s: float = 1.0
    kv_events_port: int = 0
    drain_notice_s: float = 0.0
    drain_s: float = 30.0
    certificate: Path | None = None
    certificate_key: Path | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int | float) or isinstance(value, bool):
                continue
            least = 0 if field.name in MAY_BE_ZERO else 1e-3
            if not least <= value < math.inf:
                right = "0 or more" if least == 0 else "above 0 and finite"
                raise RoutingError(f"proxy: {field.name} is {value}; it should be {right}")
        for name in ("port", "kv_events_port"):
            if getattr(self, name) > 65535:
                raise RoutingError(f"proxy: {name} is {getattr(self, name)}; it should be 0 to 65535")
        if (self.certificate is None) != (self.certificate_key is None):
            raise RoutingError("proxy: a certificate goes with its key; name both")


def checked_url(text: str) -> str:
    """Return the address of an engine, http://HOST:PORT, without a slash at its end. Raises RoutingError."""
    right = "it should be http://HOST:PORT, perhaps with a path"
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018  (it raises for a port that is no number)
    except ValueError as error:
        raise RoutingError(f"backend {text!r}: {error}; {right}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise RoutingError(f"backend {text!r}: {right}")
    return text.rstrip("/")
