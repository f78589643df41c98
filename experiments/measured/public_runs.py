"""The public measured runs under $SERVEGYM_DATA/measured."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from servegym.errors import WorkloadError
from servegym.evaluation.measured.runs import BLOCK_TOKENS, Run, mean_itl_s, prompts_of

PROMPT_BLOCKS = 200  # block numbers reserved for one prompt: more than any prompt has


def folder_of_runs() -> Path:
    """Raises WorkloadError where SERVEGYM_DATA is not set or has no measured runs."""
    root = os.environ.get("SERVEGYM_DATA")
    if not root or not (Path(root) / "measured" / "runs.csv").exists():
        what = f"{root} has no measured/runs.csv" if root else "SERVEGYM_DATA is not set"
        raise WorkloadError(f"{what}; it must name the folder that holds measured/")
    return Path(root) / "measured"


def read_runs(folder: Path) -> Iterator[Run]:
    """The runs of a folder whose requests are there, in the order of runs.csv."""
    table = pd.read_csv(folder / "runs.csv")
    for row in table[(table["stage"] == "all") & table["requests_file"].notna()].to_dict("records"):
        file = folder / str(row["requests_file"])
        if file.name.startswith("requests_") and file.exists():
            yield _run(row, pd.read_parquet(file))


def _run(row: dict[str, Any], requests: pd.DataFrame) -> Run:
    in_process = "queued_s" in requests
    if in_process:  # published from queued_s, when the engine took note; here from the arrival, as a user has it
        requests = requests.assign(
            ttft_s=requests["ttft_from_arrival_s"], e2e_s=requests["last_token_s"] - requests["arrival_s"]
        )
        rows = [np.asarray(blocks) for blocks in requests["prefix_blocks"]]
        prefixes = prompts_of(rows)
    else:
        numbers = zip(requests["prompt_id"], requests["prompt_tokens"] // BLOCK_TOKENS, strict=True)
        prefixes = prompts_of([prompt * PROMPT_BLOCKS + np.arange(blocks) for prompt, blocks in numbers])
    known = {name: requests.get(name, 0) for name in ("stage", "failed")}
    requests = requests.assign(**known, itl_s=mean_itl_s(requests))
    columns = ["stage", "arrival_s", "prompt_tokens", "output_tokens", "failed", "ttft_s", "itl_s", "e2e_s"]
    return Run(
        name=row["id"],
        gpu=row["gpu"],
        model=row["model"],
        tensor_parallel=int(row["tp"]),
        engines=int(row["dp"]),
        expert_parallel=1 if np.isnan(row["ep"]) else int(row["ep"]),
        engine_version=str(row["engine_version"]),
        max_num_seqs=int(row["max_num_seqs"]),
        max_num_batched_tokens=int(row["max_num_batched_tokens"]),
        kv_blocks=None if np.isnan(row["kv_blocks"]) else int(row["kv_blocks"]),
        requests=requests[columns].astype({"failed": bool, "stage": int}),
        prefixes=prefixes,
        timeout_s=np.inf if np.isnan(row["client_timeout_s"]) else float(row["client_timeout_s"]),
        over_http=not in_process,
        asynchronous="async scheduling on" in str(row["note"]),
        lockstep=int(row["dp"]) if row["ep"] > 1 else 1,
    )
