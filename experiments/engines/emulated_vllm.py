"""vLLM on an emulated device: its own scheduler and ours, simulated, in virtual time and served over HTTP.

    python -m experiments.engines.emulated_vllm --engine-python ENGINE/bin/python

Each workload is run in up to three ways: by the simulator; by vLLM's engine in virtual time, which takes no time beside
the device's; and by a vLLM server in real time, to which requests are streamed over HTTP. vLLM's own scheduler
(vllm-v1 in the simulator) is compared with policies in the plug-in. Results: docs/results/vllm-emulated.md, whose
tables `emulated_tables` writes from OUT/figures.csv.
"""

import dataclasses
import json
import math
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.arguments import settings_from_command_line
from experiments.engines.servers import MODEL, Emulated, counters, running
from experiments.engines.serving import DECISION_LIMIT_S, artifact_for, overload
from experiments.engines.stretching import restored, slowed
from experiments.engines.virtual_run import Job, run_virtually
from servegym.adapters.replay.bodies import Bodies
from servegym.adapters.replay.measuring import Measured
from servegym.adapters.replay.records import FINISHED, Record, Replayed
from servegym.adapters.replay.sending import Endpoint, replay
from servegym.baselines.artifact import save_artifact
from servegym.baselines.registry import scheduler
from servegym.evaluation.identity import versions
from servegym.latency_models.profile import Profile, load_profile
from servegym.simulator.features.disturbances import Correction
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation

STOCK = "vllm-v1"
WITH_OVERHEAD = "simulated, with the server's overhead"
COUNTED = ("decisions", "fallback_steps", "late", "failures", "deviating_steps", "malformed_xargs")  # by the plug-in
LONGEST_BETWEEN_S = 0.05  # of the device: longer, it waited for a request


@dataclass(frozen=True)
class Settings:
    engine_python: str = sys.executable
    model: str = "results/engines/tiny"
    device: str = "a100-llama3-8b"
    trace: str = "azure-conv"
    slo: str = "proserve"
    load: float = 1.4
    requests: int = 150
    first_seed: int = 0
    seeds: int = 2
    policies: str = "slide-batching;expected-gain"
    sequences: int = 256
    stock_tokens: str = "2048,512"
    policy_tokens: int = 8192
    context_tokens: int = 16384
    speed: float = 0.25
    ways: str = "simulated,virtual,served"
    asynchronous: int = 0
    port: int = 18120
    out: str = "results/engines/emulated"


@dataclass(frozen=True)
class Candidate:
    """A scheduler as the simulator has it, and how vLLM is started with it."""

    name: str
    simulated: str
    tokens: int
    plugged: bool


def main(settings: Settings) -> None:
    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    profile = load_profile(settings.device)
    (out / "settings.json").write_text(json.dumps(dataclasses.asdict(settings) | versions(), indent=2))
    lines = []
    for seed in range(settings.first_seed, settings.first_seed + settings.seeds):
        workload = overload(
            settings.trace, settings.slo, profile, settings.load, settings.requests, seed, settings.context_tokens
        )
        for candidate in candidates_of(settings):
            for way in settings.ways.split(","):
                result = RUNS[way](settings, profile, workload, candidate, out)
                found = {way: result}
                if isinstance(result, Served):
                    found[WITH_OVERHEAD] = simulated(settings, profile, workload, candidate, result.overhead_s)
                for name, result in found.items():
                    lines.append({"seed": seed, "scheduler": candidate.name, "way": name, **figures(result)})
                    print(json.dumps(lines[-1]), flush=True)
                    pd.DataFrame(lines).to_csv(out / "figures.csv", index=False)
    print(pd.DataFrame(lines).round(4).to_string(index=False))


def candidates_of(settings: Settings) -> list[Candidate]:
    """vLLM's own scheduler with each token budget, then the policies."""
    stock = [
        Candidate(
            f"vLLM's own, {tokens} tokens",
            f"{STOCK}:max_num_batched_tokens={tokens},max_num_seqs={settings.sequences}",
            int(tokens),
            False,
        )
        for tokens in filter(None, settings.stock_tokens.split(","))
    ]
    plugged = [
        Candidate(name, name, settings.policy_tokens, True) for name in filter(None, settings.policies.split(";"))
    ]
    return [*stock, *plugged]


def simulated(
    settings: Settings, profile: Profile, workload: Workload, candidate: Candidate, overhead_s: float = 0.0
) -> Result:
    """vLLM keeps no watermark, and the plug-in corrects its estimator. overhead_s: of each step, beside the device."""
    correction = Correction() if candidate.plugged else None
    deployment = dataclasses.replace(
        profile.deployment(watermark=0.0),
        device=profile.device.plus_constant(overhead_s),
        max_num_batched_tokens=candidate.tokens,
        max_num_seqs=settings.sequences,
    )
    return Simulation(Scenario(workload, deployment, scheduler(candidate.simulated), correction=correction)).run()


