"""A trace larger than memory, served and summed up as it goes; what became of each request goes to a file."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from servegym.errors import SpecError
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.inputs.costs import costs_of_pools
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.records.types import ROLE_PREFILL
from servegym.simulator.runs.fairness import fairness
from servegym.simulator.runs.figures import QUANTILES
from servegym.simulator.runs.results import Result
from servegym.simulator.runs.slos import LATENCIES
from servegym.simulator.runs.streaming import StreamedSimulation
from servegym.traces.streamed import StreamedTrace

if TYPE_CHECKING:
    import pandas as pd

BINS_PER_OCTAVE = 256
LOWEST, OCTAVES = -20, 60  # from 2^-20: a microsecond; what is outside counts as the first or the last
ERROR = 0.5 / BINS_PER_OCTAVE  # most that a quantile is off, of the number that has its rank


class Sketch:
    """Finite numbers of 0 or more, counted."""

    def __init__(self) -> None:
        self.counts = np.zeros(OCTAVES * BINS_PER_OCTAVE, "i8")

    def add(self, values: np.ndarray) -> None:
        fraction, exponent = np.frexp(values[np.isfinite(values)])  # fraction from 0.5 on, 2^exponent times it
        bins = (exponent - 1 - LOWEST) * BINS_PER_OCTAVE + ((2 * fraction - 1) * BINS_PER_OCTAVE).astype("i8")
        self.counts += np.bincount(np.clip(bins, 0, len(self.counts) - 1), minlength=len(self.counts))

    def quantiles(self) -> dict[str, float | None]:
        """p50, p90, p99, within `ERROR` of the number of that rank; None where there are no numbers."""
        total = int(self.counts.sum())
        if not total:
            return dict.fromkeys(QUANTILES)
        reached = np.cumsum(self.counts)
        return {name: middle(int(np.searchsorted(reached, q * total))) for name, q in QUANTILES.items()}


def middle(index: int) -> float:
    octave, part = divmod(index, BINS_PER_OCTAVE)
    return float(2.0 ** (octave + LOWEST) * (1 + (part + 0.5) / BINS_PER_OCTAVE))


# Figures by length or class take all requests at once: those still in memory are not the run.
UNKNOWN: dict[str, Any] = {
    "slo_attainment_by_length": {}, "slo_attainment_by_class": {}, "violations_by_class": {},
    "fairness_by_length": None,
}  # fmt: skip
SHARES = {"slo_attainment": "attained", "violations": "violated", "starved": "starved"}
COUNTS = ("num_output_tokens", "on_time_tokens", "output_tokens", "cached_tokens", "reroutes")
# Other fields would need all requests at once to draw or compute: only specs of these fields can be streamed.
ONLY = {
    "slo": "given", "requests": None, "rate_per_s": None, "load": None, "arrivals": None, "max_prompt_tokens": None,
    "max_total_tokens": None, "slo_scale": 1.0, "cv": 1.0, "resample": False,
}  # fmt: skip


class Streamed(NamedTuple):
    """The results of a run whose trace was streamed. rate_per_s: mean arrival rate."""

    summary: dict[str, Any]
    files: list[Path]
    scenario: Scenario  # of a sample of the requests
    rate_per_s: float


def stream(spec: ServingSpec, out: str | os.PathLike[str]) -> Streamed:
    """Serve the trace of a spec, a file with arrival times, from end to end, and write `requests.parquet` and
    `engines.parquet` to the folder `out`.

    The tables are those of `Result`, and so is the summary, but: quantiles of latencies are a sketch's (within
    `sketch.ERROR`), sums of gains are rounded in another order, and what is by length or by class of SLOs is left out.
    Raises SpecError, WorkloadError and DeploymentError for what cannot be streamed.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_spec(spec)
    trace = StreamedTrace(spec.demand.trace, spec.demand.reading)  # type: ignore[arg-type]
    whole = trace.whole()
    simulation = StreamedSimulation(spec.build(workload=whole.sample), whole)
    sums = Sums(len(simulation.arrays.engines))
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    requests, engines = folder / "requests.parquet", folder / "engines.parquet"
    with contextlib.ExitStack() as files:
        writer = None
        for part in simulation.stream(trace.chunks()):
            table = part.requests
            rows = pa.Table.from_pandas(table, preserve_index=False)
            writer = writer or files.enter_context(pq.ParquetWriter(requests, rows.schema))
            writer.write_table(rows)
            sums.add(table)
    result = simulation.whole()
    sums.engines_of(result).to_parquet(engines, index=False)
    arrival_s = whole.sample.table["arrival_s"]  # the first and the last are in the sample
    span_s = float(arrival_s[-1] - arrival_s[0])
    rate_per_s = (whole.requests - 1) / span_s if span_s > 0 else float("inf")
    return Streamed(sums.summary(result), [requests, engines], simulation.scenario, rate_per_s)


