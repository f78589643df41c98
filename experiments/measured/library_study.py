"""Closed loops simulated on aiconfigurator-core's steps, beside its own prediction of the same points: of latent or
linear attention, of vLLM on Blackwell GPUs, and of SGLang and TensorRT-LLM."""

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.measured.closed_loops import FILE, GPUS, SAME, Loop
from experiments.measured.closed_settings import BATCH_TOKENS, REQUESTS_PER_CLIENT, SEQUENCES, SHORTEST_SHARE
from experiments.measured.closed_study import scenario_of
from experiments.measured.known_terms import ASYNCHRONOUS, step_terms
from experiments.measured.ttft_parts import Parts, simulated_parts
from servegym.errors import ProfileError
from servegym.evaluation.measured.serving import VLLM, with_terms
from servegym.latency_models.profile import Profile, parse_profile
from servegym.latency_models.step_models.library import arguments, library_version, module, quietly
from servegym.latency_models.step_models.naming import Served
from servegym.latency_models.step_models.profiles import build
from servegym.simulator.runs.simulation import Simulation

# The library's names, and the option `weights` for each precision that a point states; None: the checkpoint's own.
MODELS: dict[str, tuple[str, dict[str, str | None]]] = {
    "deepseek-ai/DeepSeek-R1": ("deepseek-ai/DeepSeek-R1", {"fp8": None, "fp4": "nvfp4"}),
    "deepseek-ai/DeepSeek-V3": ("deepseek-ai/DeepSeek-V3", {"fp8": None, "fp4": "nvfp4"}),
    "moonshotai/Kimi-K2.5": ("moonshotai/Kimi-K2.5", {"int4": None, "fp4": "nvfp4"}),
    "zhipuai/GLM-5": ("zai-org/GLM-5", {"fp8": "fp8_block"}),
    "Qwen/Qwen3.5-397B-A17B": ("Qwen/Qwen3.5-397B-A17B", {"bf16": None, "fp8": "fp8_block", "fp4": "nvfp4"}),
}
# Of the Blackwell GPUs: models of other kinds too.
OTHERS: dict[str, tuple[str, dict[str, str | None]]] = {
    "meta-llama/Llama-3.1-70B": ("meta-llama/Meta-Llama-3.1-70B", {"fp8": "fp8", "fp4": "nvfp4"}),
    "MiniMaxAI/MiniMax-M2.5": ("MiniMaxAI/MiniMax-M2.5", {"fp8": None, "fp4": "nvfp4"}),
    "openai/gpt-oss-120b": ("openai/gpt-oss-120b", {"fp4": None}),
}
# Of SGLang and TensorRT-LLM: those besides.
FURTHER: dict[str, tuple[str, dict[str, str | None]]] = {
    "meta-llama/Llama-3.1-8B-Instruct": ("meta-llama/Meta-Llama-3.1-8B", {"fp8": "fp8"}),
    "Qwen/Qwen3-32B": ("Qwen/Qwen3-32B", {"fp8": "fp8"}),
    "Qwen/Qwen3-235B-A22B-FP8": ("Qwen/Qwen3-235B-A22B-FP8", {"fp8": None}),
    "nvidia/Qwen3-32B-NVFP4": ("Qwen/Qwen3-32B", {"fp4": "nvfp4"}),
    "nvidia/DeepSeek-R1-NVFP4": ("deepseek-ai/DeepSeek-R1", {"fp4": "nvfp4"}),
    "nvidia/DeepSeek-V3.1-NVFP4": ("deepseek-ai/DeepSeek-V3", {"fp4": "nvfp4"}),
}
NAMED = MODELS | OTHERS | FURTHER
BLACKWELL = ("b200_sxm", "b300_sxm")
PREFILLS_FIRST = "vllm-fcfs"
# SGLang runs a batch of prefills where it can, and decodes where not (Scheduler.get_next_batch_to_run; without
# --enable-mixed-chunk); TensorRT-LLM batches them together, as vLLM does.
ORDERS = {"sglang": PREFILLS_FIRST}
MOST_TIMELINE_TOKENS = 5_000_000  # of a run whose timeline is kept: 200 MB
TWINS = {"deepseek-ai/DeepSeek-R1": "deepseek-ai/DeepSeek-V3"}  # one shape: some points are listed under both names
MOST_GPUS = 8


