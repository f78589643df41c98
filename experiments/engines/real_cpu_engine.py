"""A real engine against its simulation: vLLM on one CPU core, with a small model of random weights.

    python -m experiments.engines.real_cpu_engine --out results/vllm-cpu

With the Python of an engine's environment (docs/engines.md). It makes the model, profiles vLLM's steps in process, fits
a latency profile, serves workloads on vLLM in process and through its HTTP server, simulates the same workloads on the
profile, and writes results.json and a page: the fit's errors, and TDG, TTFT and TPOT, simulated and measured. Batches
and servings in process that the folder has already are not measured again. Run it on a machine that does nothing else:
the page says how far the engine had to wait for a core.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments.engines.real_cpu_page import page_of
from experiments.engines.real_cpu_server import ENVIRONMENT, ServerOptions, core_time_s, server
from experiments.engines.real_cpu_terms import LOADS, run_of, with_server
from experiments.engines.tiny_model import Shape, make_model
from servegym.adapters.profiling.measuring import Plan, measure
from servegym.adapters.replay.bodies import Bodies
from servegym.adapters.replay.measuring import Measured
from servegym.adapters.replay.sending import Endpoint, replay, timed
from servegym.baselines.registry import scheduler as find_scheduler
from servegym.latency_models.calibration import Calibration, calibrate
from servegym.latency_models.documents import to_text
from servegym.latency_models.measured_batches import read_batches
from servegym.latency_models.profile import Profile, load_profile
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.simulation import Simulation
from servegym.traces.workloads import build_workload

if TYPE_CHECKING:
    from servegym.adapters.profiling.vllm_engine import VllmMeter

MODEL = Shape(hidden=768, layers=8, heads=12, kv_heads=4, intermediate=2048)
PROFILE = "vllm-cpu.json"
BLOCK_TOKENS = 128  # of vLLM's KV blocks on a CPU
FORMS = ("piecewise", "linear", "table")
LATENCIES = ("ttft_s", "tpot_s")
APART_S = 0.15  # prompts that come so far apart are alone in their batches


@dataclasses.dataclass(frozen=True)
class Settings:
    """batch_tokens, sequences, context_tokens: the engine's limits. loads: relative to the simulated saturation.
    times: how often each load is served, to see how far one serving differs from the next."""

    batches: int = 120
    repeats: int = 7
    requests: int = 80
    loads: tuple[float, ...] = (0.5, 0.8, 1.1)
    times: int = 2
    batch_tokens: int = 512
    sequences: int = 32
    context_tokens: int = 2048
    memory_share: float = 0.2
    port: int = 18200
    start_s: float = 300.0
    seed: int = 0


def in_process(model: Path, settings: Settings) -> VllmMeter:
    """vLLM's engine in this process, which holds it from then on."""
    from servegym.adapters.profiling.vllm_engine import Options, VllmMeter

    limits = (settings.batch_tokens, settings.sequences, settings.context_tokens)
    return VllmMeter(Options(str(model), *limits, settings.memory_share, eager=True))


def each_size(settings: Settings) -> Workload:
    """A batch of each number of tokens, once, as a meter's warm_up has them: an engine that has run for a while has."""
    tokens = np.arange(1, settings.batch_tokens + 1)
    return Workload.from_columns({"arrival_s": APART_S * tokens, "prompt_tokens": tokens, "output_tokens": 1})


def profile_here(folder: Path, settings: Settings) -> None:
    """Measure batches into FOLDER/profile."""
    meter = in_process(folder / "model", settings)
    plan = Plan(settings.batches, settings.repeats, settings.seed)
    measure(meter, plan, folder / "profile", shown("batches"))
    meter.close()


def drive_here(folder: Path, settings: Settings) -> None:
    """Serve the workloads of FOLDER/asked.json in process, `times` times, into FOLDER/in-process.json."""
    from experiments.engines.real_cpu_in_process import by_regime, drive

    profile = load_profile(str(folder / PROFILE))
    meter = in_process(folder / "model", settings)
    meter.warm_up()
    found = []
    for rate_per_s in json.loads((folder / "asked.json").read_text())["rates_per_s"]:
        workload = workload_at(rate_per_s, profile, settings)
        servings = [drive(meter, workload) for _ in range(settings.times)]
        found.append(
            [
                figures(Measured(workload, each.replayed).summary) | {"by_regime": by_regime(profile.device, each)}
                for each in servings
            ]
        )
        print(f"in process: {rate_per_s:.2f} requests/s", file=sys.stderr, flush=True)
    (folder / "in-process.json").write_text(json.dumps(found, indent=2) + "\n")
    meter.close()


