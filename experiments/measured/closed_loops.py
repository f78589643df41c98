"""Measured closed loops: which points of closed_loop.parquet are simulated, and what is known of each one."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.measured.closed_settings import MODELS, REQUESTS_PER_CLIENT, settings_of
from servegym.errors import WorkloadError
from servegym.evaluation.measured.runs import BLOCK_TOKENS
from servegym.simulator.features.session_dependencies import NO_TURN, SessionDependencies
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.prefixes import Prompts

FILE = "closed_loop.parquet"
GPUS = {"h100_sxm": "h100", "h200_sxm": "h200"}
PRECISIONS = ("fp8", "fp4")  # as stated; of fp4 only the experts have 4 bits
SAME = ["model", "gpu", "gpus", "moe_ep_size", "isl", "osl", "concurrency", "ttft_s", "tpot_s"]  # measured once


@dataclass(frozen=True)
class Loop:
    """A measured point, and its engine as it is taken to have been.

    engine_version: "": not stated. asynchronous: asynchronous scheduling is stated. precision, kv_precision: of
    weights, and of keys and values; precision_stated: whether both are. experts: whether the model has them;
    expert_parallel: GPUs that they are spread over whole; skew: of their routing, 0: even. shortest_share: lengths are
    uniform from this fraction of isl and osl up to isl and osl. prompts: how many different ones are sent in turn, and
    found in the cache; 0: all differ. apart_s: mean of the time from a client to the queue, exponential; 0: it takes
    none, so that clients stay in step.
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
    experts: bool = False
    expert_parallel: int = 1
    skew: float = 0.0

    @property
    def configuration(self) -> str:
        """What a user chooses, beside the number of clients."""
        spread = f" ep{self.expert_parallel}" if self.expert_parallel > 1 else ""
        return f"{self.gpu} tp{self.tensor_parallel}{spread} {self.precision}"

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
            turns = SessionDependencies(np.where(after < 0, NO_TURN, after), later_s)
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
    (
        "experts, if any, on all its GPUs: cut, or spread whole",
        lambda table: (
            (table["kind"] == "dense") | (table["moe_tp_size"].fillna(0) * table["moe_ep_size"] == table["gpus"])
        ),
    ),
    ("attention that a profile can have (not latent: Kimi-K2.5)", lambda table: table["model"].isin(list(MODELS))),
    (
        "weights as stated of 8 or 4 bits, or not stated",
        lambda table: table["precision"].isna() | table["precision"].isin(PRECISIONS),
    ),
    ("not the same measurement from another file", lambda table: ~table.duplicated(SAME)),
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
    if not (folder / FILE).exists():
        raise WorkloadError(f"{folder} has no {FILE}")
    chosen, counts = select(pd.read_parquet(folder / FILE))
    return [loop_of(row) for row in chosen.to_dict("records")], counts


def loop_of(row: dict[str, Any]) -> Loop:
    """A row of the file with what its source says of the engine (`closed_settings`)."""
    of_nvidia = str(row["collection"]).startswith("aic-")
    stated = row["precision"] in PRECISIONS
    clients = int(row["concurrency"])
    settings = settings_of(row["model"], of_nvidia, row["gpu"], clients)
    return Loop(
        name=row["id"],
        series=row["series"],
        source="NVIDIA" if of_nvidia else "InferenceX",
        gpu=GPUS[row["gpu"]],
        model=row["model"],
        tensor_parallel=int(row["tp_size"]),
        precision=MODELS[row["model"]].stored if stated else "bf16",
        kv_precision=settings.kv_precision,
        precision_stated=stated and not of_nvidia,
        isl=int(row["isl"]),
        osl=int(row["osl"]),
        clients=clients,
        ttft_s=float(row["ttft_s"]),
        tpot_s=float(row["tpot_s"]),
        engine_version=str(row["backend_version"]) if isinstance(row["backend_version"], str) else "",
        asynchronous=settings.asynchronous,
        batch_tokens=settings.batch_tokens,
        sequences=settings.sequences,
        shortest_share=settings.shortest_share,
        experts=row["kind"] == "moe",
        expert_parallel=max(1, int(row["moe_ep_size"])) if row["kind"] == "moe" else 1,
    )
