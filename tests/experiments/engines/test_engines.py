"""Engines without an engine: what is installed, how servers are started and stopped, and time that is stretched."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from experiments.engines import servers
from experiments.engines.install_vllm import DONE, Engine, cpu_requirements
from experiments.engines.servers import Emulated
from experiments.engines.serving import artifact_for, overload
from experiments.engines.stretching import restored, slowed, slowed_estimator
from servegym.adapters.replay.records import Record, Replayed
from servegym.baselines.artifact import load_artifact, save_artifact
from servegym.baselines.registry import scheduler
from servegym.errors import ExperimentError
from servegym.latency_models.model import LatencyModel
from servegym.latency_models.profile import load_profile
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.simulation import Simulation

PROFILE = "a100-llama3-8b"
SPEED = 0.25


def test_what_only_a_gpu_needs_is_left_out():
    asked = [
        "torch==2.14.0", "nvidia-cutlass-dsl[cu13]==4.8.0", "flashinfer-python==0.7", "xgrammar<1,>=0.2",
        "certifi>=2026.10.19", "ray[cgraph]>=2.48", "transformers>=5; extra == 'x'", "numba==0.65.0",
    ]  # fmt: skip
    assert cpu_requirements(asked) == ["xgrammar<1,>=0.2", "certifi", "numba==0.65.0"]


def test_a_finished_environment_is_known_by_what_is_in_it(tmp_path):
    engine = Engine("cpu", "0.32.0", "2.13.0", "digest")
    assert not engine.is_in(tmp_path)
    (tmp_path / DONE).write_text(json.dumps(vars(engine)))
    assert engine.is_in(tmp_path)
    assert not Engine("cpu", "0.33.0", "2.13.0", "digest").is_in(tmp_path)
    (tmp_path / DONE).write_text("{")
    assert not engine.is_in(tmp_path)


def server(**settings) -> Emulated:
    return Emulated(python=Path(sys.executable), model=Path("model"), port=18159, device=PROFILE, **settings)


def test_a_server_is_started_as_it_is_described(tmp_path):
    plain, plugged = server(), server(policy=tmp_path / "policy.json", asynchronous=True, speed=0.5)
    assert "--scheduler-cls" not in plain.command() and "--no-async-scheduling" in plain.command()
    at = plugged.command().index("--scheduler-cls")
    assert plugged.command()[at + 1] == "servegym.adapters.vllm.AsyncScheduler"
    assert plugged.variables()["SERVEGYM_TIME"] == "0.5"
    assert plugged.variables()["SERVEGYM_POLICY"] == str(tmp_path / "policy.json")


def test_a_server_that_does_not_start_says_why(tmp_path, monkeypatch):
    script = "import sys; sys.exit('EmulationError: SERVEGYM_TIME is soon')"
    monkeypatch.setattr(Emulated, "command", lambda self: [sys.executable, "-c", script])
    with (
        pytest.raises(ExperimentError, match=r"ended with status 1; its log .* says: EmulationError"),
        servers.running(server(), tmp_path / "log"),
    ):
        pass


def test_stopping_ends_all_processes_of_a_server(tmp_path, monkeypatch):
    script = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    monkeypatch.setattr(Emulated, "command", lambda self: [sys.executable, "-c", script])
    monkeypatch.setattr(servers, "STOP_S", 5.0)
    log = tmp_path / "log"
    with servers.start(server(), log) as process:
        while not log.read_text().strip():
            assert process.poll() is None
        child = int(log.read_text())
    assert process.returncode == -signal.SIGTERM
    until_s = time.monotonic() + 30
    while is_alive(child) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert not is_alive(child)


def is_alive(pid: int) -> bool:
    """A process that was killed stays in the table, as Z, until its parent looks."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return state.strip() != "" and not state.startswith("Z")


def scaled(model: LatencyModel, factor: float) -> LatencyModel:
    return LatencyModel(model.form, model.coefficients * factor)


@pytest.mark.parametrize("policy", ["vllm-v1", "slide-batching"])
def test_nothing_is_decided_otherwise_when_all_times_are_stretched(policy):
    """A power of two: the same bits but for the exponent."""
    profile = load_profile(PROFILE)
    workload = overload("sharegpt", "proserve", profile, 1.4, 150, 0, 8192)
    results = []
    for speed, served in ((1.0, workload), (SPEED, slowed(workload, SPEED))):
        model = scaled(profile.estimator, 1 / speed)
        deployment = Deployment(model, model, profile.kv.total_blocks)
        results.append(Simulation(Scenario(served, deployment, scheduler(policy))).run())
    plain, stretched = results
    assert stretched.summary["gain"] == plain.summary["gain"]
    assert (stretched.requests["finish_s"] * SPEED).tolist() == plain.requests["finish_s"].tolist()


def test_what_came_back_is_in_the_devices_seconds():
    replayed = Replayed([Record(4.0, 4.4, [8.0, 12.0])], 20.0)
    (record,) = restored(replayed, SPEED).records
    assert (record.due_s, record.sent_s, record.token_s) == (1.0, 1.1, [2.0, 3.0])


def test_an_artifact_says_what_a_slower_device_takes(tmp_path):
    profile = load_profile(PROFILE)
    workload = overload("sharegpt", "proserve", profile, 0.7, 50, 0, 8192)
    policies = {"scheduler": "slide-batching", "router": "gorouting"}
    artifact = load_artifact(save_artifact(artifact_for(policies, workload, profile, SPEED), tmp_path / "policy.json"))
    assert artifact.label == "slide-batching + gorouting"
    assert artifact.estimator["coefficients"] == (profile.estimator.coefficients / SPEED).tolist()
    assert artifact.estimator["fit"] == {"step_tokens": profile.step_tokens}
    assert artifact.workload["tpot_slo_s"] == workload.table["tpot_slo_s"].min() / SPEED
    mean = workload.table["prompt_tokens"].mean() / workload.table["output_tokens"].mean()
    assert np.isclose(artifact.workload["first_token_weight"], mean)


def test_only_a_linear_estimator_is_slowed():
    with pytest.raises(ExperimentError, match="only a linear one"):
        slowed_estimator({"form": "piecewise", "coefficients": [1.0]}, SPEED)