def same_as_before(table: pd.DataFrame) -> pd.Series:
    return table.replace({"model": TWINS}).duplicated([*SAME, "backend"])


Clauses = tuple[tuple[str, Callable[["pd.DataFrame"], "pd.Series"]], ...]
CLAUSES: Clauses = (
    ("latent or linear attention", lambda table: table["model"].isin(list(MODELS))),
    ("H100 or H200", lambda table: table["gpu"].isin(list(GPUS))),
    ("prefill and decode on the same GPUs", lambda table: table["mode"] == "agg"),
    ("not marked unfinished by the source", lambda table: ~table["wip"]),
    ("number of clients and precision stated", lambda table: table["concurrency"].notna() & table["precision"].notna()),
    (
        "one engine, tensor parallel on all its GPUs",
        lambda table: (
            (table["tp_size"] == table["gpus"]) & (table["pp_size"] == 1) & (table["attention_dp_size"].fillna(1) == 1)
        ),
    ),
    (f"{MOST_GPUS} GPUs at most", lambda table: table["gpus"] <= MOST_GPUS),
    (
        "experts on all its GPUs: cut, or spread whole",
        lambda table: table["moe_tp_size"].fillna(0) * table["moe_ep_size"] == table["gpus"],
    ),
    ("not the same measurement from another file, or under its other name", lambda table: ~same_as_before(table)),
)
BLACKWELL_CLAUSES: Clauses = (
    ("B200 or B300", lambda table: table["gpu"].isin(BLACKWELL)),
    ("served by vLLM", lambda table: table["backend"] == "vllm"),
    ("a model that the library may have tables for", lambda table: table["model"].isin([*MODELS, *OTHERS])),
    *CLAUSES[2:],
)


OTHER_ENGINES_CLAUSES: Clauses = (
    ("served by SGLang or TensorRT-LLM", lambda table: table["backend"].isin(["sglang", "trtllm"])),
    ("not on the page of latent and linear attention", lambda table: ~(CLAUSES[0][1](table) & CLAUSES[1][1](table))),
    *CLAUSES[2:7],
    (
        "experts, if any, on all its GPUs: cut, or spread whole",
        lambda table: (table["kind"] == "dense") | CLAUSES[7][1](table),
    ),
    (
        "of a model and a precision that the library has a name for",
        lambda table: table.apply(lambda row: row["precision"] in NAMED.get(row["model"], ("", {}))[1], axis=1),
    ),
    CLAUSES[8],
)


def select(folder: Path, clauses: Clauses = CLAUSES) -> tuple[pd.DataFrame, list[tuple[str, int, int]]]:
    """The points that all clauses hold for, and of each clause how many it leaves out, and how many stay."""
    table, counts = pd.read_parquet(folder / FILE), []
    for what, holds in clauses:
        kept = table[np.asarray(holds(table), bool)]
        counts.append((what, len(table) - len(kept), len(kept)))
        table = kept
    return table, counts


def served_of(row: dict[str, Any]) -> Served:
    """How the library names what a point was measured on. Its newest tables of the engine, not the point's version."""
    name, weights = NAMED[row["model"]]
    return Served(
        row["gpu"], name, tp=int(row["tp_size"]), ep=max(1, int(row["moe_ep_size"])), engine=row["backend"],
        weights=weights.get(row["precision"]),
    )  # fmt: skip


def loop_of(row: dict[str, Any]) -> Loop:
    of_nvidia = str(row["collection"]).startswith("aic-")
    return Loop(
        name=row["id"], series=row["series"], source="NVIDIA" if of_nvidia else "InferenceX", gpu=row["gpu"],
        model=row["model"], tensor_parallel=int(row["tp_size"]), precision=row["precision"], kv_precision="bf16",
        precision_stated=True, isl=int(row["isl"]), osl=int(row["osl"]), clients=int(row["concurrency"]),
        ttft_s=float(row["ttft_s"]), tpot_s=float(row["tpot_s"]), engine_version="", asynchronous=True,
        batch_tokens=BATCH_TOKENS, sequences=max(SEQUENCES, int(row["concurrency"])),
        shortest_share=1.0 if of_nvidia else SHORTEST_SHARE, experts=True, expert_parallel=int(row["moe_ep_size"]),
    )  # fmt: skip


