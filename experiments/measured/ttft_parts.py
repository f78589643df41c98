"""What the time to the first token is made of: client, admission, queue and prefill, simulated and, where it is known,
measured.

python -m experiments.measured.ttft_parts
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.measured import client_side
from experiments.measured.profiles import profile_of
from experiments.measured.public_runs import folder_of_runs, read_runs
from experiments.measured.study import CASES, of_version, study
from servegym.errors import ServegymError
from servegym.evaluation.markdown import table
from servegym.evaluation.measured.runs import Run
from servegym.evaluation.measured.serving import scenario_of
from servegym.simulator.records.types import BATCH_START, SCHEDULED
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.simulation import Simulation

HEAD = """## What the time to the first token is made of

Means over a run's requests, ms. *Client*: between the client and the engine's queue; simulated is what is
[fitted to other models](#the-clients-side-fitted-to-other-models), 0 without HTTP. *Admission*: until the first step
starts that was formed after the request had come. *Queue*: from then until it is first in a step, since there was no
room. *Prefill*: from then to its first token. The runs over HTTP have no measured parts: their *error* is simulated
less measured, of the sum. Of the others queueing was measured as one. *: clients gave up; of requests that did not.
"""
COLUMNS = ("run", "of", "client", "admission", "queue", "prefill", "TTFT", "error", "error, %")


@dataclass(frozen=True)
class Parts:
    """Of a mean time to the first token, s. queue_s: with the admission's, where that is nan."""

    client_s: float
    admission_s: float
    queue_s: float
    prefill_s: float

    @property
    def ttft_s(self) -> float:
        return float(np.nansum([self.client_s, self.admission_s, self.queue_s, self.prefill_s]))


def simulated_parts(result: Result, chosen: np.ndarray, asynchronous: bool, client_s: float = 0.0) -> Parts:
    """Parts of the chosen requests, bool[requests], of a run with a timeline. asynchronous: a step is formed when the
    one before it starts."""
    arrays = result.arrays
    lines = arrays.timeline[: arrays.status[0].timeline_used]
    starts = [
        lines["time_s"][(lines["kind"] == BATCH_START) & (lines["engine"] == e)] for e in range(len(arrays.engines))
    ]
    scheduled = lines[lines["kind"] == SCHEDULED]
    first, where = np.unique(scheduled["request"], return_index=True)
    begun_s, engine = np.full(len(chosen), np.nan), np.zeros(len(chosen), int)
    begun_s[first], engine[first] = scheduled["time_s"][where], scheduled["engine"][where]
    arrival_s = arrays.requests["arrival_s"]
    open_s = begun_s.copy()
    for e, of_engine in enumerate(starts):
        here = engine == e
        place = np.searchsorted(of_engine, arrival_s[here]) + asynchronous
        later = np.append(of_engine, np.inf)[np.minimum(place, len(of_engine))]
        open_s[here] = np.minimum(later, begun_s[here])
    seen = chosen & np.isfinite(begun_s)
    means = (open_s - arrival_s, begun_s - open_s, arrays.outcomes["first_token_s"] - begun_s)
    admission_s, queue_s, prefill_s = (float(part[seen].mean()) for part in means)
    return Parts(client_s, admission_s, queue_s, prefill_s)


def measured_parts(run: Run, folder: Path) -> Parts | None:
    """Of a run that has recorded when requests were queued and scheduled; None: it has not."""
    rows = pd.read_parquet(folder / f"requests_{run.name}.parquet")
    if "scheduled_s" not in rows:
        return None
    client_s = (rows["queued_s"] - rows["arrival_s"]).mean()
    queue_s = (rows["scheduled_s"] - rows["queued_s"]).mean()
    return Parts(float(client_s), np.nan, float(queue_s), float((rows["first_token_s"] - rows["scheduled_s"]).mean()))


def rows_of(run: Run, folder: Path, client_s: float) -> list[list[str]]:
    """The lines of a run: simulated, and measured."""
    terms = of_version(run)
    simulation = Simulation(scenario_of(run, profile_of(run, folder, None), terms), record_timeline=True)
    served = ~run.requests["failed"].to_numpy()
    found = simulated_parts(simulation.run(), served, terms.asynchronous, client_s)
    known = measured_parts(run, folder)
    measured_s = float(run.requests["ttft_s"][served].mean()) if known is None else known.ttft_s
    name, error_s = run.name + "*" * run.overloaded, found.ttft_s - measured_s
    errors = [f"{1e3 * error_s:+,.1f}", f"{100 * error_s / measured_s:+.1f}"]
    lines = [[name, "simulated", *cells(found), *errors]]
    if known is None:
        return [*lines, ["", "measured", "", "", "", "", f"{1e3 * measured_s:,.1f}", "", ""]]
    of_parts = [found.client_s - known.client_s, found.admission_s + found.queue_s - known.queue_s,
                found.prefill_s - known.prefill_s]  # fmt: skip
    client, queue, prefill = (f"{1e3 * part:+,.1f}" for part in of_parts)
    return [*lines, ["", "measured", *cells(known), "", ""], ["", "error", client, "", queue, prefill, "", *errors]]


def cells(parts: Parts) -> list[str]:
    numbers = (parts.client_s, parts.admission_s, parts.queue_s, parts.prefill_s, parts.ttft_s)
    return ["" if np.isnan(number) else f"{1e3 * number:,.1f}" for number in numbers]


def section(runs: Iterable[Run], judged: Sequence[client_side.Judged], folder: Path) -> str:
    """The part of the page."""
    fitted = {one.run.name: one.client_s for one in judged}
    rows = [line for run in runs for line in rows_of(run, folder, fitted.get(run.name, 0.0))]
    return f"{HEAD}\n{table(COLUMNS, rows, words=2)}"


def main() -> None:
    folder = folder_of_runs()
    served = [(run, requests) for run, _, requests in study(read_runs(folder), folder, CASES[:1])]
    print(section([run for run, _ in served], client_side.study(served), folder))


if __name__ == "__main__":
    try:
        main()
    except ServegymError as error:
        sys.exit(f"error: {error}")
