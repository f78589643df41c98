"""The emulated device under vLLM itself, in virtual time; needs an engine's environment (docs/engines.md)."""

import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("vllm", reason="needs vLLM: run by experiments/engines/engines_test.sh")

from experiments.engines.servers import HOST, MODEL, Emulated, running
from experiments.engines.serving import artifact_for, overload
from experiments.engines.tiny_model import make_model
from experiments.engines.virtual_run import Job, run_virtually
from experiments.engines.virtual_time import ENVIRONMENT
from servegym.adapters.emulation.settings import DEVICE, TIME
from servegym.adapters.replay.bodies import Bodies
from servegym.adapters.replay.sending import Endpoint, replay
from servegym.adapters.vllm.versions import installed_version
from servegym.baselines.artifact import save_artifact
from servegym.baselines.registry import scheduler
from servegym.errors import ExperimentError
from servegym.latency_models.profile import load_profile
from servegym.simulator.features.disturbances import Correction
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.simulation import Simulation

PROFILE = "a100-llama3-8b"
PYTHON = Path(sys.executable)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(make_model(tmp_path_factory.mktemp("model")))


def workload_of(seed: int, n: int, gap_s: float, longest: int, output: int, priorities: int = 1) -> Workload:
    rng = np.random.default_rng(seed)
    return Workload.from_columns(
        {
            "arrival_s": np.cumsum(rng.exponential(gap_s, n)), "prompt_tokens": rng.integers(10, longest, n),
            "output_tokens": rng.integers(1, output, n), "priority": rng.integers(0, priorities, n),
        }
    )  # fmt: skip


def options_of(tokens: int, sequences: int, **more: object) -> dict[str, object]:
    common = {"block_size": 16, "max_model_len": 8192, "async_scheduling": False}
    return {**common, "max_num_batched_tokens": tokens, "max_num_seqs": sequences, **more}


def simulate(workload: Workload, settings: str, blocks: int | None = None):
    profile = load_profile(PROFILE)
    deployment = Deployment(profile.device, profile.estimator, blocks or profile.kv.total_blocks, watermark=0.0)
    return Simulation(Scenario(workload, deployment, scheduler(f"vllm-v1:{settings}"))).run()