def virtual(settings: Settings, profile: Profile, workload: Workload, candidate: Candidate, out: Path) -> Result:
    policy = exported(candidate, workload, profile, out / "virtual.json") if candidate.plugged else None
    options = {
        "block_size": profile.kv.block_tokens,
        "max_num_seqs": settings.sequences,
        "max_num_batched_tokens": candidate.tokens,
        "max_model_len": settings.context_tokens,
        "async_scheduling": bool(settings.asynchronous),
    }
    job = Job(settings.model, settings.device, "", options, str(policy) if policy else None)
    return as_measured(workload, run_virtually(Path(settings.engine_python), job, workload))


def exported(candidate: Candidate, workload: Workload, profile: Profile, path: Path, speed: float = 1.0) -> Path:
    return save_artifact(artifact_for({"scheduler": candidate.simulated}, workload, profile, speed), path)


def as_measured(workload: Workload, times: list[np.ndarray]) -> Measured:
    arrivals_s = workload.table["arrival_s"].tolist()
    records = [
        Record(arrival_s, arrival_s, tokens.tolist(), FINISHED)
        for arrival_s, tokens in zip(arrivals_s, times, strict=True)
    ]
    return Measured(workload, Replayed(records, 0.0))


def served(settings: Settings, profile: Profile, workload: Workload, candidate: Candidate, out: Path) -> Result:
    at_speed = (workload, profile, out / "served.json", settings.speed)
    policy = exported(candidate, *at_speed) if candidate.plugged else None
    name = re.sub(r"\W+", "-", candidate.simulated)
    steps, counts = out / f"{name}-steps.csv", out / f"{name}-counts"
    shutil.rmtree(counts, ignore_errors=True)
    counts.mkdir()
    server = Emulated(
        python=Path(settings.engine_python),
        model=Path(settings.model),
        port=settings.port,
        device=settings.device,
        speed=settings.speed,
        max_num_seqs=settings.sequences,
        max_num_batched_tokens=candidate.tokens,
        max_model_len=settings.context_tokens,
        asynchronous=bool(settings.asynchronous),
        policy=policy,
        device_log=steps,
        environment={
            "PROMETHEUS_MULTIPROC_DIR": str(counts),  # vLLM's /metrics shows the plug-in's counters too
            "SERVEGYM_DECISION_LIMIT_S": f"{DECISION_LIMIT_S / settings.speed:g}",
        },
    )
    with running(server, out / f"{name}-server.log"):
        replayed = replay(slowed(workload, settings.speed), Endpoint(server.url), Bodies(MODEL))
        counted = counters(server.url, "servegym_")
    return Served(workload, restored(replayed, settings.speed), pd.read_csv(steps), counted)


class Served(Measured):
    """A run of a server. steps: the device's log, in the device's seconds. counted: by the plug-in."""

    def __init__(self, workload: Workload, replayed: Replayed, steps: pd.DataFrame, counted: Mapping[str, float]):
        super().__init__(workload, replayed)
        self.steps, self.counted = steps, counted
        late_s = (steps["taken_s"] - steps["end_s"]).to_numpy()
        between_s = (steps["start_s"].to_numpy()[1:] - steps["taken_s"].to_numpy()[:-1]).clip(0.0)
        self.late_s, self.between_s = late_s, between_s[between_s < LONGEST_BETWEEN_S]

    @property
    def overhead_s(self) -> float:
        """Mean time of a step beside the device: its end was noticed late, and the next one was not ready."""
        return float(self.late_s.mean() + self.between_s.mean())

    def figures(self) -> dict[str, float]:
        return {
            "steps": len(self.steps),
            "step_mean_ms": 1e3 * float(self.steps["duration_s"].mean()),
            "late_p50_ms": 1e3 * float(np.median(self.late_s)),
            "late_p99_ms": 1e3 * float(np.quantile(self.late_s, 0.99)),
            "between_p50_ms": 1e3 * float(np.median(self.between_s)),
            "between_p99_ms": 1e3 * float(np.quantile(self.between_s, 0.99)),
            "overhead_mean_ms": 1e3 * self.overhead_s,
            **{name: self.counted[f"servegym_{name}_total"] for name in COUNTED if self.counted},
        }


def run_simulated(settings: Settings, profile: Profile, workload: Workload, candidate: Candidate, out: Path) -> Result:
    return simulated(settings, profile, workload, candidate)


RUNS = {"simulated": run_simulated, "virtual": virtual, "served": served}


def figures(result: Result) -> dict[str, Any]:
    """What is compared, in the device's seconds; of a server also what its steps took beside the device."""
    summary = result.summary
    line = {
        "tdg": summary["tdg_ratio"],
        "slo_attainment": summary["slo_attainment"],
        "finished": summary["finished"],
        **{f"ttft_{q}_s": summary["ttft_s"][q] for q in ("p50", "p90")},
        **{f"tpot_{q}_ms": 1e3 * (summary["tpot_s"][q] or math.nan) for q in ("p50", "p90")},
    }
    return line | result.figures() if isinstance(result, Served) else line


if __name__ == "__main__":
    main(settings_from_command_line(Settings, __doc__))
