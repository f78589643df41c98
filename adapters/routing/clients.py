"""The clients of a proxy: API keys, and limits of each client."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from servegym.adapters.routing.refusals import Refused
from servegym.errors import RoutingError, why_unread
from servegym.yaml_parsing import parse_yaml

KEY_VARIABLE = "SERVEGYM_API_KEY"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
DIGEST = re.compile(r"[0-9a-f]{64}")
LIMITS = ("requests_per_minute", "tokens_per_minute", "max_in_flight")
KEYS = ("key", "key_env", "key_sha256")
RIGHT = "clients: {NAME: {key | key_env | key_sha256: ..., " + ", ".join(f"{limit}: N" for limit in LIMITS) + "}}"
BEARER = "bearer "


class Bucket:
    """A token bucket with the amount of a minute, refilled at a constant rate.

    It may be overdrawn, as the cost of an answer is known only at its end; the next request waits until it is refilled.
    (Libraries of rate limits keep an entry for each unit, or count in fixed windows; neither fits tokens.)
    """

    def __init__(self, per_minute: float):
        self._most = self._level = per_minute
        self._at_s = 0.0

    def wait_s(self, now_s: float, amount: float) -> float:
        """Return the seconds until the bucket holds `amount`; until it is full, if the amount exceeds its size."""
        if math.isinf(self._most):
            return 0.0
        self._level = min(self._most, self._level + max(0.0, now_s - self._at_s) * self._most / 60)
        self._at_s = max(now_s, self._at_s)
        return max(0.0, min(amount, self._most) - self._level) * 60 / self._most

    def take(self, amount: float) -> None:
        self._level -= amount


class Client:
    """A client with its limits and its usage. name: its label in metrics and in the log of requests."""

    def __init__(
        self,
        name: str,
        digest: bytes = b"",
        requests_per_minute: float = math.inf,
        tokens_per_minute: float = math.inf,
        max_in_flight: float = math.inf,
    ):
        self.name, self.digest = name, digest
        self.limits = (requests_per_minute, tokens_per_minute, max_in_flight)
        self.in_flight = 0
        self._requests, self._tokens = Bucket(requests_per_minute), Bucket(tokens_per_minute)

    def admit(self, now_s: float, prompt_tokens: int) -> None:
        """Count the start of a request, which `leave` ends. Raises Refused (429) if it exceeds a limit."""
        most = self.limits[2]
        if self.in_flight >= most:
            raise _beyond(f"{most:g} requests at once", "concurrency", 1.0)
        for bucket, amount, limit, what in (
            (self._requests, 1, self.limits[0], "requests"),
            (self._tokens, prompt_tokens, self.limits[1], "tokens"),
        ):
            wait_s = bucket.wait_s(now_s, amount)
            if wait_s > 0:
                raise _beyond(f"{limit:g} {what} a minute", what, wait_s)
        self._requests.take(1)
        self._tokens.take(prompt_tokens)
        self.in_flight += 1

    def spend(self, tokens: int) -> None:
        """Count tokens of an answer."""
        self._tokens.take(tokens)

    def leave(self) -> None:
        self.in_flight -= 1

    def go_on_from(self, before: Client) -> None:
        """Take over the usage of `before` under the same limits."""
        self.in_flight = before.in_flight
        if self.limits == before.limits:
            self._requests, self._tokens = before._requests, before._tokens


def _beyond(limit: str, what: str, wait_s: float) -> Refused:
    wait = max(1, math.ceil(wait_s))
    message = f"beyond this client's limit of {limit}; try again in {wait} s"
    return Refused(429, message, what, wait, code="rate_limit_exceeded")


class Clients:
    """All clients of a proxy; without any, every request is accepted, without limits."""

    def __init__(self, clients: Iterable[Client] = ()):
        self.all = list(clients)
        self._anybody = Client("anybody")

    @classmethod
    def of(cls, path: str | Path | None, environment: Mapping[str, str] = os.environ) -> Clients:
        """Read the clients of a YAML file; add "default" if SERVEGYM_API_KEY is set. Raises RoutingError."""
        clients = [] if path is None else _of_file(Path(path), environment)
        if key := environment.get(KEY_VARIABLE):
            clients.append(Client("default", digest_of(key)))
        for what in ("name", "digest"):
            seen = [getattr(client, what) for client in clients]
            if len(set(seen)) < len(seen):
                raise RoutingError(f"{path}: two clients have the same {'name' if what == 'name' else 'key'}")
        return cls(clients)

    def of_key(self, authorization: str | None) -> Client:
        """Find the client of a key, given as the header's value. Raises Refused (401) for an unknown key.

        Digests are compared, with each client's in constant time, so that the time taken reveals nothing of a key.
        """
        if not self.all:
            return self._anybody
        key = key_of(authorization)
        presented, found = digest_of(key), None
        for client in self.all:
            if hmac.compare_digest(client.digest, presented):
                found = client
        if found is None or not key:
            message = "no API key was given: authorization: Bearer KEY" if not key else "this API key is not known"
            raise Refused(401, message, "invalid_request_error", code="invalid_api_key")
        return found

    def replace(self, others: Clients) -> None:
        """Take over the clients of `others`; a client in both keeps its usage."""
        before = {client.name: client for client in self.all}
        for client in others.all:
            if client.name in before:
                client.go_on_from(before[client.name])
        self.all = others.all


def key_of(authorization: str | None) -> str:
    """Return the key of a header's value, "Bearer KEY"; "" for any other."""
    value = authorization or ""
    return value[len(BEARER) :].strip() if value.lower().startswith(BEARER) else ""


