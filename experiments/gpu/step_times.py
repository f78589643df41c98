"""Why runs on the GPU at load 1.4 are slower than simulated: measured step times beside those of a profile.

    python -m experiments.gpu.step_times docs/results/h100 --profile FITTED.json --page docs/results/h100-step-times.md

Where a run has no log of its steps, the batch of a step follows from its tokens under vLLM's own order: a request that
gets its first token was prefilled in the step, any other one was decoded. (A prompt in two chunks counts as a whole in
the second; a prompt computed again after a preemption is not counted.) So each step at any load can be compared with a
profile fitted at saturation.
"""

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.gpu.compare import SERVED, again, believed_by, measured_run, simulated
from experiments.gpu.late_tokens import with_late_tokens
from experiments.gpu.page import put, text_of
from experiments.gpu.records import decoded, runs_of
from experiments.gpu.steps import logged, steps
from experiments.gpu.workloads import STOCK
from servegym.evaluation.markdown import narrow_header, row
from servegym.latency_models.measured_batches import DURATION
from servegym.latency_models.model import as_batches
from servegym.latency_models.profile import Profile, load_profile
from servegym.simulator.records.types import BATCH

FACTORS = (1.0, 1.01, 1.02, 1.03)
GROUPS = ((1, 512), (513, 1_000), (1_001, 2_000), (2_001, 8_192))  # tokens of the next batch
LATE_S = 0.003  # more than a decode step's time varies


def steps_of(line: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Batches (BATCH[steps]) of a run, and what each step took, float64[steps]: as logged, or else reconstructed."""
    table = logged(line)
    return reconstructed(line) if table is None else (as_batches(table), table[DURATION].to_numpy())


def reconstructed(line: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Batches (BATCH[steps]) of a run under vLLM's own order, and what each step took, float64[steps]."""
    arrays = decoded(line["arrays"])
    prompts, requests = arrays["prompt_tokens"], arrays["token_request"]
    times_us = np.cumsum(arrays["token_us"])
    ends_us, step = np.unique(times_us, return_inverse=True)
    batches, brought = np.zeros(len(ends_us), BATCH), np.zeros(len(prompts), "i8")
    for at in np.argsort(times_us, kind="stable"):
        request, batch = requests[at], batches[step[at]]
        prompt = float(prompts[request])
        if brought[request] == 0:
            batch["prefill_requests"] += 1
            batch["prefill_tokens"] += prompt
            batch["prefill_tokens_squared"] += prompt * prompt
            batch["longest_prefill_tokens"] = max(batch["longest_prefill_tokens"], prompt)
        else:
            cached = prompt + brought[request] - 1
            batch["decode_requests"] += 1
            batch["decode_cached_tokens"] += cached
            batch["longest_decode_cached"] = max(batch["longest_decode_cached"], cached)
        brought[request] += 1
    return batches, np.diff(ends_us, prepend=0) / 1e6


def total_rows(folder: Path, profile: Profile) -> Iterator[str]:
    """Total time of the steps of each run at saturation, without the first: measured, and by the profile."""
    table = steps(folder, say=False, late=True)
    for run, its in [*table.groupby("run", sort=False), ("all", table)]:
        took_s, said_s = its[DURATION].sum(), profile.device.evaluate(as_batches(its)).sum()
        yield row(run, len(its), f"{took_s:.2f}", f"{said_s:.2f}", f"{100 * (took_s / said_s - 1):+.1f} %")


def before_rows(batches: np.ndarray, took_s: np.ndarray, profile: Profile) -> Iterator[str]:
    """Decode steps after a decode step, grouped by the number of tokens of the next step."""
    over_s = took_s - profile.device.evaluate(batches)
    tokens, prefills = batches["prefill_tokens"] + batches["decode_requests"], batches["prefill_requests"] > 0
    decodes = np.flatnonzero(~prefills[:-1] & ~np.insert(prefills[:-2], 0, True))
    groups = {"decodes only": ~prefills} | {
        f"{low:,} to {high:,}, with a prefill": prefills & (tokens >= low) & (tokens <= high) for low, high in GROUPS
    }
    for name, its in groups.items():
        here = decodes[its[decodes + 1]]
        if len(here):
            over_ms = 1e3 * over_s[here]
            late = 100.0 * (over_ms > 1e3 * LATE_S).mean()
            yield row(name, len(here), f"{np.median(over_ms):+.1f}", f"{np.max(over_ms):+.1f}", f"{late:.0f} %")


def slower_rows(line: Mapping[str, Any], profile: Profile, beside: Sequence[Profile]) -> Iterator[str]:
    """The run as served; simulated with every batch longer by a factor, on other profiles, and with late tokens."""
    workload = again(line)
    if workload is None:
        return
    results: dict[str, Any] = {SERVED: measured_run(line, workload)}
    profiles = {
        f"simulated, batch times x {f:g}": dataclasses.replace(profile, device=profile.device.times(f)) for f in FACTORS
    }
    believed = believed_by(line)
    for label, slower in (profiles | {other.name: other for other in beside}).items():
        results[label] = simulated(line, workload, slower, believed)
    results["simulated, tokens before large batches late"] = with_late_tokens(
        simulated(line, workload, profile, believed, timeline=True)
    )
    for label, result in results.items():
        cells = [text_of(result.summary["tdg_ratio"]), text_of(result.summary["slo_attainment"])]
        for column in ("ttft_s", "tpot_s"):
            quantiles = np.quantile(result.requests[column].dropna(), (0.5, 0.9, 0.99))
            cells.append(" / ".join(text_of(float(value)) for value in quantiles))
        yield row(f"{line['trace']}, {line['policy']}" if label == SERVED else "", label, *cells)


def tables(folder: Path, profile: Profile, beside: Sequence[Profile]) -> str:
    heads = narrow_header("run at saturation", "steps", "measured, s", "profile, s", "difference")
    parts = [*heads, *total_rows(folder, profile)]
    latest: list[str] = []
    slower: list[str] = []
    for line in runs_of(folder):
        if "router" in line or not line.get("load"):
            continue
        slower += slower_rows(line, profile, beside)
        if line["policy"] == STOCK:
            batches, took_s = steps_of(line)
            more = 100 * (took_s.sum() / profile.device.evaluate(batches).sum() - 1)
            title = f"\n{line['run']}, whose steps took {more:.1f} % longer in total than the profile says:\n"
            late = f"by over {1e3 * LATE_S:.0f} ms"
            heads = narrow_header(
                "tokens of the next step", "decode steps", "measured less profile, ms: median", "largest", late
            )
            latest += [title, *heads, *before_rows(batches, took_s, profile)]
    heads = narrow_header("run", "", "TDG", "attainment", "TTFT, s: p50 / p90 / p99", "TPOT, s: p50 / p90 / p99")
    return "\n".join([*parts, *latest, "\nAt load 1.4:\n", *heads, *slower]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--profile", required=True, help="fitted at saturation")
    parser.add_argument("--beside", action="append", default=[], help="another profile to simulate on; repeatable")
    parser.add_argument("--page", type=Path, help="put the tables between its markers")
    given = parser.parse_args(arguments)
    text = tables(given.folder, load_profile(given.profile), [load_profile(name) for name in given.beside])
    put(text, given.page, parser)
    return 0


if __name__ == "__main__":
    sys.exit(main())
