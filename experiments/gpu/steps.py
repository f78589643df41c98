"""The batches that served runs consist of, each with the time that its step took.

    python -m experiments.gpu.steps docs/results/h100 --out results/h100/steps.csv

From the log of a run, where it has one. Else of the runs with all requests there at once: which batches vLLM forms does
not depend on how long they take there. So the simulator forms the same ones in the same order, and a step of the
engine, the time from one batch's tokens to the next one's, belongs to the simulated batch of the same number. That
holds while each step brings as many tokens as its batch has in the simulation; the share of the steps for which it does
is printed. `servegym calibrate` reads the table.

The first step, during which all requests are taken in, is left out; and so are late steps, and the short ones behind
them (`fitting.in_time`), but with `--late`, for `servegym calibrate --same-total`.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.gpu.compare import again, deployment_of, scheduler_of
from experiments.gpu.records import decoded, runs_of
from servegym.adapters.profiling.design import Batch, Prefill
from servegym.latency_models.fitting import in_time
from servegym.latency_models.measured_batches import DURATION
from servegym.latency_models.profile import Profile, load_profile
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.types import BATCH_SUMS
from servegym.simulator.runs.simulation import Simulation

ANY_PROFILE = "h100-llama3-8b"  # how long simulated batches take does not matter


def formed(workload: Workload, line: Mapping[str, Any], profile: Profile) -> tuple[list[Batch], np.ndarray]:
    """The simulated batches, and how many tokens each of them brings, int64[batches]; 0: parts of prompts only."""
    scenario = Scenario(workload, deployment_of(line, profile, profile), scheduler_of(line))
    events = Simulation(scenario, record_timeline=True).run().timeline
    prompts, computed = workload.table["prompt_tokens"], np.zeros(len(workload), "i8")
    prefills: list[list[Prefill]] = []
    decodes: list[list[int]] = []
    for kind, request, tokens in zip(events.kind.astype(str), events.request, events.tokens, strict=True):
        if kind == "batch_start":
            prefills.append([])
            decodes.append([])
        elif kind == "evicted":
            computed[request] = tokens
        elif kind == "scheduled":
            before = int(computed[request])
            if before >= prompts[request]:
                decodes[-1].append(before)
            else:
                prefills[-1].append(Prefill(int(tokens), before))
            computed[request] += tokens
    kinds, times_s = events.kind.astype(str), events.time_s.to_numpy()
    ends_s = times_s[kinds == "batch_end"]
    brought = np.bincount(np.searchsorted(ends_s, times_s[kinds == "token"]), minlength=len(prefills))
    batches = [Batch(tuple(first), tuple(later)) for first, later in zip(prefills, decodes, strict=True)]
    return batches, brought


def taken(line: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Of each step of the engine that brought tokens its seconds, and how many they were."""
    times_us, counts = np.unique(np.cumsum(decoded(line["arrays"])["token_us"]), return_counts=True)
    return np.diff(times_us, prepend=0) / 1e6, counts


def paired(line: Mapping[str, Any], workload: Workload, profile: Profile) -> tuple[pd.DataFrame, float]:
    """The table of a run, and the share of its steps that brought as many tokens as the simulated batch.

    Raises ValueError where another number of the simulated batches bring tokens.
    """
    (batches, brought), (seconds, counts) = formed(workload, line, profile), taken(line)
    bringing = np.flatnonzero(brought)
    if len(bringing) != len(counts):
        raise ValueError(f"{line['run']}: {len(counts)} steps brought tokens; {len(bringing)} simulated batches did")
    sums = np.concatenate([batch.sums() for batch in batches])[bringing]
    table = pd.DataFrame({name: sums[name] for name in BATCH_SUMS})
    table.insert(0, DURATION, seconds)
    alone = np.diff(bringing, prepend=-1) == 1  # else the step's time is that of several batches
    return table[alone].reset_index(drop=True), float((counts == brought[bringing]).mean())


def logged(line: Mapping[str, Any]) -> pd.DataFrame | None:
    """The table of a run whose steps were logged; None where they were not."""
    arrays = decoded(line["arrays"])
    if not len(arrays.get("step_us", ())):
        return None
    table = pd.DataFrame(arrays["step_sums"], columns=list(BATCH_SUMS))
    table.insert(0, DURATION, arrays["step_us"] / 1e6)
    return table


def steps(
    folder: Path, load: float | None = None, say: bool = True, late: bool = False, shape: str | None = None
) -> pd.DataFrame:
    """The steps of a shape's runs at a load (None: at saturation), with a column `run`. late: those taken in late too.

    Those of two engines behind a router are not known.
    """
    profile, tables = load_profile(ANY_PROFILE), []
    for line in runs_of(folder, shape):
        if "router" in line or "load" not in line or line["load"] != load:
            continue
        table, alike = logged(line), ""
        workload = again(line) if load is None else None
        if workload is not None:
            try:
                pairs, share = paired(line, workload, profile)
            except ValueError as error:  # such as a run that was cut at its time limit
                print(f"left out: {error}", file=sys.stderr)
                continue
            table, alike = pairs if table is None else table, f"{100 * share:.1f} % as many tokens as simulated; "
        if table is None:
            continue
        kept = (np.arange(len(table)) > 0) & (late | in_time(table))
        if say:
            print(f"{line['run']}: {len(table)} steps; {alike}{len(table) - kept.sum()} left out", file=sys.stderr)
        tables.append(table[kept].assign(run=str(line["run"])))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--load", type=float, help="steps of the runs at this load; default: at saturation")
    parser.add_argument("--late", action="store_true", help="steps taken in late too")
    parser.add_argument("--shape", help="of `shapes`; default: runs of the other scripts")
    parser.add_argument("--out", type=Path, required=True, help="a CSV file")
    given = parser.parse_args(arguments)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    table = steps(given.folder, given.load, late=given.late, shape=given.shape).drop(columns="run")
    table.to_csv(given.out, index=False, float_format="%.9g")
    return 0


if __name__ == "__main__":
    sys.exit(main())
