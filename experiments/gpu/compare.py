"""What a GPU brought back beside simulations of the same: batches, and served runs; one Markdown table each.

    python -m experiments.gpu.compare FOLDER --profile h100-llama3-8b --profile measured.json

FOLDER has what the scripts leave: runs.jsonl, and batches.csv with profile.json. Each profile is judged by the batches,
and simulates each served run: the same requests at the same times under the same policy. The requests of each run go to
FOLDER/requests as Parquet. A rehearsal on a CPU is no measurement: its tables say so.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.gpu.driving import QUANTILES, summary_of
from experiments.gpu.records import RUNS, decoded, read_lines
from experiments.gpu.workloads import STOCK, workload_of
from servegym.adapters.replay.measuring import Measured
from servegym.adapters.replay.records import FINISHED, INTERRUPTED, Record, Replayed
from servegym.baselines.registry import scheduler
from servegym.latency_models.fitting import REGIMES, regime
from servegym.latency_models.measured_batches import DURATION, read_batches
from servegym.latency_models.model import as_batches
from servegym.latency_models.profile import Profile, load_profile
from servegym.simulator.features.disturbances import Correction
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation

REHEARSED = "**Rehearsed on a CPU with a tiny model: no measurement.**\n\n"
COLUMNS = ("prompt_tokens", "output_tokens", "priority", "weight", "ttft_slo_s", "tpot_slo_s", "ttlt_slo_s")


def workload_again(line: Mapping[str, Any], context_tokens: int) -> Workload | None:
    """The workload that was served, made again; None where it comes out otherwise than it did there."""
    profile = load_profile(str(line["profile"]))
    made = workload_of(
        line["trace"], line["requests"], line["rate_per_s"], line["seed"], context_tokens, profile
    )  # fmt: skip
    return made if made.digest == line["digest"] else None


def measured_run(line: Mapping[str, Any], known: Workload | None) -> Measured:
    """A served run, judged as a simulation is. known: its workload; None: it is taken from the line, without what the
    requests of sessions follow, and what they share."""
    arrays = decoded(line["arrays"])
    sent = np.flatnonzero(np.isfinite(arrays["arrival_s"]))
    order = sent[np.argsort(arrays["arrival_s"][sent], kind="stable")]
    if known is not None:
        order = np.arange(len(known))
    workload = known or Workload.from_columns(
        {name: arrays[name][order] for name in ("arrival_s", *COLUMNS)}, str(line["run"])
    )
    time_s = np.cumsum(arrays["token_us"]) / 1e6
    by_request = np.argsort(arrays["token_request"], kind="stable")
    bounds = np.searchsorted(arrays["token_request"][by_request], np.arange(len(arrays["arrival_s"]) + 1))
    records = []
    for place, request in enumerate(order.tolist()):
        due_s = float(arrays["arrival_s"][request])
        record = Record(due_s, due_s, time_s[by_request[bounds[request] : bounds[request + 1]]].tolist(), came_s=due_s)
        if np.isfinite(due_s):
            record.end(FINISHED if len(record.token_s) == workload.table["output_tokens"][place] else INTERRUPTED)
        records.append(record)
    return Measured(workload, Replayed(records, float(time_s[-1]) if len(time_s) else 0.0))


def simulated(line: Mapping[str, Any], workload: Workload, profile: Profile, believed: Profile) -> Result:
    """A run of the same requests on a profile, with the limits of the engine that served them.

    believed: the profile whose estimator policies were given there; it is corrected by what steps took, as in vLLM.
    """
    engine, own = line["engine"], line["policy"] == STOCK
    space, shape = engine["space"], engine["shape"]
    caching = bool(shape["more"].get("enable_prefix_caching"))
    deployment = dataclasses.replace(
        profile.deployment(1),
        estimator=believed.estimator,
        total_blocks=engine["kv_blocks"],
        block_tokens=engine["kv_block_tokens"],
        watermark=0.0,
        max_num_batched_tokens=space["batch_tokens"],
        max_num_seqs=space["sequences"],
        async_scheduling=bool(shape["asynchronous"]),
        prefix_caching=None if caching else False,
    )
    name = f"learned:{line['policy']}" if line["policy"].endswith(".json") else line["policy"]
    limits = f":max_num_batched_tokens={space['batch_tokens']},max_num_seqs={space['sequences']}" if own else ""
    correction = None if own else Correction()
    return Simulation(Scenario(workload, deployment, scheduler(name + limits), correction=correction)).run()


def served_rows(lines: Sequence[Mapping[str, Any]], profiles: Sequence[Profile], folder: Path) -> Iterator[str]:
    """A row of the table for each run and figure. Two engines that share a GPU are not simulated."""
    engine: Any = None
    for line in lines:
        engine = line.get("engine", engine)  # of the start before it
        if "arrays" not in line:
            continue
        with_engine = {**line, "engine": engine}
        again = workload_again(line, line.get("context_tokens") or engine["space"]["context_tokens"])
        found = measured_run(line, again)
        folder.mkdir(parents=True, exist_ok=True)
        name = "".join(c if c.isalnum() or c in ".-" else "_" for c in str(line["run"]))
        found.requests.to_parquet(folder / f"{name}.parquet", compression="zstd")
        others: list[Result] = []
        if "router" not in line:
            known = {profile.name: profile for profile in profiles}
            believed = known.get(line["profile"]) or load_profile(str(line["profile"]))
            others = [simulated(with_engine, found.scenario.workload, profile, believed) for profile in profiles]
        for figure, read in figures():
            values = [read(result) for result in (found, *others)]
            values += [None] * (1 + len(profiles) - len(values))
            yield f"| {line['run']} | {figure} | " + " | ".join(map(text_of, values)) + " |"


def figures() -> Iterator[tuple[str, Any]]:
    """What is compared: its name, and how to read it from a result."""
    yield "TDG ratio", lambda result: result.summary["tdg_ratio"]
    yield "SLO attainment", lambda result: result.summary["slo_attainment"]
    for name, label in (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("ttlt_s", "E2E")):
        for q in ("mean", *QUANTILES):
            yield f"{label} {q}, s", lambda result, name=name, q=q: summary_of(result.requests[name].dropna()).get(q)


def text_of(value: float | None) -> str:
    return "-" if value is None or not np.isfinite(value) else f"{value:.4g}"


def batch_rows(table: Path, profiles: Sequence[Profile]) -> Iterator[str]:
    """For each profile and kind of batch: how many, the mean error of a batch, and of all their time together."""
    rows = read_batches(table)
    batches, measured_s = as_batches(rows), rows[DURATION].to_numpy()
    kinds = regime(batches)
    for profile in profiles:
        said_s = profile.device.evaluate(batches)
        for kind, name in enumerate(REGIMES):
            its = kinds == kind
            if its.any():
                each = 100.0 * np.abs(said_s[its] / measured_s[its] - 1.0).mean()
                bias = 100.0 * (said_s[its].sum() / measured_s[its].sum() - 1.0)
                yield f"| {profile.name} | {name} | {its.sum()} | {each:.1f} % | {bias:+.1f} % |"


def page(folder: Path, profiles: Sequence[Profile]) -> str:
    """Both tables, with a word of warning where this was a rehearsal."""
    lines = [line for line in read_lines(folder / RUNS) if line["done"]]
    parts = [REHEARSED] if any(line["rehearsal"] for line in lines) else []
    machines = sorted({json.dumps(line["machine"]["gpu"]) for line in lines})
    parts.append(f"On: {', '.join(machines) or 'nothing yet'}.\n\n")
    if (folder / "batches.csv").exists():
        parts.append(
            "| profile | batches | number | error of a batch, mean | of their time together |\n|---|---|---|---|---|\n"
        )
        parts.append("\n".join(batch_rows(folder / "batches.csv", profiles)) + "\n\n")
    names = "".join(f" {profile.name} |" for profile in profiles)
    parts.append(f"| run | figure | served |{names}\n|---|---|---|" + "---|" * len(profiles) + "\n")
    parts.append("\n".join(served_rows(lines, profiles, folder / "requests")) + "\n")
    return "".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--profile", action="append", required=True, help="a name or a file; repeatable")
    given = parser.parse_args(arguments)
    print(page(given.folder, [load_profile(name) for name in given.profile]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