@functools.cache
def profile_of(wanted: Served) -> Profile | str:
    """Without the CPU's time of a step; or why the library has none."""
    try:
        return parse_profile(build(wanted, library_version(), cpu_overhead_s=0.0), wanted.text)
    except ProfileError as error:
        return str(error)


def of_the_library(wanted: Served, isl: int, osl: int, clients: int) -> dict[str, float]:
    """ttft and tpot in seconds, as the library predicts a closed loop itself: one prompt a step."""
    words = arguments(wanted)
    database = module("perf_database").get_database_view(wanted.system, wanted.engine, words.pop("backend_version"))
    config = module("config_builders").build_model_config(pp_size=1, **words)
    model = module("models").get_model(wanted.model, config, wanted.engine)
    runtime = module("config").RuntimeConfig(batch_size=clients, isl=isl, osl=osl)
    with quietly():
        backend = module("backends.factory").get_backend(wanted.engine)
        found = backend.run_agg(model, database, runtime, ctx_tokens=min(isl, BATCH_TOKENS)).get_result_dict()
    return {metric: float(found[metric]) * 1e-3 for metric in ("ttft", "tpot")}


def simulated(loop: Loop, profile: Profile, order: str) -> tuple[dict[str, float], Parts | None]:
    """Mean ttft and tpot in seconds; and what the first is made of, where the run is short enough to keep its
    timeline. order: name of the scheduler."""
    keeps = loop.clients * REQUESTS_PER_CLIENT * loop.osl <= MOST_TIMELINE_TOKENS
    scenario = scenario_of(loop, profile, step_terms(ASYNCHRONOUS), order)
    result = Simulation(scenario, record_timeline=keeps).run()
    mean = with_terms(result.requests, ASYNCHRONOUS)[["ttft_s", "itl_s"]].mean()
    parts = simulated_parts(result, np.ones(len(result.requests), bool), ASYNCHRONOUS.asynchronous) if keeps else None
    return {"ttft": float(mean["ttft_s"]), "tpot": float(mean["itl_s"])}, parts


def study(
    rows: Iterable[dict[str, Any]], orders: Mapping[str, str] | None = None
) -> tuple[pd.DataFrame, dict[str, str]]:
    """One row a point: measured, simulated and the library's TTFT and TPOT, s; and of devices with points that are not
    simulated, why.

    orders: the scheduler of each engine; of others vLLM's own. simulated_ttft is made of admission, queue and prefill,
    s; nan where the run was too long to keep its timeline. Points of ORDERS are simulated in the other order too
    (other_ttft, other_tpot).
    """
    points, without, orders = [], {}, orders or {}
    for row in rows:
        wanted, loop = served_of(row), loop_of(row)
        profile = profile_of(wanted)
        if isinstance(profile, str):
            without[wanted.text] = profile
            continue
        holds = profile.kv.total_blocks * profile.kv.block_tokens
        if holds < loop.isl + loop.osl:
            without[wanted.text] = f"its KV memory is estimated to hold {holds:,} tokens, less than a request"
            continue
        order = orders.get(row["backend"], VLLM)
        found, parts = simulated(loop, profile, order)
        parts = parts or Parts(0.0, np.nan, np.nan, np.nan)
        other = dict.fromkeys(found, np.nan)
        if row["backend"] in ORDERS:
            other, _ = simulated(loop, profile, VLLM if order == PREFILLS_FIRST else PREFILLS_FIRST)
        own = of_the_library(wanted, loop.isl, loop.osl, loop.clients)
        points.append({
            "model": row["model"], "engine": row["backend"], "gpu": row["gpu"], "precision": row["precision"],
            "dense": row["kind"] == "dense",
            "device": wanted.text, "gpus": loop.tensor_parallel, "isl": loop.isl, "osl": loop.osl,
            "clients": loop.clients, "ttft": loop.ttft_s, "tpot": loop.tpot_s,
            **{f"{by}_{metric}": one[metric] for by, one in (("simulated", found), ("other", other), ("own", own))
               for metric in found},
            "admission": parts.admission_s, "queue": parts.queue_s, "prefill": parts.prefill_s,
        })  # fmt: skip
    return pd.DataFrame(points), without