def shown(what: str) -> Any:
    """Progress on standard error, one line a tenth."""

    def progress(done: int, in_all: int) -> None:
        if done * 10 // in_all != (done - 1) * 10 // in_all:
            print(f"{what}: {done} of {in_all}", file=sys.stderr, flush=True)

    return progress


def fitted(table: Path, blocks: int, seed: int) -> dict[str, Calibration]:
    """The profile in each form. The best is the one with the smallest error on batches held out."""
    like = load_profile("a100-llama3-8b")
    batches = read_batches(table)
    return {
        form: calibrate(batches, form, "vllm-cpu", like, seed=seed, held_out_share=0.3, total_blocks=blocks)
        for form in FORMS
    }


def deployment_of(profile: Profile, blocks: int) -> Deployment:
    """One engine of the profile with vLLM's KV cache."""
    return dataclasses.replace(profile.deployment(1), total_blocks=blocks, block_tokens=BLOCK_TOKENS, watermark=0.0)


def scheduler_of(settings: Settings) -> str:
    return f"vllm-v1:max_num_batched_tokens={settings.batch_tokens},max_num_seqs={settings.sequences}"


def workload_at(rate_per_s: float, profile: Profile, settings: Settings) -> Workload:
    """Azure's conversations as far as they fit the context."""
    return timed(
        build_workload(
            "azure-conv",
            requests=settings.requests,
            rate_per_s=rate_per_s,
            seed=settings.seed,
            max_total_tokens=settings.context_tokens - 1,
            idle_tpot_s=profile.idle_tpot_s,
        )
    )


def served(url: str, engine: int, workload: Workload) -> dict[str, Any]:
    """The figures of a replay, and what share of its own time the engine waited for a core meanwhile."""
    before = core_time_s(engine)
    result = replayed(url, workload)
    running_s, waiting_s = (now - then for now, then in zip(core_time_s(engine), before, strict=True))
    return figures(result.summary) | {
        "statuses": {name: count for name, count in result.summary["statuses"].items() if count},
        "lateness_s": result.summary["lateness_s"],
        "engine_waited_share": waiting_s / (running_s + waiting_s),
    }


def replayed(url: str, workload: Workload) -> Measured:
    return Measured(workload, replay(workload, Endpoint(url, 600.0), Bodies("tiny"), shown("requests")))


def figures(summary: dict[str, Any]) -> dict[str, Any]:
    """What is compared."""
    names = ("requests", "finished", "tokens_emitted", "tdg_ratio", "slo_attainment", "on_time_token_share", "span_s")
    return {name: summary[name] for name in (*names, *LATENCIES)}


def in_a_process(folder: Path, settings: Settings, only: str) -> None:
    """A part of the work in a process of its own: vLLM's engine is not let go of completely before that ends."""
    own = [sys.executable, "-P", "-m", "experiments.engines.real_cpu_engine", "--out", str(folder)]
    subprocess.run(
        [*own, "--only", only, *as_arguments(settings)], env=os.environ | ENVIRONMENT, check=True, stdout=sys.stderr
    )


