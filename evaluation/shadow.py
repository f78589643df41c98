"""What other policies would have gained, simulated on a profile that is fitted to what a proxy has logged.

The first half of the requests calibrates: a factor of batch times, CPU time of a step and the time between client and
queue are fitted to their mean latencies. The second half judges: simulated under the policy that ran, it shows how far
off the simulation is; simulated under the others, what they would have gained.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from servegym.errors import WorkloadError, why_unread
from servegym.evaluation.intervals import Interval, student_interval
from servegym.evaluation.measured.engine_terms import EngineTerms
from servegym.evaluation.measured.fitting import Fitted, fit
from servegym.evaluation.measured.own_requests import TIMES, checked_times
from servegym.evaluation.measured.runs import Run, mean_itl_s
from servegym.evaluation.measured.serving import scenario_of
from servegym.latency_models.profile import Profile
from servegym.simulator.features.adapters import Adapters
from servegym.simulator.policies.gains import Gain
from servegym.simulator.runs.simulation import Simulation
from servegym.traces.cells import Chunk
from servegym.traces.files import field_of
from servegym.traces.reading import NONE, Reading

NEEDED = ("arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "e2e_s", "ttft_slo_s", "tpot_slo_s")
OPTIONAL = (
    "ttlt_slo_s", "priority", "weight", "adapter", "tokens_in_time", "outcome", "router", "engines",
)  # fmt: skip
TEXTS = ("adapter", "outcome", "router")  # all others are numbers
FINISHED, UNKNOWN = "finished", "min-load"  # an outcome; the router of a log that names none
LEAST = 40  # requests: fewer are not enough to fit and to judge
NOTHING_BESIDE = EngineTerms("none", "the fitted profile has all")
GAIN = Gain(first_weight=1.0)  # TDG, a first token worth as much as any
BLOCKS = 10  # of successive requests; each is one observation


@dataclasses.dataclass(frozen=True)
class Served:
    """The requests that a proxy served.

    run: the finished ones, with times from the first arrival. in_time: int[requests], how many tokens of each came in
    time. left_out: number of other requests by outcome, which a simulation cannot reproduce.
    """

    run: Run
    in_time: np.ndarray
    left_out: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A scheduler of the engines and a router before them; None: the one that runs."""

    scheduler: str | None = None
    router: str | None = None

    def of(self, run: Run) -> Run:
        """Return the run under this candidate."""
        return dataclasses.replace(run, scheduler=self.scheduler or run.scheduler, router=self.router or run.router)

    @property
    def label(self) -> str:
        return " + ".join(part for part in (self.scheduler, self.router) if part) or "as it runs"


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Figures of the second half of the requests under a policy.

    tdg: its TDG ratio. ttft_s, tpot_s: means. against: mean difference of the TDG ratio to the policy that runs, by
    blocks. beyond_error: whether that whole interval is farther from 0 than the simulation was from what was measured.
    """

    label: str
    tdg: float
    ttft_s: float
    tpot_s: float
    against: Interval
    beyond_error: bool


@dataclasses.dataclass(frozen=True)
class Shadow:
    """measured: of the policy that ran. simulated: of the same on the fitted profile. error: simulated less measured,
    by blocks. terms: the fitted ones. requests: number of those judged."""

    terms: Fitted
    requests: int
    measured: Estimate
    simulated: Estimate
    error: Interval
    others: tuple[Estimate, ...]


def shadow(served: Served, profile: Profile, candidates: Sequence[Candidate]) -> Shadow:
    """Estimate what each candidate would have gained.

    Raises ServegymError for unknown policies, and as `fit` does.
    """
    run = served.run
    terms = fit([(run, profile, NOTHING_BESIDE)], stages=["1"])
    fitted, judged = terms.within(profile), run.of_stage("2")
    blocks = np.arange(judged.sum()) * BLOCKS // judged.sum()
    weight = run.requests["weight"].to_numpy(float) if "weight" in run.requests else np.ones(len(judged))
    tokens = run.requests["output_tokens"].to_numpy(float)
    there = run.requests.assign(gain=weight * served.in_time, ideal_gain=weight * tokens, tpot_s=run.requests["itl_s"])

    def simulated_under(candidate: Candidate) -> pd.DataFrame:
        return Simulation(scenario_of(candidate.of(run), fitted, NOTHING_BESIDE, gain=GAIN)).run().requests[judged]

    measured, here = there[judged], simulated_under(Candidate())
    ratios, simulated = _by_block(measured, blocks), _by_block(here, blocks)
    error = student_interval(simulated - ratios)
    margin = abs(error.mean)

    def estimate(label: str, requests: pd.DataFrame, base: np.ndarray) -> Estimate:
        against = student_interval(_by_block(requests, blocks) - base)
        beyond = max(against.low, -against.high) > margin
        tdg = float(requests["gain"].sum() / requests["ideal_gain"].sum())
        return Estimate(label, tdg, float(requests["ttft_s"].mean()), float(requests["tpot_s"].mean()), against, beyond)

    others = tuple(estimate(candidate.label, simulated_under(candidate), simulated) for candidate in candidates)
    label = f"{run.scheduler} + {run.router}" if run.engines > 1 else run.scheduler
    return Shadow(
        terms, int(judged.sum()), estimate(f"{label}, measured", measured, ratios),
        estimate(f"{label}, simulated", here, simulated), error, others,
    )  # fmt: skip


def _by_block(requests: pd.DataFrame, blocks: np.ndarray) -> np.ndarray:
    """Return float64[blocks]: the TDG ratio of each block of requests."""
    gain, ideal = (np.bincount(blocks, requests[name].to_numpy(float)) for name in ("gain", "ideal_gain"))
    return np.asarray(gain / ideal)


def read_served(
    path: Path,
    scheduler: str = "vllm-v1",
    engines: int | None = None,
    router: str | None = None,
    last_s: float | None = None,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 2048,
    kv_blocks: int | None = None,
    adapters: Adapters | None = None,
    reading: Reading | None = None,
) -> Served:
    """Read the requests since the policy was last changed, of those that arrived in the last `last_s` seconds.

    path: a log of `servegym proxy --request-log`, or one of others with NEEDED, which `reading` may name. Without
    outcomes all have finished; without tokens_in_time the tokens of an answer are taken to come evenly. engines,
    router: None: as logged. adapters: of an engine. Raises WorkloadError for an invalid log, or one in which too few
    requests have finished.
    """
    table = _table(path, reading or Reading())
    if last_s is not None:
        table = table[table["arrival_s"] >= table["arrival_s"].max() - last_s]
    changes = np.flatnonzero(table["router"].to_numpy()[1:] != table["router"].to_numpy()[:-1])
    table = table.iloc[changes[-1] + 1 if len(changes) else 0 :]
    done = _finished(table)
    left_out = {str(name): int(count) for name, count in table["outcome"][~done].value_counts().items()}
    served = table[done].reset_index(drop=True)
    if len(served) < LEAST:
        raise WorkloadError(
            f"{path}: {len(served)} requests have finished under the policy that runs; it takes {LEAST}"
        )
    logged = int(served["engines"].max()) if "engines" in served else 1
    requests = served.assign(
        arrival_s=served["arrival_s"] - served["arrival_s"].iloc[0],
        itl_s=mean_itl_s(served),
        ttlt_slo_s=served["ttlt_slo_s"].astype(float).fillna(np.inf) if "ttlt_slo_s" in served else np.inf,
        adapter=1 + pd.factorize(served["adapter"].replace(["", "0", 0], None))[0] if "adapter" in served else 0,
        failed=False,
        stage=np.arange(len(served)) // -(-len(served) // 2) + 1,  # the first half is 1, the second 2
    )
    run = Run(
        path.stem, "own", "own", 1, engines or logged, 1, "", max_num_seqs, max_num_batched_tokens, kv_blocks, requests,
        scheduler=scheduler, router=router or str(served["router"].iloc[-1]), adapters=adapters,
    )  # fmt: skip
    in_time = requests["tokens_in_time"] if "tokens_in_time" in requests else _evenly_in_time(requests)
    return Served(run, in_time.to_numpy("i8"), left_out)


def _evenly_in_time(requests: pd.DataFrame) -> pd.Series:
    """Return how many tokens of each request came in time, if they came evenly: token k, from 0 on, ttft + k itl after
    the arrival, is due at ttft_slo + k tpot_slo, or all at the TTLT SLO."""
    counts = requests["output_tokens"].to_numpy("i8")
    of, k = np.repeat(np.arange(len(counts)), counts), np.concatenate([np.arange(count) for count in counts])
    names = ["ttft_s", "itl_s", "ttft_slo_s", "tpot_slo_s", "ttlt_slo_s"]
    ttft_s, itl_s, ttft_slo_s, tpot_slo_s, ttlt_slo_s = requests[names].to_numpy(float)[of].T
    due_s = np.where(np.isinf(ttlt_slo_s), ttft_slo_s + k * tpot_slo_s, ttlt_slo_s)
    return pd.Series(np.bincount(of, ttft_s + k * np.nan_to_num(itl_s) <= due_s))


def _finished(table: pd.DataFrame) -> pd.Series:
    return (table["outcome"] == FINISHED) & (table["output_tokens"] >= 1) & table["ttft_s"].notna()


def _table(path: Path, reading: Reading) -> pd.DataFrame:
    """Read all lines in order of arrival, but for an incomplete last line, which is still being written."""
    reading.check_known((*NEEDED, *OPTIONAL))
    named = {name: column for name, column in reading.names.items() if column != NONE}
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path} cannot be read: {why_unread(error)}") from None
    rows = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise WorkloadError(f"{path}: line {number} is no JSON object; a log of servegym proxy has one a line")
        rows.append(row | {name: field_of(row, column) for name, column in named.items()})
    table = pd.DataFrame(rows)
    for name, column in named.items():
        if all(row[name] is None for row in rows):
            raise WorkloadError(f"{path} has no field {column}, which --columns names for {name}")
    missing = [name for name in NEEDED if name not in table]
    if missing:
        raise WorkloadError(
            f"{path}: {missing[0]} is missing; a log has {', '.join(NEEDED)}, or --columns says which columns these are"
        )
    for name, value in (("outcome", FINISHED), ("router", UNKNOWN)):
        table[name] = table[name].fillna(value) if name in table else value
    chunk = Chunk(str(path), 1, table)
    for name in table.columns.intersection([*NEEDED, *OPTIONAL]).difference([*TEXTS, *TIMES]):
        table[name] = chunk.numbers(name, "a number", np.nan)
    table = table.assign(**checked_times(chunk, _finished(table).to_numpy(), reading))
    return table.sort_values("arrival_s", kind="stable").reset_index(drop=True)
