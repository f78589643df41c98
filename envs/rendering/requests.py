"""Rows of requests in pictures: what a scheduler knows of them, so never their output lengths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from servegym.envs.rendering import scene as s
from servegym.envs.rendering.words import remaining
from servegym.simulator.features.front import has_arrived
from servegym.simulator.runs.simulation import Simulation

IN_BATCH, IN_MEMORY, SUSPENDED, WAITING = range(4)
# context: prompt and output tokens so far, of which `computed` have their KV in the engine and `offloaded` in host
# memory. out: output tokens so far. batch: its tokens in the running (else the last) batch. remain_s: time to the
# deadline of the next token, which is late at 0 or below. decoding: only the last output token is left to compute
# (docs/simulation.md, "Words"). slot: in the next action; -1: in none.
REQUEST = np.dtype(
    [
        (name, "i8")
        for name in ("index", "priority", "context", "computed", "offloaded", "out", "batch", "state", "slot")
    ]
    + [("remain_s", "f8"), ("late", "?"), ("decoding", "?")]
)
COLUMNS = [
    s.Column("request", 118, 9, right=True),
    s.Column("priority", 52, 8, right=True),
    s.Column("context", 78, 10),
    s.Column("tokens", 90, 14, right=True),
    s.Column("out", 36, 6, right=True),
    s.Column("batch", 44, 6, right=True),
    s.Column("", 82, 17),
    s.Column("next deadline", 90, 13, right=True),
]


def rows_of(simulation: Simulation, index: np.ndarray) -> np.ndarray:
    """REQUEST[...] of requests of the workload, with state WAITING and no slot."""
    requests, rows = simulation.arrays.requests[index], np.zeros(len(index), REQUEST)
    rows["index"], rows["priority"], rows["out"] = index, requests["priority"], requests["num_output_tokens"]
    rows["context"] = requests["prompt_tokens"] + rows["out"]
    rows["computed"], rows["offloaded"] = requests["computed_tokens"], requests["offloaded_tokens"]
    rows["state"], rows["slot"] = WAITING, -1
    deadline_s = requests["first_deadline_s"] + rows["out"] * requests["token_interval_s"]
    rows["remain_s"] = deadline_s - simulation.arrays.status[0].now_s
    rows["late"] = rows["remain_s"] <= 0
    rows["decoding"] = (rows["out"] > 0) & (rows["context"] - rows["computed"] - rows["offloaded"] == 1)
    return rows


def rows_of_engine(simulation: Simulation, e: int, slots: Sequence[int] = ()) -> np.ndarray:
    """REQUEST[...] of an engine's queue: the requests in slots, by slot, then the others in order of arrival."""
    engine = simulation.arrays.engines[e]
    queue = simulation.arrays.queues[e][: engine.queue_length]
    rows, requests, entries = rows_of(simulation, queue), simulation.arrays.requests[queue], entries_of(simulation, e)
    tokens = dict(zip(entries["request"].tolist(), entries["tokens"].tolist(), strict=True))
    rows["batch"] = [tokens.get(r, 0) for r in queue.tolist()]
    rows["state"] = np.where(requests["blocks"] > 0, IN_MEMORY, WAITING)
    if engine.batch_length > 0:
        rows["state"][rows["batch"] > 0] = IN_BATCH
    rows["state"][(requests["task"] >= 0) & (requests["task"] != engine.running_task)] = SUSPENDED
    places = {request: slot for slot, request in enumerate(slots)}
    rows["slot"] = [places.get(r, -1) for r in queue.tolist()]
    return rows[np.argsort(np.where(rows["slot"] < 0, len(slots), rows["slot"]), kind="stable")]


def entries_of(simulation: Simulation, e: int) -> np.ndarray:
    """ENTRY[...] of an engine's running batch, else of its last batch; empty if the engine has failed."""
    engine = simulation.arrays.engines[e]
    length = (engine.batch_length or engine.last_batch_length) if engine.up else 0
    batches = simulation.router_state.running if engine.ahead.on else simulation.arrays.entries
    return batches[e][:length]


def longest_prompt(simulation: Simulation) -> int:
    """Tokens of the longest prompt that has arrived: the scale of prompts in pictures."""
    arrays = simulation.arrays
    arrived = has_arrived(arrays)
    if arrays.status[0].deciding_request >= 0:
        arrived[arrays.status[0].deciding_request] = True
    return int(arrays.requests["prompt_tokens"][arrived].max(initial=1))


def requests_table(title: str, rows: np.ndarray, longest_prompt: int, lines: int, most: int) -> s.Table:
    """One row a request; the bar of its context is scaled by the longest prompt."""

    def row(k: int) -> s.Row:
        one = rows[k]
        tone, slot = s.BAD if one["late"] else s.PLAIN, f"[{one['slot']}] " if one["slot"] >= 0 else ""
        parts = [(one["computed"] / one["context"], s.PREFILLS), (one["offloaded"] / one["context"], s.MOVING)]
        batch = s.Words(f"+{one['batch']}" if one["batch"] else "")
        return s.Row(
            [
                s.Words(f"{slot}{one['index']}"),
                s.Words(f"{one['priority']}"),
                s.Bar([(1.0, s.DECODES)] if one["decoding"] else parts, min(1.0, one["context"] / longest_prompt)),
                s.Words(f"{one['context']:,}" if one["decoding"] else f"{one['computed']:,} of {one['context']:,}"),
                s.Words(f"{one['out']}"),
                s.Words("susp.", s.FAINT) if one["state"] == SUSPENDED else batch,
                s.Due(one["remain_s"]),
                s.Words(remaining(one["remain_s"]), tone),
            ],
            tone,
            one["state"] == IN_BATCH,
        )

    return s.Table(title, COLUMNS, len(rows), row, lines, most, late=rows["late"])
