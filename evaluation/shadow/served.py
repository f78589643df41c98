"""What a proxy has logged of the requests it served, as a measured run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd

from servegym.errors import WorkloadError
from servegym.evaluation.measured.runs import Run

NEEDED = ("arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "e2e_s", "tokens_in_time", "outcome", "router")
FINISHED = "finished"
LEAST = 40  # requests: fewer are not enough to fit and to judge


@dataclasses.dataclass(frozen=True)
class Served:
    """run: the finished requests, times from the first arrival. in_time: int[requests], of their tokens.

    left_out: how many others there were, by how they ended; a simulation knows nothing of them.
    """

    run: Run
    in_time: np.ndarray
    left_out: dict[str, int]


def read_served(
    path: Path,
    scheduler: str = "vllm-v1",
    engines: int | None = None,
    router: str | None = None,
    last_s: float | None = None,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 2048,
    kv_blocks: int | None = None,
) -> Served:
    """The requests since the policy was changed last, and of those that came in the last seconds.

    path: a log of `servegym proxy --request-log`. engines, router: None: what the log says. Raises WorkloadError for a
    log that is none, or in which too few requests have finished.
    """
    table = _table(path)
    if last_s is not None:
        table = table[table["arrival_s"] >= table["arrival_s"].max() - last_s]
    changes = np.flatnonzero(table["router"].to_numpy()[1:] != table["router"].to_numpy()[:-1])
    table = table.iloc[changes[-1] + 1 if len(changes) else 0 :]
    done = (table["outcome"] == FINISHED) & (table["output_tokens"] >= 1) & table["ttft_s"].notna()
    left_out = {str(name): int(count) for name, count in table["outcome"][~done].value_counts().items()}
    served = table[done].reset_index(drop=True)
    if len(served) < LEAST:
        raise WorkloadError(
            f"{path}: {len(served)} requests have finished under the policy that runs; it takes {LEAST}"
        )
    found = int(served["engines"].max()) if "engines" in served else 1
    later = (served["output_tokens"] - 1).where(served["output_tokens"] > 1)
    half = np.arange(len(served)) // -(-len(served) // 2) + 1
    requests = served.assign(
        arrival_s=served["arrival_s"] - served["arrival_s"].iloc[0],
        itl_s=(served["e2e_s"] - served["ttft_s"]) / later,
        ttlt_slo_s=served["ttlt_slo_s"].astype(float).fillna(np.inf) if "ttlt_slo_s" in served else np.inf,
        failed=False,
        stage=half,
    )
    run = Run(
        path.stem, "own", "own", 1, engines or found, 1, "", max_num_seqs, max_num_batched_tokens, kv_blocks, requests,
        scheduler=scheduler, router=router or str(served["router"].iloc[-1]),
    )  # fmt: skip
    return Served(run, requests["tokens_in_time"].to_numpy("i8"), left_out)


def _table(path: Path) -> pd.DataFrame:
    """All lines, in order of arrival; a last line that is not complete is still being written."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path} cannot be read: {error}") from None
    rows = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise WorkloadError(f"{path}: line {number} is no JSON object; a log of servegym proxy has one a line")
        rows.append(row)
    table = pd.DataFrame(rows)
    missing = [name for name in NEEDED if name not in table]
    if missing:
        raise WorkloadError(f"{path}: {missing[0]} is missing; a log of servegym proxy has {', '.join(NEEDED)}")
    return table.sort_values("arrival_s", kind="stable").reset_index(drop=True)
