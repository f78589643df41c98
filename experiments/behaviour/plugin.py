"""What the vLLM plug-in decides, step after step, for an engine that does as it is told; without vLLM."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import servegym
from servegym.adapters.vllm.decision import Decisions, decisions_for
from servegym.adapters.vllm.metrics import Metrics
from servegym.adapters.vllm.settings import Settings
from servegym.baselines.artifact import Artifact, save_artifact
from servegym.errors import ServegymError

DEVICE = "a100-llama3-8b"
BLOCKS, BLOCK_TOKENS, WATERMARK = 400, 16, 4
MOST_TOKENS, MOST_CHUNK, MOST_SEQUENCES = 2048, 1024, 64  # limits of vLLM's own
MOST_OUTPUT = 60  # tokens, of a request: fewer steps
SLOWER = 1.2  # steps take longer than the estimator says, so that it is corrected
LEAST_S = 1e-4


def decisions_of(scheduler: str) -> Decisions:
    """The plug-in, as an artifact with this scheduler sets it up."""
    policy = servegym.scheduler(scheduler)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.json"
        save_artifact(Artifact({policy.kind: policy}, None, {"tpot_slo_s": 0.05}), path)
        settings = Settings(str(path), estimator=DEVICE, decision_limit_s=600.0)
        return decisions_for(settings, Metrics(), BLOCKS, BLOCK_TOKENS, WATERMARK, lambda line: None)


def steps(scheduler: str, workload: servegym.Workload) -> Iterator[Any]:
    """Of each step the time, the rows, their tokens and the requests that gave up memory; at the end what was gained.

    Raises ServegymError where the plug-in decides nothing though requests wait.
    """
    decisions, table = decisions_of(scheduler), workload.table.copy()
    table["output_tokens"] = np.minimum(table["output_tokens"], MOST_OUTPUT)
    mirror, count = decisions.mirror, len(workload.table)
    row_of: dict[int, int] = {}
    computed, emitted, held = np.zeros(count, int), np.zeros(count, int), np.zeros(count, int)
    now_s, arrived = 0.0, 0
    while arrived < count or row_of:
        if not row_of:
            now_s = max(now_s, float(table["arrival_s"][arrived]))
        while arrived < count and table["arrival_s"][arrived] <= now_s:
            row_of[arrived] = decisions.add(as_sent(table[arrived]), float(table["arrival_s"][arrived]), 2**20)
            mirror.join(row_of[arrived])
            arrived += 1
        request_of = {row: request for request, row in row_of.items()}
        plan = decisions.plan(now_s, BLOCKS - int(held.sum()), MOST_TOKENS, MOST_CHUNK, MOST_SEQUENCES)
        if plan is None:
            raise ServegymError(f"{scheduler}: the plug-in decided nothing at {now_s:g} s, with {len(row_of)} requests")
        yield from (now_s, plan.rows, plan.tokens, plan.evicted, plan.reserve_context, plan.watermark_blocks)
        evicted = [request_of[row] for row in plan.evicted.tolist()]
        computed[evicted] = held[evicted] = 0
        batch = [request_of[row] for row in plan.rows.tolist()]
        computed[batch] += plan.tokens
        held[batch] = -(-computed[batch] // BLOCK_TOKENS)
        estimate_s, scale = mirror.settle(
            plan.evicted, plan.rows, plan.tokens, computed[batch].astype("i4"), emitted[batch].astype("i4"), now_s
        )
        took_s = max(SLOWER * estimate_s / scale, LEAST_S)
        now_s += took_s
        mirror.correct(estimate_s, scale, took_s)
        talking = [r for r in batch if computed[r] == table["prompt_tokens"][r] + emitted[r]]
        emitted[talking] += 1
        rows = np.array([row_of[r] for r in talking], "i4")
        mirror.deliver(rows, np.ones(len(rows), "i4"), emitted[talking].astype("i4"), now_s)
        done = [r for r in talking if emitted[r] == table["output_tokens"][r]]
        held[done] = 0
        if done:
            mirror.leave([row_of.pop(r) for r in done], finished=True)
    yield mirror.sums


def as_sent(row: np.record) -> SimpleNamespace:
    """A request as vLLM shows it to the plug-in."""
    terms = {name: float(row[name]) for name in ("ttft_slo_s", "tpot_slo_s", "ttlt_slo_s") if np.isfinite(row[name])}
    return SimpleNamespace(
        num_prompt_tokens=int(row["prompt_tokens"]), max_tokens=int(row["output_tokens"]),
        priority=int(row["priority"]), sampling_params=SimpleNamespace(extra_args=terms),
    )  # fmt: skip
