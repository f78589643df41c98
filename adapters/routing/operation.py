"""What an operator decides about a proxy, and may change while it runs: clients, engines, the policy."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servegym.adapters.routing.assumptions import Assumptions
from servegym.adapters.routing.clients import AdminKey, Clients
from servegym.adapters.routing.discovery import Source, follow
from servegym.errors import RoutingError, ServegymError

if TYPE_CHECKING:
    from servegym.adapters.routing.proxy import Proxy

LOG = logging.getLogger("servegym.proxy")
ADMIN_VARIABLE, ENGINE_VARIABLE = "SERVEGYM_ADMIN_KEY", "SERVEGYM_ENGINE_KEY"


@dataclasses.dataclass
class Operation:
    """The operator's decisions.

    clients: clients that may use the proxy; clients_file: their file. admin: key for changing the policy.
    engine_headers: sent to engines in place of the client's authorization. urls, sources, look_s: engines, and the
    interval in s at which they are looked up. load: reads the policy anew, from policy_files. device: latency profile
    of routers by name.
    """

    clients: Clients = dataclasses.field(default_factory=Clients)
    clients_file: Path | None = None
    admin: AdminKey = dataclasses.field(default_factory=AdminKey)
    engine_headers: list[tuple[bytes, bytes]] = dataclasses.field(default_factory=list)
    urls: Sequence[str] = ()
    sources: Sequence[Source] = ()
    look_s: float = 2.0
    load: Callable[[], Assumptions] | None = None
    policy_files: Sequence[Path] = ()
    device: str | None = None

    def __post_init__(self) -> None:
        self._read = self._contents()  # of the policy's files when they were last used

    @classmethod
    def of(cls, clients_file: Path | None, environment: Mapping[str, str] = os.environ, **more: Any) -> Operation:
        """Read keys from a file and from the environment. Raises RoutingError."""
        engine_key = environment.get(ENGINE_VARIABLE)
        headers = [(b"authorization", b"Bearer " + engine_key.encode())] if engine_key else []
        clients, admin = Clients.of(clients_file, environment), AdminKey.of(environment.get(ADMIN_VARIABLE))
        return cls(clients, clients_file, admin, headers, **more)

    def works(self, proxy: Proxy) -> list[Coroutine[Any, Any, None]]:
        """Make the tasks that run as long as the proxy."""
        return [follow(self.urls, self.sources, self.look_s, proxy.set_engines)] if self.sources else []

    def _contents(self) -> list[bytes | None]:
        return [path.read_bytes() if path.is_file() else None for path in self.policy_files]

    async def reread(self, proxy: Proxy) -> None:
        """Read clients anew, and the policy if its files have changed, and reopen the log. An error changes nothing,
        and is logged.

        A policy that was switched to stays as long as the files do: a log is rotated more often than a policy.
        """
        try:
            self.clients.replace(Clients.of(self.clients_file))
        except ServegymError as error:
            LOG.error("clients stay as they are: %s", error)
        try:
            if proxy.log is not None:
                proxy.log.reopen()
        except ServegymError as error:
            LOG.error("the log of requests stays where it is: %s", error)
        try:
            found = self._contents()
        except OSError as error:
            LOG.error("the policy stays %s: %s", proxy.router.policy.label, error)
            return
        if self.load is not None and found != self._read:
            try:
                await proxy.reload(self.load)
            except (ServegymError, ValueError):
                return  # `reload` has logged it
            self._read = found

    def policy_of(self, body: bytes) -> Assumptions:
        """Read a policy that was sent: an artifact, or {"router": NAME, "device": PROFILE}. Raises ServegymError."""
        from servegym.baselines import registry

        try:
            document = json.loads(body)
        except ValueError as error:
            raise RoutingError(f"it is not JSON: {error}") from None
        by_name = isinstance(document, dict) and set(document) <= {"router", "device"}
        if by_name and isinstance(document.get("router"), str):
            device = document.get("device", self.device)
            if not isinstance(device, str):
                raise RoutingError('a router goes with a device: {"router": NAME, "device": PROFILE}')
            return Assumptions.of(registry.router(document["router"]), device)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "policy.json"
            path.write_bytes(body)
            try:
                return Assumptions.of_artifact(path, self.device)
            except ServegymError as error:
                raise RoutingError(str(error).replace(str(path), "the policy that was sent")) from None
