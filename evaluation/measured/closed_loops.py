"""Measured closed loops: which points of closed_loop.parquet are simulated, and what each one's engine was set to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from servegym.errors import WorkloadError
from servegym.evaluation.measured.runs import BLOCK_TOKENS
from servegym.simulator.prefixes import Prompts
from servegym.simulator.turns import NOBODY, Turns
from servegym.simulator.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

FILE = "closed_loop.parquet"
GPUS = {"h100_sxm": "h100", "h200_sxm": "h200"}
MODELS = {  # as measured -> as models.csv has the shape
    "Qwen/Qwen3-32B": "Qwen/Qwen3-32B",
    "meta-llama/Llama-3.1-70B": "meta-llama/Llama-3.1-70B-Instruct",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Llama-3.1-8B-Instruct",
}
REQUESTS_PER_CLIENT = 10
SHORTEST_SHARE = 0.8  # InferenceX: lengths are uniform from so much of isl and osl
BATCH_TOKENS, SEQUENCES = 8192, 1024
SETTINGS = {
    "InferenceX": "benchmarks/70b_fp8_h100_slurm.sh and 70b_fp8_h200_slurm.sh (SemiAnalysisAI/InferenceX 409e9a4, and "
    "its fork faradawn/InferenceMAX c198b20): 8-bit keys and values, asynchronous scheduling, no prefix caching, "
    "max_num_batched_tokens 8192, max_num_seqs the number of clients, 10 requests a client, lengths uniform from 80 % "
    "of isl and osl. Whether exactly these ran on the day is not recorded",
    "NVIDIA": "nothing but vLLM 0.12.0, tensor parallelism and lengths is stated: vLLM's defaults for a server on such "
    "GPUs (max_num_batched_tokens 8192, max_num_seqs 1024; EngineArgs), weights as the checkpoint of that name has "
    "them, keys and values in 16 bits, fixed lengths, 10 requests a client",
}


@dataclass(frozen=True)
class Loop:
    """A measured point, and its engine as it is taken to have been.

    engine_version: "": not stated. asynchronous: stated to be scheduled so. precision, kv_precision: of weights, and of
    keys and values; precision_stated: whether both are. shortest_share: lengths are uniform from so much of isl and
    osl. prompts: how many different ones are sent in turn, and found in the cache; 0: all differ. apart_s: mean of the
    time from a client to the queue, exponential; 0: it takes none, so that clients stay in step.
    """

    name: str
    series: str
    source: str
    gpu: str
    model: str
    tensor_parallel: int
    precision: str
    kv_precision: str
    precision_stated: bool
    isl: int
    osl: int
    clients: int
    ttft_s: float
    tpot_s: float
    engine_version: str
    asynchronous: bool
    batch_tokens: int
    sequences: int
    shortest_share: float
    prompts: int = 0
    apart_s: float = 0.0

    @property
    def configuration(self) -> str:
        """What a user chooses, beside the number of clients."""
        return f"{self.gpu} tp{self.tensor_parallel} {self.precision}"

    def workload(self, seed: int = 0) -> Workload:
        """All requests at time 0, in the order in which clients send them.

        With apart_s each client's requests follow each other: request i the one of i - clients, so much later. (Then
        the first ones have arrival times, in order.)
        """
        random = np.random.default_rng(seed)
        count = REQUESTS_PER_CLIENT * self.clients
        columns = {
            name: random.integers(int(self.shortest_share * most), most + 1, count)
            for name, most in (("prompt_tokens", self.isl), ("output_tokens", self.osl))
        }
        turns = None
        if self.apart_s:
            later_s = self.later_s()
            after = np.arange(count) - self.clients
            turns = Turns(np.where(after < 0, NOBODY, after), later_s)
            columns["arrival_s"] = np.where(after < 0, later_s, np.nan)
        table = Workload.from_columns({"arrival_s": 0.0, **columns}, self.name, turns=turns)
        return Workload(table.table, self.name, {}, self._prefixes(), table.turns) if self.prompts else table

    def later_s(self) -> np.ndarray:
        """From a client to the queue, of each request; those of the first ones in order."""
        later_s = np.random.default_rng(1).exponential(self.apart_s, REQUESTS_PER_CLIENT * self.clients)
        later_s[: self.clients].sort()
        return later_s

    def _prefixes(self) -> Prompts:
        blocks = self.isl // BLOCK_TOKENS
        numbers = np.arange(REQUESTS_PER_CLIENT * self.clients) % self.prompts
        offsets = np.arange(len(numbers) + 1) * blocks
        return Prompts(BLOCK_TOKENS, offsets, (numbers[:, None] * blocks + np.arange(blocks)).ravel())


CLAUSES: tuple[tuple[str, Callable[[pd.DataFrame], pd.Series]], ...] = (
    ("served by vLLM", lambda table: table["backend"] == "vllm"),
    ("a dense model", lambda table: table["kind"] == "dense"),
    ("prefill and decode on the same GPUs", lambda table: table["mode"] == "agg"),
    ("H100 or H200", lambda table: table["gpu"].isin(list(GPUS))),
    ("not marked unfinished by the source", lambda table: ~table["wip"]),
    ("number of clients stated", lambda table: table["concurrency"].notna()),
    (
        "one engine, tensor parallel on all its GPUs",
        lambda table: (
            (table["tp_size"] == table["gpus"]) & (table["pp_size"] == 1) & (table["attention_dp_size"].fillna(1) == 1)
        ),
    ),
    ("shape of the model known", lambda table: table["model"].isin(list(MODELS))),
    ("weights of 16 or 8 bits, or not stated", lambda table: table["precision"].isna() | (table["precision"] == "fp8")),
)


def select(table: pd.DataFrame) -> tuple[pd.DataFrame, list[tuple[str, int, int]]]:
    """The points that all CLAUSES hold for, and of each clause in turn how many it leaves out, and how many stay."""
    counts = []
    for what, holds in CLAUSES:
        kept = table[holds(table).astype(bool)]
        counts.append((what, len(table) - len(kept), len(kept)))
        table = kept
    return table, counts


def read_loops(folder: Path) -> tuple[list[Loop], list[tuple[str, int, int]]]:
    """The selected points of a folder, in the order of the file, and the counts of `select`.

    Raises WorkloadError where the folder has no such file.
    """
    import pandas as pd

    if not (folder / FILE).exists():
        raise WorkloadError(f"{folder} has no {FILE}")
    chosen, counts = select(pd.read_parquet(folder / FILE))
    return [loop_of(row) for row in chosen.to_dict("records")], counts


def loop_of(row: dict[str, Any]) -> Loop:
    """A row of the file with what its source says of the engine (SETTINGS)."""
    of_nvidia = str(row["collection"]).startswith("aic-")
    stated = row["precision"] == "fp8"
    clients = int(row["concurrency"])
    return Loop(
        name=row["id"],
        series=row["series"],
        source="NVIDIA" if of_nvidia else "InferenceX",
        gpu=GPUS[row["gpu"]],
        model=row["model"],
        tensor_parallel=int(row["tp_size"]),
        precision="fp8" if stated else "bf16",
        kv_precision="bf16" if of_nvidia else "fp8",
        precision_stated=stated and not of_nvidia,
        isl=int(row["isl"]),
        osl=int(row["osl"]),
        clients=clients,
        ttft_s=float(row["ttft_s"]),
        tpot_s=float(row["tpot_s"]),
        engine_version=str(row["backend_version"]) if isinstance(row["backend_version"], str) else "",
        asynchronous=not of_nvidia,
        batch_tokens=BATCH_TOKENS,
        sequences=SEQUENCES if of_nvidia else clients,
        shortest_share=1.0 if of_nvidia else SHORTEST_SHARE,
    )
