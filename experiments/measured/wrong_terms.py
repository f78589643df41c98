"""Which term of a simulated run is wrong: experiments on the errors, as a part of the page."""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.measured import giving_up
from experiments.measured.profiles import profile_of
from servegym.evaluation.markdown import table
from servegym.evaluation.measured.runs import Run
from servegym.simulator.records.types import BATCH

RUNNING = (0, 16, 32, 48, 64, 96, 128, 256)  # of the bins
LEAST_SECONDS = 3
ARRIVED = (0, 30, 60, 120, 200, 300, 600, 900, 1300)  # s, of the bins
NOTES = """## Which term is wrong

**CPU time for each request of a batch**, as closed loops of vLLM 0.12 have it (*CPU by request* above), makes these
runs far too slow: it does not carry over to engines whose version schedules a step while one runs. Added when the
errors of the headline were known, and no part of any range.

**Clients that gave up** (three `reasoning` runs). By time of arrival, of requests that were not given up: the engine
slows down while its queue grows, at the same number of running requests (128, `max_num_seqs`), and so does not keep up
where the simulated one nearly does. Of the device model only the first rows can tell. Llama-2-7B, where KV memory is
the limit, comes out right; CodeLlama-34B does at first; for Mixtral-8x7B steps are too short from the first request,
in this run alone: in its other runs, of answers of 250 tokens, they are right. Neither is explained. That later
requests of two runs all failed is the clients' giving up after 300 s, which the tables above do not have.
"""
PREFILL = """
**Qwen3-32B on two RTX PRO 6000.** Steps of decodes alone, seconds of the recorded time series without prompt tokens,
against the device model at the run's mean context (last table of this section): near it. So what is missing is in
steps with prefills. Of the tables' terms two matter there: attention of decodes beside prefills (2 to 3 times as slow
as alone, in the layer tables; the device form had no such term at first, and the error of this run led to it: without
it E2E was 20 % too short), and all-reduces of long messages: with vLLM's table of them instead of NCCL's the error
nearly goes (the other end of its range above). Which of the two this machine has is not recorded, so the headline keeps
the first choice.

**Qwen3-30B-A3B on two engines.** The engines wait for each other in each layer of experts, so a prefill on one is a
long step for both: the case *ranks apart* above is without that. What is left is in the batches: steps of decodes alone
are 4 to 7 % shorter by the layer tables than in the recorded seconds with 40 requests and more (last table of this
section), and an engine's experts here get the tokens of its own batch, not those of both.

**Time to the first token** over HTTP is too short by about the client's side (9 to 12 ms of the large models; 5 to 6 of
Llama-2-7B). Llama-2-70B at 20 requests/s meets `max_num_seqs` in the measured run, and nearly does in the simulated
one, whose steps are 7 % shorter: the wait in the queue is what is missing.
"""


def section(served: Sequence[tuple[Run, pd.DataFrame]], folder: Path) -> str:
    """The part of the page. served: runs, and their requests as the headline simulates them."""
    overloaded = [(run, requests) for run, requests in served if run.overloaded]
    arrivals = "\n".join(by_arrival(run, requests) for run, requests in overloaded)
    patience = giving_up.section((run for run, _ in overloaded), folder)
    return "\n".join([NOTES, arrivals, patience, PREFILL, of_steps(folder, (run for run, _ in served))])


def by_arrival(run: Run, requests: pd.DataFrame) -> str:
    """Medians by time of arrival, of requests that were not given up."""
    served = run.requests.assign(
        simulated_itl_s=requests["itl_s"].to_numpy(), simulated_ttft_s=requests["ttft_s"].to_numpy()
    )
    rows = []
    for low, high in itertools.pairwise(ARRIVED):
        part = served[(served["arrival_s"] >= low) & (served["arrival_s"] < high)]
        done = part[~part["failed"]]
        medians = done[["itl_s", "simulated_itl_s", "ttft_s", "simulated_ttft_s"]].median()
        itl, simulated_itl, ttft, simulated_ttft = (float(value) for value in medians)
        cells = [f"{1e3 * itl:.1f}", f"{1e3 * simulated_itl:.1f}", f"{ttft:.1f}", f"{simulated_ttft:.1f}"]
        rows.append([f"{low} to {high}", f"{len(done)} of {len(part)}", *(cells if len(done) else ["-"] * 4)])
    columns = ("arrived, s", "served", "ITL, ms", "simulated", "TTFT, s", "simulated")
    return f"{run.name}:\n\n{table(columns, rows)}"


def of_steps(folder: Path, runs: Iterable[Run]) -> str:
    """Steps of decodes alone: in recorded seconds without prompt tokens, and of the device model, ms."""
    rows = []
    for run in runs:
        file = folder / f"timeseries_{run.name}.parquet"
        if not file.exists():
            continue
        seconds = pd.read_parquet(file)
        alone = seconds[(seconds["prompt_tokens_per_s"] == 0) & (seconds["output_tokens_per_s"] > 0)]
        cached = float(run.requests["prompt_tokens"].mean() + run.requests["output_tokens"].mean() / 2)
        for low, high in itertools.pairwise(RUNNING):
            part = alone[(alone["running"] > low) & (alone["running"] <= high)]
            if len(part) < LEAST_SECONDS:
                continue
            running = float(part["running"].mean()) / run.engines
            batch = np.zeros(1, BATCH)
            batch["decode_requests"], batch["decode_cached_tokens"] = running, running * cached
            batch["longest_decode_cached"] = cached
            step_ms = 1e3 * float((part["running"] / part["output_tokens_per_s"]).median())
            model_ms = 1e3 * float(profile_of(run, folder).device.evaluate(batch)[0])
            cells = (f"{running:.0f}", str(len(part)), f"{step_ms:.1f}", f"{model_ms:.1f}")
            rows.append([run.name, *cells, f"{100 * (model_ms / step_ms - 1):+.1f}"])
    return table(("run", "running in an engine", "seconds", "step, ms", "device model, ms", "error, %"), rows)
