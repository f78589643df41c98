"""Endpoints of a gateway: an IP address and a port."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from servegym.adapters.routing.discovery import Source
from servegym.adapters.routing.settings import checked_url
from servegym.errors import RoutingError


def endpoint_of(url: str) -> str:
    """IP:PORT of an engine's URL. Raises RoutingError for a name in place of an IP, a missing port, or a path."""
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
    """A source that checks that all engines have an IP address and a port."""

    def __init__(self, source: Source):
        self._source = source

    async def urls(self) -> list[str]:
        """Raises RoutingError."""
        urls = await self._source.urls()
        for url in urls:
            endpoint_of(url)
        return urls