def run(folder: Path, settings: Settings) -> dict[str, Any]:
    """All of it, once."""
    folder.mkdir(parents=True, exist_ok=True)
    model, profile_folder, results = folder / "model", folder / "profile", folder / "results.json"
    if not (model / "config.json").exists():
        make_model(model, MODEL, weights=True)
    table = profile_folder / "batches.csv"
    if not table.exists() or len(table.read_text().splitlines()) <= settings.batches:
        in_a_process(folder, settings, "profile")
    facts = json.loads((profile_folder / "profile.json").read_text(encoding="utf-8"))["facts"]
    fits = fitted(table, facts["kv_blocks"], settings.seed)
    best = min(fits, key=lambda form: fits[form].device.error.mape_percent)
    path = folder / PROFILE
    path.write_text(to_text(fits[best].document), encoding="utf-8")
    profile = load_profile(str(path))
    scheduler = find_scheduler(scheduler_of(settings))

    def simulated(workload: Workload, of: Profile = profile) -> dict[str, Any]:
        deployment = deployment_of(of, facts["kv_blocks"])
        return figures(Simulation(Scenario(workload, deployment, scheduler, front_end=of.front_end)).run().summary)

    at_once = workload_at(1.0, profile, settings).replace(arrival_s=0.0)
    saturation_per_s = settings.requests / simulated(at_once)["span_s"]
    document: dict[str, Any] = {
        "settings": dataclasses.asdict(settings),
        "model": dataclasses.asdict(MODEL),
        "facts": facts,
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count()},
        "fit": {form: dataclasses.asdict(each.device.error) for form, each in fits.items()},
        "estimator": dataclasses.asdict(fits[best].estimator.error),
        "form": best,
        "profiled": noise(table),
        "saturation_per_s": saturation_per_s,
        "runs": [],
    }
    workloads = [workload_at(load * saturation_per_s, profile, settings) for load in settings.loads]
    rates = [load * saturation_per_s for load in settings.loads]
    asked = json.dumps({"times": settings.times, "rates_per_s": rates})
    asked_path, driven_path = folder / "asked.json", folder / "in-process.json"
    if not (driven_path.exists() and asked_path.read_text() == asked):
        driven_path.unlink(missing_ok=True)
        asked_path.write_text(asked)
        in_a_process(folder, settings, "drive")
    driven = json.loads(driven_path.read_text())
    limits = (settings.batch_tokens, settings.sequences, settings.context_tokens)
    options = ServerOptions(*limits, settings.memory_share, settings.port, settings.start_s)
    with server(model, folder / "server.log", options) as (url, engine):
        for warm_up in (each_size(settings), workload_at(4.0, profile, settings)):
            replay(warm_up, Endpoint(url), Bodies("tiny", seed=1))
        others = []
        for seed, load in enumerate(LOADS, settings.seed + 1):
            other = workload_at(load * saturation_per_s, profile, dataclasses.replace(settings, seed=seed))
            table = folder / f"other-{seed}.csv"
            others.append(run_of(replayed(url, other), table, settings.sequences, settings.batch_tokens))
        terms, on_server = with_server(profile, others)
        document["server"] = dataclasses.asdict(terms) | {"fitted_at_loads": LOADS}
        for load, workload, own in zip(settings.loads, workloads, driven, strict=True):
            measured = [served(url, engine, workload) for _ in range(settings.times)]
            run = {"load": load, "simulated": simulated(workload), "in_process": own}
            document["runs"].append(run | {"on_server": simulated(workload, on_server), "measured": measured})
            results.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return document


def noise(table: Path) -> dict[str, float]:
    """How long batches took, how far repeats of one differ (slowest less fastest, over the median), and in what share
    of the repeats the engine had its core throughout."""
    rows = pd.read_csv(table)
    spread = (rows["slowest_s"] - rows["fastest_s"]) / rows["duration_s"]
    return {
        "batches": len(rows),
        "shortest_s": float(rows["duration_s"].min()),
        "longest_s": float(rows["duration_s"].max()),
        "median_spread": float(spread.median()),
        "undisturbed": float(rows["undisturbed"].mean()),
    }


def cpu_name() -> str:
    """As Linux has it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")


def as_arguments(settings: Settings) -> list[str]:
    words = []
    for name, value in dataclasses.asdict(settings).items():
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        words += [f"--{name.replace('_', '-')}", text]
    return words


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/vllm-cpu"))
    parser.add_argument("--page", type=Path, help="where the page goes, such as docs/results/vllm-cpu.md")
    parser.add_argument("--only", choices=("profile", "drive"), help="a part, in this process")
    for name, default in dataclasses.asdict(Settings()).items():
        kind = (lambda text: tuple(map(float, text.split(",")))) if isinstance(default, tuple) else type(default)
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default, help="default: %(default)s")
    options = vars(parser.parse_args(arguments))
    folder, only, page = options.pop("out"), options.pop("only"), options.pop("page")
    settings = Settings(**options)
    if only is not None:
        {"profile": profile_here, "drive": drive_here}[only](folder, settings)
        return 0
    document = run(folder, settings)
    text = page_of(document)
    (page or folder / "results.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
