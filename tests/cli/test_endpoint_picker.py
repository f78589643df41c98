"""`servegym endpoint-picker`: wrong input, and a picker that is started, asked and stopped as a user does it."""

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from servegym.extras import install_command
from tests.adapters.gateway.gateways import Call, endpoint, prompt

COMMAND = "endpoint-picker"
ROUTER = ("--router", "min-load", "--device", "h100-llama3-8b")
ONE = (COMMAND, "--backend", "http://127.0.0.1:9", *ROUTER)
WRONG = {
    "no engine": ([COMMAND, *ROUTER], "--backend"),
    "no policy": ([COMMAND, "--backend", "http://127.0.0.1:9"], "--policy ARTIFACT"),
    "two policies": ([*ONE, "--policy", "a.json"], "--policy ARTIFACT"),
    "no device": ([COMMAND, "--backend", "http://127.0.0.1:9", "--router", "min-load"], "--device PROFILE"),
    "unknown router": ([*ONE[:3], "--router", "nope", *ONE[5:]], "gorouting"),
    "a name for an address": ([COMMAND, "--backend", "http://engine:8000", *ROUTER], "http://IP:PORT"),
    "an address without a port": ([COMMAND, "--backend", "http://10.0.0.1", *ROUTER], "http://IP:PORT"),
    "an address with a path": ([COMMAND, "--backend", "http://10.0.0.1:8000/a", *ROUTER], "http://IP:PORT"),
    "an address that is none": ([COMMAND, "--backend", "10.0.0.1:8000", *ROUTER], "10.0.0.1:8000"),
    "missing engines": ([COMMAND, "--backends-file", "nope.txt", *ROUTER], "nope.txt"),
    "time out of range": ([*ONE, "--queue-time", "nan"], "queue_s"),
    "one port for both": ([*ONE, "--port", "9002", "--metrics-port", "9002"], "both 9002"),
    "port out of range": ([*ONE, "--port", "70000"], "--port"),
    "certificate without key": ([*ONE, "--tls-certificate", "c.pem"], "goes with its key"),
    "certificate that is none": (
        [*ONE, "--port", "0", "--metrics-port", "0", "--tls-certificate", "c.pem", "--tls-key", "k.pem"],
        "TLS: c.pem",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input(case: str, servegym: Callable[..., Any]) -> None:
    arguments, word = WRONG[case]
    assert word in servegym(*arguments).refusal


def test_engines_of_a_file_that_have_no_address(servegym: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "engines.txt"
    file.write_text("http://10.0.0.1:8000\nhttp://engine:8000\n")
    assert "'http://engine:8000'" in servegym(COMMAND, "--backends-file", str(file), *ROUTER).refusal


@pytest.mark.parametrize("option", ["--port", "--metrics-port"])
def test_a_port_that_is_in_use(option: str, servegym: Callable[..., Any]) -> None:
    other = "--port" if option == "--metrics-port" else "--metrics-port"
    with socket.create_server(("127.0.0.1", 0)) as there:
        port = str(there.getsockname()[1])
        refusal = servegym(*ONE, option, port, other, "0").refusal
    assert refusal == f"servegym: 127.0.0.1:{port} is in use; name another port, or 0 for any free one\n"


def test_without_its_packages_it_says_what_to_install(
    servegym: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("servegym.adapters.gateway")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)
    assert f"(grpc): {install_command('gateway')}" in servegym(*ONE).refusal


@pytest.mark.slow
def test_it_serves_until_it_is_stopped() -> None:
    command = [sys.executable, "-m", "servegym", *ONE, "--port", "0", "--metrics-port", "0", "--health-time", "1000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said = ""
            while (line := process.stderr.readline()) and not line.startswith("metrics at"):
                said += line  # what is compiled first, and where it listens
            said += line
            pattern = r"min-load before 1 engine at grpc://(127\.0\.0\.1:\d+);[^\n]*\nmetrics at (\S+)\n"
            found = re.search(pattern, said)
            assert found, said
            call = Call(found[1])
            assert endpoint(call.ask(prompt())) == "127.0.0.1:9"
            call.cancel()
            process.send_signal(signal.SIGHUP)  # no file of the policy has changed
            assert "reloads_total{" not in httpx.get(found[2], trust_env=False).text
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read().splitlines()[-1].startswith("servegym: interrupted:")
