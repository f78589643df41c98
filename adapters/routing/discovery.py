"""Finds a proxy's engines: from the command line, a watched file, or a DNS name."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from servegym.adapters.routing.settings import checked_url
from servegym.errors import RoutingError, why_unread

LOG = logging.getLogger("servegym.proxy")
MOST_ENGINES = 256


class Source(Protocol):
    """A source of engines' addresses."""

    async def urls(self) -> list[str]:
        """Return the present addresses. Raises RoutingError if they cannot be read."""
        ...


class FileSource:
    """A file with an address on each line, and comments after #."""

    def __init__(self, path: Path):
        self._path = path

    async def urls(self) -> list[str]:
        try:
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RoutingError(f"{self._path}: cannot be read: {why_unread(error)}") from None
        lines = [line.partition("#")[0].strip() for line in text.splitlines()]
        found = [checked_url(line) for line in lines if line]
        if not found:
            raise RoutingError(f"{self._path}: it names no engine")
        return found


class DnsSource:
    """All addresses of a DNS name, each an engine at the same port, such as a headless Kubernetes service."""

    def __init__(self, name: str):
        url = checked_url(name if "://" in name else f"http://{name}")
        self._scheme, _, rest = url.partition("://")
        self._host, _, port = rest.rpartition(":")
        if not self._host or not port.isdigit():
            raise RoutingError(f"--backends-dns {name}: it should be NAME:PORT")
        self._host, self._port = self._host.strip("[]"), int(port)

    async def urls(self) -> list[str]:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise RoutingError(f"{self._host}: no address: {error.strerror or error}") from None
        addresses = sorted({str(where[0]) for *_, where in found})
        return [
            f"{self._scheme}://[{one}]:{self._port}" if ":" in one else f"{self._scheme}://{one}:{self._port}"
            for one in addresses
        ]


def endpoint_of(url: str) -> str:
    """Return IP:PORT of an engine's URL. Raises RoutingError for a name instead of an IP, a missing port, or a path."""
    parts = urlsplit(checked_url(url))
    try:
        ipaddress.ip_address(parts.hostname or "")
        if parts.port and parts.path in ("", "/"):
            return parts.netloc
    except ValueError:
        pass
    raise RoutingError(
        f"backend {url!r}: a gateway sends requests to an IP address and a port; it should be http://IP:PORT "
        "(--backends-dns NAME:PORT takes a name)"
    )


class Addressed:
    """A source for gateways, which checks that all engines have an IP address and a port."""

    def __init__(self, source: Source):
        self._source = source

    async def urls(self) -> list[str]:
        """Return the present URLs. Raises RoutingError."""
        urls = await self._source.urls()
        for url in urls:
            endpoint_of(url)
        return urls


async def urls_of(fixed: Sequence[str], sources: Sequence[Source]) -> list[str]:
    """Return the URLs of all engines, each once. Raises RoutingError."""
    found = dict.fromkeys(fixed)
    for source in sources:
        found |= dict.fromkeys(await source.urls())
    if len(found) > MOST_ENGINES:
        raise RoutingError(f"there are {len(found)} engines; a proxy takes at most {MOST_ENGINES}")
    return list(found)


async def follow(
    fixed: Sequence[str], sources: Sequence[Source], every_s: float, changed: Callable[[list[str]], None]
) -> None:
    """Look up the engines periodically; if a source cannot be read, nothing changes, and a line is logged once."""
    complaint = ""
    while True:
        await asyncio.sleep(every_s)
        try:
            changed(await urls_of(fixed, sources))
            complaint = ""
        except RoutingError as error:
            if str(error) != complaint:
                complaint = str(error)
                LOG.warning("engines stay as they are: %s", complaint)
