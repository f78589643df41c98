"""Measured runs: the requests of each as they came, and the engine that served them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from servegym.errors import WorkloadError
from servegym.evaluation.measured.own_requests import requests_of
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.prefixes import Prompts
from servegym.traces.reading import Reading

if TYPE_CHECKING:
    import pandas as pd

BLOCK_TOKENS = 16
PROMPT_BLOCKS = 200  # block numbers reserved for one prompt: more than any prompt has
COLUMNS = (
    "arrival_s", "prompt_tokens", "output_tokens", "priority", "weight", "ttft_slo_s", "tpot_slo_s", "ttlt_slo_s",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Run:
    """One measured run.

    gpu, model, tensor_parallel, engines, expert_parallel: what served it. kv_blocks: of an engine; None: not recorded.
    requests: a table in order of arrival with stage, arrival_s, prompt_tokens, output_tokens, failed, and ttft_s, itl_s
    and e2e_s as measured, from the arrival. prefixes: which prompts begin alike; None: not known.
    timeout_s: after which the client gave up. over_http: whether times hold a server's front end.
    asynchronous: whether it is recorded that scheduling was so. scheduler, router: of its engines, and before them,
    where there are several.
    """

    name: str
    gpu: str
    model: str
    tensor_parallel: int
    engines: int
    expert_parallel: int
    engine_version: str
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_blocks: int | None
    requests: pd.DataFrame
    prefixes: Prompts | None = None
    timeout_s: float = np.inf
    over_http: bool = True
    asynchronous: bool = False
    lockstep: int = 1  # engines that wait for each other: data-parallel ranks over which experts are spread
    scheduler: str = "vllm-v1"
    router: str = "min-load"  # of data-parallel engines: vLLM counts what waits and runs
    notes: tuple[str, ...] = ()  # on what of a file was left out

    @property
    def overloaded(self) -> bool:
        """Requests failed: the client gave up."""
        return bool(self.requests["failed"].any())

    @property
    def stages(self) -> list[str]:
        """ "all", and each load stage where there are several."""
        numbers = sorted(set(self.requests["stage"]))
        return ["all", *(str(number) for number in numbers)] if len(numbers) > 1 else ["all"]

    def of_stage(self, stage: str) -> np.ndarray:
        """bool[requests]."""
        numbers = self.requests["stage"].to_numpy()
        return np.ones(len(numbers), bool) if stage == "all" else numbers == int(stage)

    def workload(self) -> Workload:
        columns = {name: self.requests[name].to_numpy() for name in COLUMNS if name in self.requests}
        table = Workload.from_columns(columns, self.name).table
        return Workload(table, self.name, {}, self.prefixes)


def folder_of_runs() -> Path:
    """Raises WorkloadError where SERVEGYM_DATA is not set or has no measured runs."""
    root = os.environ.get("SERVEGYM_DATA")
    if not root or not (Path(root) / "measured" / "runs.csv").exists():
        what = f"{root} has no measured/runs.csv" if root else "SERVEGYM_DATA is not set"
        raise WorkloadError(f"{what}; it must name the folder that holds measured/, or name a file of requests")
    return Path(root) / "measured"


def read_runs(folder: Path) -> Iterator[Run]:
    """The runs of a folder whose requests are there, in the order of runs.csv."""
    import pandas as pd

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
        prefixes = _prompts(rows)
    else:
        numbers = zip(requests["prompt_id"], requests["prompt_tokens"] // BLOCK_TOKENS, strict=True)
        prefixes = _prompts([prompt * PROMPT_BLOCKS + np.arange(blocks) for prompt, blocks in numbers])
    known = {name: requests.get(name, 0) for name in ("stage", "failed")}
    requests = requests.assign(**known, itl_s=_itl_s(requests))
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


def _prompts(rows: list[np.ndarray]) -> Prompts:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    return Prompts(BLOCK_TOKENS, offsets, np.concatenate([*rows, np.zeros(0, "i8")]).astype("i8"))


def _itl_s(requests: pd.DataFrame) -> pd.Series:
    """Mean time between the tokens of a request; nan where it has one."""
    later = (requests["output_tokens"] - 1).where(requests["output_tokens"] > 1)
    return (requests["e2e_s"] - requests["ttft_s"]) / later


def read_own(file: Path, max_num_seqs: int, max_num_batched_tokens: int, reading: Reading | None = None) -> Run:
    """A run of one's own from a file of requests, as `own_requests.requests_of` reads it, and prompt_id if there is.

    prompt_id: requests with the same have the same prompt. Raises WorkloadError for a column that is missing, and for
    times and lengths that cannot be, with their row.
    """
    table, notes = requests_of(file, reading or Reading())
    table = table.sort_values("arrival_s", kind="stable").reset_index(drop=True)
    prefixes = None
    if "prompt_id" in table:
        ids = np.unique(table["prompt_id"], return_inverse=True)[1]
        blocks = (table["prompt_tokens"] // BLOCK_TOKENS).to_numpy(dtype=int)
        most = int(blocks.max()) + 1
        prefixes = _prompts([one * most + np.arange(count) for one, count in zip(ids, blocks, strict=True)])
    requests = table.assign(stage=0, itl_s=_itl_s(table), arrival_s=table["arrival_s"] - table["arrival_s"].iloc[0])
    return Run(
        file.stem, "own", "own", 1, 1, 1, "", max_num_seqs, max_num_batched_tokens, None, requests, prefixes,
        notes=tuple(notes),
    )  # fmt: skip
