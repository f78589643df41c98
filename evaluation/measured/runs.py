"""Describes measured runs: the requests of each as they came, and the engine that served them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from servegym.evaluation.measured.own_requests import requests_of
from servegym.simulator.features.adapters import Adapters
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.prefixes import Prompts
from servegym.traces.reading import Reading

BLOCK_TOKENS = 16
COLUMNS = (
    "arrival_s", "prompt_tokens", "output_tokens", "priority", "weight", "ttft_slo_s", "tpot_slo_s", "ttlt_slo_s",
    "adapter",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Run:
    """Holds one measured run.

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
    adapters: Adapters | None = None  # of each engine
    notes: tuple[str, ...] = ()  # on what of a file was left out

    @property
    def overloaded(self) -> bool:
        """Return whether requests failed: the client gave up."""
        return bool(self.requests["failed"].any())

    @property
    def stages(self) -> list[str]:
        """Return "all", and each load stage where there are several."""
        numbers = sorted(set(self.requests["stage"]))
        return ["all", *(str(number) for number in numbers)] if len(numbers) > 1 else ["all"]

    def of_stage(self, stage: str) -> np.ndarray:
        """Return which requests are of a stage, bool[requests]."""
        numbers = self.requests["stage"].to_numpy()
        return np.ones(len(numbers), bool) if stage == "all" else numbers == int(stage)

    def workload(self) -> Workload:
        """Return the requests as a workload with these prefixes."""
        columns = {name: self.requests[name].to_numpy() for name in COLUMNS if name in self.requests}
        table = Workload.from_columns(columns, self.name).table
        return Workload(table, self.name, {}, self.prefixes)


def prompts_of(rows: list[np.ndarray]) -> Prompts:
    """Return prompts of BLOCK_TOKENS-token blocks; rows: the numbers of each request's blocks, int[blocks]."""
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    return Prompts(BLOCK_TOKENS, offsets, np.concatenate([*rows, np.zeros(0, "i8")]).astype("i8"))


def mean_itl_s(requests: pd.DataFrame) -> pd.Series:
    """Return the mean time between the tokens of each request, s; nan where it has one."""
    later = (requests["output_tokens"] - 1).where(requests["output_tokens"] > 1)
    return (requests["e2e_s"] - requests["ttft_s"]) / later


def read_own(file: Path, max_num_seqs: int, max_num_batched_tokens: int, reading: Reading | None = None) -> Run:
    """Read a run of one's own from a file of requests, as `own_requests.requests_of` does.

    Requests with the same prompt_id, if there is such a column, have the same prompt. Raises WorkloadError for a
    missing column, and for impossible times and lengths, with their row.
    """
    table, notes = requests_of(file, reading or Reading())
    table = table.sort_values("arrival_s", kind="stable").reset_index(drop=True)
    prefixes = None
    if "prompt_id" in table:
        ids = np.unique(table["prompt_id"], return_inverse=True)[1]
        blocks = (table["prompt_tokens"] // BLOCK_TOKENS).to_numpy(dtype=int)
        most = int(blocks.max()) + 1
        prefixes = prompts_of([one * most + np.arange(count) for one, count in zip(ids, blocks, strict=True)])
    requests = table.assign(stage=0, itl_s=mean_itl_s(table), arrival_s=table["arrival_s"] - table["arrival_s"].iloc[0])
    return Run(
        file.stem, "own", "own", 1, 1, 1, "", max_num_seqs, max_num_batched_tokens, None, requests, prefixes,
        notes=tuple(notes),
    )  # fmt: skip
