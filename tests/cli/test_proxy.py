"""`servegym proxy`: wrong input, and a proxy that is started, asked and stopped as a user does it."""

import dataclasses
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from servegym.baselines.artifact import Artifact, save_artifact
from servegym.baselines.registry import router, scheduler
from servegym.latency_models.profile import load_profile

URL = "http://127.0.0.1:9"
ONE = ("proxy", "--backend", URL)
MIN_LOAD = ("--router", "min-load", "--device", "h100-llama3-8b")
BY_LOAD = (*ONE, *MIN_LOAD)
WRONG = {
    "no engine": (["proxy"], "--backend"),
    "no policy": ([*ONE], "--policy ARTIFACT"),
    "two policies": ([*ONE, "--policy", "a.json", "--router", "min-load"], "--policy ARTIFACT"),
    "no device": ([*ONE, "--router", "min-load"], "--device PROFILE"),
    "no device for one engine": (
        ["proxy", "--backend", f"{URL}=h100-llama3-8b", "--backend", URL, "--router", "min-load"], "--device PROFILE",
    ),
    "unknown profile of an engine": (["proxy", "--backend", f"{URL}=nope", *MIN_LOAD], "unknown profile 'nope'"),
    "unknown device": ([*ONE, "--router", "min-load", "--device", "nope"], "h100-llama3-8b"),
    "unknown router": ([*ONE, "--router", "nope", "--device", "h100-llama3-8b"], "gorouting"),
    "address that is none": (["proxy", "--backend", "x:1", *MIN_LOAD], "x:1"),
    "missing file": ([*ONE, "--policy", "nope.json"], "nope.json"),
    "time out of range": ([*BY_LOAD, "--queue-time", "nan"], "queue_s"),
    "missing clients": ([*BY_LOAD, "--clients", "nope.yaml"], "nope.yaml"),
    "missing engines": (["proxy", "--backends-file", "nope.txt", *MIN_LOAD], "nope.txt"),
    "certificate without key": ([*BY_LOAD, "--tls-certificate", "c.pem"], "goes with its key"),
    "certificate that is none": (
        [*BY_LOAD, "--port", "0", "--tls-certificate", "c.pem", "--tls-key", "k.pem"], "TLS: c.pem",
    ),
    "log that cannot be": ([*BY_LOAD, "--request-log", "no/where.jsonl"], "no/where.jsonl"),
    "itself": (
        ["proxy", "--backend", "http://localhost:8000", *MIN_LOAD],
        "backend http://localhost:8000 is where this command listens; give it another port",
    ),
    "adapters without times": ([*BY_LOAD, "--max-loras", "4"], "lora_load_s and lora_activate_s missing"),
    "no adapters for a router that goes by them": (
        [*ONE, "--router", "lora-affinity", *MIN_LOAD[2:], "--port", "0"], "--max-loras, --lora-load, --lora-activate",
    ),
    "port out of range": ([*ONE, "--port", "70000"], "--port"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input(case: str, servegym: Callable[..., Any]) -> None:
    arguments, word = WRONG[case]
    assert word in servegym(*arguments).refusal


def test_a_file_without_a_router_and_one_without_an_estimator(servegym: Callable[..., Any], tmp_path: Path) -> None:
    without = save_artifact(Artifact({"scheduler": scheduler("edf")}), tmp_path / "a.json")
    assert "edf; it should have a router" in servegym(*ONE, "--policy", str(without)).stderr
    silent = save_artifact(Artifact({"router": router("min-load")}), tmp_path / "b.json")
    assert "name a latency profile with --device" in servegym(*ONE, "--policy", str(silent)).stderr


def test_a_port_that_is_in_use(servegym: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as there:
        port = str(there.getsockname()[1])
        refusal = servegym(*BY_LOAD, "--port", port).refusal
    assert refusal == f"servegym: 127.0.0.1:{port} is in use; name another port, or 0 for any free one\n"


@pytest.mark.slow
def test_it_serves_by_an_artifact_until_it_is_stopped(tmp_path: Path) -> None:
    estimator = load_profile("h100-llama3-8b").estimator
    artifact = Artifact(
        {"router": router("gorouting:alpha=0.8")},
        {
            "profile": "h100-llama3-8b", "form": estimator.form, "coefficients": estimator.coefficients.tolist(),
            "fit": {},
        },
        {"ttft_slo_s": 0.5, "tpot_slo_s": 0.04, "weight_of_priority": {"1": 2.0}},
    )  # fmt: skip
    path = save_artifact(artifact, tmp_path / "policy.json")
    command = [sys.executable, "-m", "servegym", *ONE, "--policy", str(path), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            found = re.search(r"gorouting:alpha=0\.8 before 1 engine at (http://127\.0\.0\.1:\d+)", line)
            assert found, line
            answer = httpx.post(f"{found[1]}/v1/completions", json={"prompt": "x"}, trust_env=False, timeout=30.0)
            assert (answer.status_code, answer.json()["error"]["type"]) == (502, "connect")
            save_artifact(dataclasses.replace(artifact, policies={"router": router("min-load")}), path)
            process.send_signal(signal.SIGHUP)  # the policy is read again, as its file has changed
            while "reloads_total" not in (text := httpx.get(f"{found[1]}/metrics", trust_env=False).text) or (
                'reloads_total{outcome="done"} 1.0' not in text
            ):
                time.sleep(0.05)
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read().splitlines()[-1].startswith("servegym: interrupted:")