def digest_of(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def _of_file(path: Path, environment: Mapping[str, str]) -> list[Client]:
    try:
        document = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RoutingError(f"{path}: cannot be read: {why_unread(error)}") from None
    clients = document.get("clients") if isinstance(document, dict) else None
    if not isinstance(clients, dict) or not clients or set(document) != {"clients"}:
        raise RoutingError(f"{path}: it should be {RIGHT}")
    return [_client(f"{path}: client {name!r}", name, terms, environment) for name, terms in clients.items()]


def _client(where: str, name: Any, terms: Any, environment: Mapping[str, str]) -> Client:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise RoutingError(f"{where}: a name is of letters, digits, '.', '_' and '-', at most 64")
    if not isinstance(terms, dict) or set(terms) - {*KEYS, *LIMITS} or len(set(terms) & set(KEYS)) != 1:
        raise RoutingError(f"{where}: it should have one of {', '.join(KEYS)}, and may have {', '.join(LIMITS)}")
    kind = next(key for key in KEYS if key in terms)
    text = terms[kind]
    if kind == "key_env":
        text = environment.get(str(text), "")
        if not text:
            raise RoutingError(f"{where}: the environment has no {terms[kind]}")
    if not isinstance(text, str) or not text or (kind == "key_sha256" and not DIGEST.fullmatch(text)):
        right = "64 hexadecimal digits" if kind == "key_sha256" else "a text in quotes"
        raise RoutingError(f"{where}: {kind} should be {right}")
    limits = {limit: terms[limit] for limit in LIMITS if limit in terms}
    for limit, value in limits.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise RoutingError(f"{where}: {limit} is {value!r}; it should be a number above 0")
    return Client(name, bytes.fromhex(text) if kind == "key_sha256" else digest_of(text), **limits)


@dataclasses.dataclass(frozen=True)
class AdminKey:
    """The key for requests that change a running proxy; without a key, all are refused."""

    digest: bytes | None = None

    @classmethod
    def of(cls, key: str | None) -> AdminKey:
        return cls(digest_of(key) if key else None)

    def check(self, authorization: str | None) -> None:
        """Raise Refused (401) for another key."""
        if self.digest is None or not hmac.compare_digest(self.digest, digest_of(key_of(authorization))):
            raise Refused(401, "this takes the admin's key", "invalid_request_error", code="invalid_api_key")