def check_spec(spec: ServingSpec) -> None:
    """Raise SpecError for a demand that is not a file's own requests as they are."""
    for name, only in ONLY.items():
        if spec[name] != only:
            right = f"{name} {only}" if only is not None else f"no {name}"
            raise SpecError(
                f"{name} is {spec[name]}, for which all requests are needed at once: a trace is streamed with {right}, "
                "at its own times and with its own SLOs"
            )


class Sums:
    """What a summary needs of requests, added up part by part. engines: how many there are."""

    def __init__(self, engines: int) -> None:
        self.requests = 0
        self.counts = dict.fromkeys(COUNTS, 0)
        self.gain = self.ideal_gain = 0.0
        self.of_priority: dict[int, dict[str, int]] = defaultdict(lambda: dict.fromkeys(("all", *SHARES), 0))
        self.of_client: dict[int, np.ndarray] = defaultdict(lambda: np.zeros(2))  # gain, ideal gain
        self.latencies = {name: Sketch() for name in LATENCIES}
        self.finished_at = np.zeros(engines, "i8")

    def add(self, table: pd.DataFrame) -> None:
        """Rows of `Result.requests`."""
        self.requests += len(table)
        for name in COUNTS:
            self.counts[name] += int(table[name].sum())
        self.gain += float(table["gain"].sum())
        self.ideal_gain += float(table["ideal_gain"].sum())
        for priority, rows in table.groupby("priority"):
            sums = self.of_priority[int(priority)]
            sums["all"] += len(rows)
            for figure, column in SHARES.items():
                sums[figure] += int(rows[column].sum())
        for client, gains in table.groupby("client")[["gain", "ideal_gain"]].sum().iterrows():
            self.of_client[int(client)] += gains.to_numpy()
        for name, sketch in self.latencies.items():
            sketch.add(table[name].to_numpy())
        served = table["engine"][np.isfinite(table["finish_s"])]
        self.finished_at += np.bincount(served, minlength=len(self.finished_at))

    def engines_of(self, whole: Result) -> pd.DataFrame:
        """The table of engines of the run."""
        table, roles = whole.engines, whole.arrays.engines["role"]
        table["requests"] = np.where(roles == ROLE_PREFILL, table["requests"], self.finished_at)
        return table

    def summary(self, whole: Result) -> dict[str, Any]:
        figures, counts, span_s = whole.summary, self.counts, float(whole.arrays.status[0].now_s)
        shares: dict[str, Any] = {}
        for figure in SHARES:
            those = {priority: sums[figure] for priority, sums in sorted(self.of_priority.items())}
            shares[figure] = sum(those.values()) / self.requests if self.requests else None
            shares[f"{figure}_by_priority"] = {one: n / self.of_priority[one]["all"] for one, n in those.items()}
        attained = sum(sums["slo_attainment"] for sums in self.of_priority.values())
        gains = np.array(list(self.of_client.values())).reshape(-1, 2)
        is_tdg, engines = whole.scenario.gain.name == "tdg", whole.arrays.engines
        return {
            **figures,
            **UNKNOWN,
            "requests": self.requests,
            "tokens_emitted": counts["num_output_tokens"],
            "gain": self.gain,
            "ideal_gain": self.ideal_gain,
            "gain_ratio": self.gain / self.ideal_gain if self.ideal_gain else None,
            "tdg_ratio": self.gain / self.ideal_gain if self.ideal_gain and is_tdg else None,
            **shares,
            "fairness_by_client": fairness(gains[:, 0], gains[:, 1], np.arange(len(gains))),
            "on_time_token_share": counts["on_time_tokens"] / counts["output_tokens"] if self.requests else None,
            **{name: sketch.quantiles() for name, sketch in self.latencies.items()},
            "throughput_tokens_per_s": counts["num_output_tokens"] / span_s if span_s else 0.0,
            "slo_throughput_per_s": attained / span_s if span_s else 0.0,
            "cached_tokens": counts["cached_tokens"],
            "reroutes": counts["reroutes"],
            **costs_of_pools(
                [pool.costs for pool in whole.scenario.deployment.pools],
                engines["pool"],
                whole.engines["service_s"].to_numpy(),
                engines["busy_s"],
                counts["num_output_tokens"],
            ),
        }
