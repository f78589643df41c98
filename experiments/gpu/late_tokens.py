"""A simulated run whose tokens come out as vLLM's asynchronous scheduling lets them: late before a large batch.

vLLM launches the next batch before it takes in the tokens of the current one. Batches above the largest CUDA graph are
launched kernel by kernel, which takes LAUNCH_S whatever their size (h100.md). So the tokens of batch k come out at

    shown[k] = max(end[k], shown[k - 1] + LAUNCH_S)     if batch k + 1 is larger than the largest graph
    shown[k] = end[k]                                   otherwise

The GPU does not wait, so the batches themselves and their times stay as simulated.
"""

import numpy as np

from servegym.adapters.replay.measuring import Measured
from servegym.adapters.replay.records import FINISHED, Record, Replayed
from servegym.simulator.runs.results import Result

LARGEST_GRAPH = 512  # tokens: vLLM's max_cudagraph_capture_size
LAUNCH_S = 0.028


def shown_s(start_s: np.ndarray, end_s: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """When the tokens of each batch come out, float64[batches]. tokens: of each batch, prefilled and decoded."""
    shown = end_s.copy()
    for k in range(len(end_s) - 1):
        if tokens[k + 1] > LARGEST_GRAPH and start_s[k + 1] <= end_s[k]:  # launched while batch k was computed
            shown[k] = max(end_s[k], (shown[k - 1] if k else 0.0) + LAUNCH_S)
    return np.maximum.accumulate(shown)


def with_late_tokens(result: Result) -> Measured:
    """The run judged by when its tokens come out. Needs its timeline, of one engine; raises ValueError without."""
    events = result.timeline
    if events.empty:
        raise ValueError("a run without a timeline: record_timeline=True")
    kinds, times_s = events.kind.astype(str).to_numpy(), events.time_s.to_numpy()
    start_s, end_s = times_s[kinds == "batch_start"], times_s[kinds == "batch_end"]
    scheduled = np.flatnonzero(kinds == "scheduled")
    batch = np.cumsum(kinds == "batch_start") - 1
    tokens = np.bincount(batch[scheduled], weights=events.tokens.to_numpy()[scheduled], minlength=len(start_s))
    shown = shown_s(start_s, end_s, tokens)
    workload = result.scenario.workload
    token_s: list[list[float]] = [[] for _ in range(len(workload))]
    for event in np.flatnonzero(kinds == "token"):
        token_s[events.request.iat[event]].append(float(shown[np.searchsorted(end_s, times_s[event])]))
    records = []
    for due_s, its_s in zip(workload.table["arrival_s"].tolist(), token_s, strict=True):
        records.append(Record(due_s, due_s, its_s, came_s=due_s))
        records[-1].end(FINISHED)
    return Measured(workload, Replayed(records, float(shown[-1])))