CASES = {
    "chunked": (workload_of(1, 200, 0.06, 1500, 200), "policy=fcfs,max_num_batched_tokens=512,max_num_seqs=64", {}),
    "fcfs, short of memory": (
        workload_of(2, 120, 0.05, 600, 300),
        "policy=fcfs,max_num_batched_tokens=512,max_num_seqs=64",
        {"num_gpu_blocks_override": 601},
    ),
    "priority, short of memory": (
        workload_of(3, 120, 0.05, 600, 300, priorities=4),
        "policy=priority,max_num_batched_tokens=256,max_num_seqs=48",
        {"num_gpu_blocks_override": 601, "scheduling_policy": "priority"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_token_comes_when_the_simulator_says(model, case):
    """To the bit: vLLM's own scheduler on the device, and vllm-v1 in the simulator."""
    workload, settings, more = CASES[case]
    numbers = dict(part.split("=") for part in settings.split(","))
    options = options_of(int(numbers["max_num_batched_tokens"]), int(numbers["max_num_seqs"]), **more)
    times = run_virtually(PYTHON, Job(model, PROFILE, "", options), workload)
    blocks = int(more["num_gpu_blocks_override"]) - 1 if more else None
    result = simulate(workload, settings, blocks)
    assert [len(request) for request in times] == workload.table["output_tokens"].tolist()
    assert [request[0] for request in times] == result.requests["first_token_s"].tolist()
    assert [request[-1] for request in times] == result.requests["finish_s"].tolist()
    assert (result.summary["evictions"] > 20) == bool(more)


@pytest.mark.parametrize("name", ["slide-batching", "expected-gain"])
def test_a_policy_in_the_plugin_decides_as_in_the_simulator(model, tmp_path, name):
    """To the bit, at overload, with the estimator corrected online on both sides."""
    profile = load_profile(PROFILE)
    workload = overload("azure-conv", "proserve", profile, 1.4, 120, 0, 8192)
    policy = save_artifact(artifact_for({"scheduler": name}, workload, profile), tmp_path / "policy.json")
    times = run_virtually(PYTHON, Job(model, PROFILE, "", options_of(8192, 256), str(policy)), workload)
    scenario = Scenario(workload, profile.deployment(watermark=0.0), scheduler(name), correction=Correction())
    result = Simulation(scenario).run()
    assert [request[0] for request in times] == result.requests["first_token_s"].tolist()
    assert [request[-1] for request in times] == result.requests["finish_s"].tolist()


def test_asynchronous_scheduling_is_a_step_behind(model):
    """A step is scheduled while the one before runs, so a request that arrives meanwhile waits for two."""
    workload, settings, _ = CASES["chunked"]
    times = run_virtually(PYTHON, Job(model, PROFILE, "", options_of(512, 64, async_scheduling=True)), workload)
    result = simulate(workload, settings)
    assert [len(request) for request in times] == workload.table["output_tokens"].tolist()
    later_s = np.array([request[0] for request in times]) - result.requests["first_token_s"].to_numpy()
    longest_step_s = 0.06  # 512 tokens of prefill, with all decodes
    assert 0 < later_s.mean() < longest_step_s
    assert later_s.max() < 2 * longest_step_s


def test_a_server_streams_answers_over_http(model, tmp_path):
    """In real time, with the plug-in: all requests end, and no step is shorter than the profile says."""
    profile = load_profile(PROFILE)
    workload = overload("azure-conv", "proserve", profile, 0.5, 12, 0, 4096)
    workload = workload.replace(output_tokens=np.minimum(workload.table["output_tokens"], 30))
    policy = save_artifact(artifact_for({"scheduler": "slide-batching"}, workload, profile), tmp_path / "policy.json")
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    log = tmp_path / "steps.csv"
    server = Emulated(PYTHON, Path(model), port, PROFILE, max_model_len=4096, policy=policy, device_log=log)
    with running(server, tmp_path / "server.log"):
        replayed = replay(workload, Endpoint(server.url, timeout_s=120.0), Bodies(MODEL))
    assert replayed.counts()["finished"] == 12, replayed.reasons()
    steps = pd.read_csv(log)
    assert np.allclose(steps["duration_s"], profile.device.evaluate(steps), rtol=1e-7)
    assert (steps["taken_s"] >= steps["end_s"]).all()
    assert np.allclose(steps["end_s"] - steps["start_s"], steps["duration_s"], atol=1e-6)
    prompts = workload.table["prompt_tokens"].sum()
    assert steps["prefill_tokens"].sum() == prompts
    assert steps["decode_requests"].sum() == (workload.table["output_tokens"] - 1).sum()


def test_a_server_refuses_virtual_time(model, tmp_path):
    server = Emulated(PYTHON, Path(model), 1, PROFILE, environment={TIME: "virtual"})
    with pytest.raises(ExperimentError), running(server, tmp_path / "server.log"):
        pass
    told = (tmp_path / "server.log").read_text()
    assert "EmulationError: SERVEGYM_TIME=virtual needs the engine in the process" in told


def numbers_of(named: str) -> tuple[int, ...]:
    """The first two numbers of a version."""
    return tuple(int(number) for number in named.split(".")[:2])


@pytest.mark.parametrize(("environment", "options", "told"), [
    ({}, {"block_size": 32}, "KV blocks of 16 tokens and vLLM is set to 32"),
    ({"SERVEGYM_DEVICE": "abacus"}, {}, "unknown profile 'abacus'"),
    ({"SERVEGYM_TIME": "soon"}, {}, "SERVEGYM_TIME is 'soon'"),
    ({}, {"tensor_parallel_size": 2}, "tensor parallel size is 2"),
    ({"VLLM_TARGET_DEVICE": "cpu"}, {}, "start it without VLLM_TARGET_DEVICE"),
])  # fmt: skip
def test_what_cannot_be_emulated_is_refused_in_a_line(model, environment, options, told):
    if environment.keys() & {"VLLM_TARGET_DEVICE"} and numbers_of(str(installed_version())) < (0, 33):
        pytest.skip("before 0.33 vLLM keeps the emulated platform under VLLM_TARGET_DEVICE")
    script = (
        "import os, sys\n"
        f"os.environ.update({ENVIRONMENT | {DEVICE: PROFILE, TIME: 'virtual'} | environment!r})\n"
        "from vllm import EngineArgs, LLMEngine\n"
        f"engine = LLMEngine.from_engine_args(EngineArgs(model={model!r}, enforce_eager=True, "
        f"distributed_executor_backend='servegym.adapters.emulation.Executor', **{options_of(512, 8) | options!r}))\n"
    )
    done = subprocess.run([PYTHON, "-c", script], capture_output=True, text=True)
    assert done.returncode != 0
    (line,) = [line for line in done.stderr.splitlines() if told in line and "Error" in line][-1:]
    assert "EmulationError" in line or "ProfileError" in line


def test_an_answer_ends_where_its_arguments_say(model):
    """output_tokens of vllm_xargs: the model ends the answer itself, below max_tokens."""
    script = (
        "from experiments.engines.virtual_time import make_engine\n"
        f"engine = make_engine({model!r}, {PROFILE!r}, **{options_of(512, 8)!r})\n"
        "from vllm import SamplingParams\n"
        "params = SamplingParams(max_tokens=50, extra_args={'output_tokens': 7})\n"
        "engine.add_request('0', {'prompt_token_ids': [5] * 20}, params)\n"
        "while engine.has_unfinished_requests():\n"
        "    (output,) = engine.step()\n"
        "answer = output.outputs[0]\n"
        "print(len(answer.token_ids), answer.finish_reason, repr(answer.text))\n"
    )
    done = subprocess.run([PYTHON, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["7 stop 'bcdefg'"], done.stderr[-2000:]
