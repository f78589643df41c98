"""Connecting to a Ray cluster, disconnecting, and connection errors in one line each."""

from __future__ import annotations

import logging
import os
import re
import socket
from typing import Any

from servegym.errors import ClusterError, ServegymError
from servegym.evaluation.running import cores
from servegym.extras import install_command

LOCAL, AUTO = "local", "auto"
TIMEOUT_S = 5.0  # for the head of a cluster to answer at all


def connect(address: str, jobs: int | None = None) -> bool:
    """Connect this process to a cluster. Returns whether it was not connected before, so that `disconnect` is needed.

    address: see `RayRunner`. jobs: CPUs of a local cluster; None: one a core. Raises ClusterError.
    """
    try:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # says at each start that it will change
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ClusterError(f"--ray takes a package that is not installed: {install_command('ray')}") from None
    if ray.is_initialized():
        check_same(address)
        return False
    if address != LOCAL:
        check_address(address)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address == LOCAL:
            ray.init(address=LOCAL, num_cpus=jobs or cores(), include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        raise ClusterError(f"Ray cluster {address}: {connection_problem(error)}") from None
    say_nothing(True)
    if ray.cluster_resources().get("CPU", 0) < 1:
        disconnect()
        raise ClusterError(f"Ray cluster {address} has no CPU to run on; start a node with one: ray start --address")
    return True


def disconnect() -> None:
    """End the connection, and with it what `connect` started."""
    import ray

    ray.shutdown()
    say_nothing(False)


def say_nothing(quiet: bool) -> None:
    """Set whether Ray suppresses its messages on retried tasks: they go to standard output, which is for results."""
    import ray._private.worker as driver

    # There is no public setting for it; without this one Ray is only less quiet.
    if hasattr(driver, "_worker_logs_enabled"):
        driver._worker_logs_enabled = not quiet


def check_same(address: str) -> None:
    """Raises ClusterError where this process is connected to another cluster than the one that is asked for."""
    import ray

    there = ray.get_runtime_context().gcs_address
    if address not in (LOCAL, AUTO, there):
        raise ClusterError(f"Ray cluster {address}: this process is connected to {there} already")


def check_address(address: str) -> None:
    """Raise ClusterError for an invalid address, and for one that does not answer, which Ray would try for minutes."""
    right = f"it should be {LOCAL}, {AUTO}, or HOST:PORT of the head node (6379 unless it was told another port)"
    if address == AUTO:
        return
    if "://" in address:
        raise ClusterError(f"Ray cluster {address}: {right}; Ray's client protocol is not supported")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ClusterError(f"Ray cluster {address!r} is no address; {right}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S).close()
    except OSError as error:
        why = error.strerror or str(error)
        raise ClusterError(f"Ray cluster {address} cannot be reached ({why}); {right}") from None


def connection_problem(error: Exception) -> str:
    """Ray's connection error on one line."""
    text = " ".join(str(error).split())
    version = re.search(r"Ray: (\S+) Python: (\S+) This process .*? Ray: (\S+) Python: (\S+)", text)
    if version:
        ray_there, python_there, ray_here, python_here = version.groups()
        return (
            f"it has Ray {ray_there} and Python {python_there}, and here are Ray {ray_here} and Python {python_here}; "
            "they should be the same"
        )
    if "Could not find any running Ray instance" in text:
        return "none runs on this machine; start one with ray start --head, or give HOST:PORT"
    return text


def task_problem(error: Exception) -> Exception:
    """Describe an error that Ray gives in place of the results of a task."""
    import ray

    cause = getattr(error, "cause", None)
    if isinstance(cause, ServegymError):
        return cause
    missing = re.search(r"No module named '([\w.]+)'", str(error))
    if missing and isinstance(cause, ImportError | ray.exceptions.RayError | None):
        package = missing[1].partition(".")[0]
        return ClusterError(
            f"a node of the Ray cluster lacks {package}: install there what is installed here, servegym with its extra "
            "'ray' included"
        )
    if isinstance(error, ray.exceptions.RayTaskError):
        return error  # an error of ours, or of a policy: with the worker's traceback
    first = str(error).strip().split("\n")[0]
    return ClusterError(f"Ray has lost runs, however often it began them again: {type(error).__name__}: {first}")
