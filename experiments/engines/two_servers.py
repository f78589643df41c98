"""Two vLLM servers on emulated devices behind `servegym proxy`, and one of them killed under load.

    python -m experiments.engines.two_servers --engine-python ENGINE/bin/python

The same workload is sent twice: with both servers up all the time, and with one killed (SIGKILL) in the middle.
Every request must end: in full, or with an error. Results: docs/results/vllm-emulated.md.
"""

import contextlib
import dataclasses
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.arguments import settings_from_command_line
from experiments.engines.servers import HOST, MODEL, Emulated, answers, counters, kill, start, stop, wait_for
from experiments.engines.serving import DECISION_LIMIT_S, artifact_for, overload
from experiments.engines.stretching import restored, slowed
from servegym.adapters.replay.bodies import Bodies
from servegym.adapters.replay.measuring import Measured
from servegym.adapters.replay.sending import Endpoint, replay
from servegym.baselines.artifact import save_artifact
from servegym.baselines.registry import router, scheduler
from servegym.errors import ExperimentError
from servegym.evaluation.identity import versions
from servegym.latency_models.profile import Profile, load_profile
from servegym.simulator.features.disturbances import Correction
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.simulation import Simulation

SERVERS = 2
KILLED = "one killed"
PROXY_START_S = 120.0


@dataclass(frozen=True)
class Settings:
    engine_python: str = sys.executable
    model: str = "results/engines/tiny"
    device: str = "a100-llama3-8b"
    trace: str = "azure-conv"
    slo: str = "proserve"
    load: float = 1.0
    requests: int = 120
    seed: int = 0
    router: str = "gorouting"
    policy: str = "slide-batching"
    tokens: int = 8192
    sequences: int = 256
    context_tokens: int = 16384
    speed: float = 0.1
    kill_at: float = 0.5
    runs: str = "both up,one killed"
    timeout_s: float = 600.0
    port: int = 18130
    out: str = "results/engines/two-servers"


def main(settings: Settings) -> None:
    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "settings.json").write_text(json.dumps(dataclasses.asdict(settings) | versions(), indent=2))
    profile = load_profile(settings.device)
    workload = overload(
        settings.trace,
        settings.slo,
        profile,
        settings.load,
        settings.requests,
        settings.seed,
        settings.context_tokens,
        SERVERS,
    )
    lines = {"simulated": simulated(settings, profile, workload)}
    for name in settings.runs.split(","):
        lines[name] = served(settings, profile, workload, settings.kill_at if name == KILLED else None, out)
        print(json.dumps({name: lines[name]}), flush=True)
    (out / "figures.json").write_text(json.dumps(lines, indent=2))


def simulated(settings: Settings, profile: Profile, workload: Workload) -> dict[str, Any]:
    """With both up, as the simulator has it."""
    scenario = Scenario(
        workload,
        profile.deployment(SERVERS, watermark=0.0),
        scheduler(settings.policy),
        router=router(settings.router),
        correction=Correction(),
    )
    return figures(Simulation(scenario).run().summary)


def served(
    settings: Settings, profile: Profile, workload: Workload, kill_at: float | None, out: Path
) -> dict[str, Any]:
    """Figures of the replay, counters of the proxy; kill_at: share of the arrivals after which a server is killed."""
    policies = {"scheduler": settings.policy, "router": settings.router}
    policy = save_artifact(artifact_for(policies, workload, profile, settings.speed), out / "policy.json")
    servers = [
        Emulated(
            python=Path(settings.engine_python),
            model=Path(settings.model),
            port=settings.port + 1 + index,
            device=settings.device,
            speed=settings.speed,
            max_num_seqs=settings.sequences,
            max_num_batched_tokens=settings.tokens,
            max_model_len=settings.context_tokens,
            policy=policy,
            environment={"SERVEGYM_DECISION_LIMIT_S": f"{DECISION_LIMIT_S / settings.speed:g}"},
        )
        for index in range(SERVERS)
    ]
    logs = [out / f"server-{index}.log" for index in range(SERVERS)]
    sent = slowed(workload, settings.speed)
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(start(*each)) for each in zip(servers, logs, strict=True)]
        for server, process, log in zip(servers, processes, logs, strict=True):
            wait_for(server, process, log)
        stack.enter_context(proxy(settings, servers, policy, out / "proxy.log"))
        if kill_at is not None:
            when_s = float(np.quantile(sent.table["arrival_s"], kill_at))
            timer = threading.Timer(when_s, kill, [processes[-1]])
            stack.callback(timer.cancel)
            timer.start()
        url = f"http://{HOST}:{settings.port}"
        replayed = replay(sent, Endpoint(url, timeout_s=settings.timeout_s), Bodies(MODEL))
        counted = counters(url, "servegym_proxy_")
    summary = Measured(workload, restored(replayed, settings.speed)).summary
    ends = {"statuses": {name: count for name, count in summary["statuses"].items() if count}}
    cut = sum(1 for record in replayed.records if record.status == "failed" and record.token_s)
    return {**figures(summary), **ends, "failed_after_a_token": cut, "reasons": summary["reasons"], **counted}


@contextlib.contextmanager
def proxy(settings: Settings, servers: list[Emulated], policy: Path, log: Path) -> Iterator[subprocess.Popen]:
    """`servegym proxy` before the servers. Raises ExperimentError if it does not start."""
    command = [sys.executable, "-P", "-m", "servegym", "proxy", "--policy", str(policy), "--port", str(settings.port)]
    for server in servers:
        command += ["--backend", server.url]
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, start_new_session=True)
        try:
            until_s = time.monotonic() + PROXY_START_S
            while not answers(f"http://{HOST}:{settings.port}"):
                if process.poll() is not None or time.monotonic() > until_s:
                    raise ExperimentError(f"the proxy does not answer: {log.read_text()[-300:]}")
                time.sleep(0.25)
            yield process
        finally:
            stop(process)


def figures(summary: dict[str, Any]) -> dict[str, Any]:
    return {
        "tdg": summary["tdg_ratio"],
        "slo_attainment": summary["slo_attainment"],
        **{f"ttft_{q}_s": summary["ttft_s"][q] for q in ("p50", "p90")},
        **{f"tpot_{q}_ms": 1e3 * (summary["tpot_s"][q] or 0.0) for q in ("p50", "p90")},
    }


if __name__ == "__main__":
    main(settings_from_command_line(Settings, __doc__))
