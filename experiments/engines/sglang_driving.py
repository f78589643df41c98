"""Driving SGLang's own scheduler alone, without model, weights or GPU: batches take what a device model says.

Everything but the model worker is SGLang's: its `Scheduler` as it makes itself, its memory pools and caches, admission,
retraction and the handling of results. The clock is virtual. For comparing its decisions with the simulator's.
"""

import dataclasses
import importlib.machinery
import importlib.util
import json
import sys
import tempfile
import types
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from experiments.engines.vllm_driving import MODEL, MOST_IDLE_STEPS, SLOS, Drive, Step
from servegym.adapters.sglang.following import scheduled_tokens
from servegym.errors import EmulationError
from servegym.simulator.inputs.deployment import LatencyModel
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.records.batches import add
from servegym.simulator.records.types import BATCH

IMAGES = ("torchvision", "torchvision.transforms", "torchvision.transforms.functional", "torchvision.io")


@dataclasses.dataclass(frozen=True)
class Limits:
    """SGLang's settings. tokens: of its KV memory (--max-total-tokens); the page is one token."""

    tokens: int
    max_running_requests: int = 256
    chunked_prefill_size: int = 8192
    max_model_len: int = 32768
    mixed_chunk: bool = True
    radix_cache: bool = False


def without_torchvision() -> None:
    """Let SGLang be imported where there is no torchvision: its image models, which are not used, take it."""
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is not None:
        return
    from transformers.utils import is_torchvision_available

    is_torchvision_available()  # it remembers that there is none

    class Absent(types.ModuleType):
        __path__ = []  # noqa: RUF012 (of a package)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

    for name in IMAGES:
        module = Absent(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module


class Worker:
    """In place of SGLang's model worker: memory pools of indices without KV behind them, and the same token always."""

    preloaded_weights_bytes = 0
    is_hybrid_swa = False
    weight_load_time = 0.0

    def __init__(self, model_config: Any, limits: Limits):
        import torch
        from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
        from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
        from sglang.srt.model_executor.model_runner_components.ngram_embedding_manager import NgramEmbeddingManager

        self.model_config, self.limits = model_config, limits
        self.graph_time_usage: dict[str, float] = {}
        self.graph_memory_usage: dict[str, float] = {}
        memory = types.SimpleNamespace(post_capture_active=False, mem_usage=0.0, page_size=1)
        rows = ReqToTokenPool(limits.max_running_requests, model_config.context_len + 4, "cpu", False)
        tokens = TokenToKVPoolAllocator(limits.tokens, torch.float16, "cpu", memory, False)
        nothing = ("forward_stream", "canary_manager", "attn_backend", "spec_algorithm", "lora_manager",
                   "hisparse_coordinator", "eplb_manager", "_pending_elastic_scale_update")  # fmt: skip
        self.model_runner = types.SimpleNamespace(
            memory_pool_config=limits, req_to_token_pool=rows, token_to_kv_pool_allocator=tokens,
            token_to_kv_pool=memory, device="cpu", model_config=model_config, prefill_aware_swa=False,
            mtp_draft_device_pools=(), mtp_draft_mamba_pools=(), weight_load_mem_usage=0.0,
            prewarm_sampling=lambda: None,
            ngram_embedding_manager=NgramEmbeddingManager(enabled=False, table=None, n=0), **dict.fromkeys(nothing),
        )  # fmt: skip

    def get_memory_pool(self) -> tuple[Any, Any]:
        return self.model_runner.req_to_token_pool, self.model_runner.token_to_kv_pool_allocator

    def init_attention_backends(self) -> None:
        """There is no attention."""

    def init_cuda_graphs(self) -> None:
        """There are no graphs."""

    def get_pad_input_ids_func(self) -> None:
        """There are no images."""

    def get_worker_info(self) -> tuple[Any, ...]:
        context, limits = self.model_config.context_len, self.limits
        return (limits.tokens, 16384, limits.max_running_requests, None, context - 1, context - 6, 0, "cpu",
                None, None, None, None)  # fmt: skip

    def forward_batch_generation(self, batch: Any, **named: Any) -> Any:
        import torch
        from sglang.srt.layers.logits_processor import LogitsProcessorOutput
        from sglang.srt.managers.utils import GenerationBatchResult

        del named
        tokens = torch.full((len(batch.reqs),), 7, dtype=torch.int64)
        return GenerationBatchResult(logits_output=LogitsProcessorOutput(next_token_logits=None), next_token_ids=tokens)


def make_scheduler(limits: Limits) -> Any:
    """SGLang's scheduler, as it makes itself, on an emulated device; with what its plug-ins change.

    Its own logging level is `error`. Raises EmulationError where SGLang is not there.
    """
    if importlib.util.find_spec("sglang") is None:
        raise EmulationError("SGLang is not installed here (experiments/engines/install_sglang.py)")
    without_torchvision()
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.plugins import load_plugins
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import PortArgs, ServerArgs

    class Emulated(Scheduler):
        def init_tp_model_worker(self) -> None:
            self.tp_worker = Worker(self.model_config, limits)

    load_plugins()
    with tempfile.TemporaryDirectory() as folder:
        document = MODEL | {"max_position_embeddings": limits.max_model_len}
        (Path(folder) / "config.json").write_text(json.dumps(document), encoding="utf-8")
        settings = ServerArgs(
            model_path=folder, device="cpu", skip_tokenizer_init=True, disable_overlap_schedule=True,
            disable_radix_cache=not limits.radix_cache, chunked_prefill_size=limits.chunked_prefill_size,
            max_running_requests=limits.max_running_requests, max_total_tokens=limits.tokens,
            attention_backend="torch_native", sampling_backend="pytorch", grammar_backend="none",
            enable_mixed_chunk=limits.mixed_chunk, log_level="error",
        )  # fmt: skip
        publish(settings, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
        return Emulated(settings, PortArgs.init_new(settings))


def send(scheduler: Any, row: np.record, index: int, prompt: list[int] | None = None) -> None:
    """A request of a workload comes to the scheduler, its SLOs and weight as `custom_params`."""
    from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
    from sglang.srt.sampling.sampling_params import SamplingParams

    terms = {name: float(row[name]) for name in SLOS if np.isfinite(row[name])}
    sampling = SamplingParams(max_new_tokens=int(row.output_tokens), ignore_eos=True, custom_params=terms)
    sampling.normalize(None)
    scheduler.handle_generate_request(
        TokenizedGenerateReqInput(
            rid=f"{index:06d}", input_text=None, input_ids=array("q", prompt or [5] * int(row.prompt_tokens)),
            input_embeds=None, mm_inputs=None, token_type_ids=None, sampling_params=sampling, return_logprob=False,
            logprob_start_len=-1, top_logprobs_num=0, token_ids_logprob=None, stream=False,
        )
    )  # fmt: skip


def drive(scheduler: Any, workload: Workload, device: LatencyModel, prompts: list[list[int]] | None = None) -> Drive:
    """Serve a workload by SGLang's own steps (event_loop_normal), each taking what the device model says.

    prompts: tokens of each; None: all the same. Raises EmulationError where requests wait and nothing is scheduled.
    """
    table, now_s, clock_s, arrived, idle = workload.table, 0.0, 0.0, 0, 0
    plugin = getattr(scheduler, "servegym", None)
    if plugin is not None:
        plugin.clock = lambda: clock_s
    steps: list[Step] = []
    token_s: list[list[float]] = [[] for _ in table]
    live: dict[str, Any] = {}
    used = scheduler.max_total_num_tokens
    while arrived < len(table) or live:
        if not live:
            now_s = max(now_s, float(table["arrival_s"][arrived]))
        while arrived < len(table) and table["arrival_s"][arrived] <= now_s:
            clock_s = float(table["arrival_s"][arrived])
            send(scheduler, table[arrived], arrived, None if prompts is None else prompts[arrived])
            live[f"{arrived:06d}"] = scheduler.waiting_queue[-1]
            arrived += 1
        clock_s = now_s
        counts = {rid: req.retraction_count for rid, req in live.items()}
        plan = scheduler.get_next_batch_to_run(running_batch=scheduler.running_batch, last_batch=scheduler.last_batch)
        scheduler.running_batch, batch = plan.running_batch, plan.batch_to_run
        scheduler.cur_batch_for_debug = batch
        retracted = {int(rid) for rid, req in live.items() if req.retraction_count > counts[rid]}
        idle = 0 if batch else idle + 1
        if idle > MOST_IDLE_STEPS:
            raise EmulationError(f"{len(live)} requests wait, and {idle} steps have scheduled nothing")
        if batch:
            rows, start_s = scheduled_tokens(batch), now_s
            now_s += float(device.batch_s(batch_of(rows), device.coefficients))
            clock_s = now_s
            scheduler.process_batch_result(batch, scheduler.run_batch(batch))
            free = scheduler.token_to_kv_pool_allocator.available_size()
            had = {int(req.rid): computed - tokens for req, tokens, computed in rows}
            steps.append(
                Step(start_s, now_s, [(int(r.rid), n) for r, n, _ in rows], retracted, used - free, cached_tokens=had)
            )
            for req, _, _ in rows:
                times = token_s[int(req.rid)]
                times += [now_s] * (len(req.output_ids) - len(times))
                if req.finished():
                    live.pop(req.rid, None)
        scheduler.last_batch = batch
    return Drive(steps, token_s)


def batch_of(rows: list[tuple[Any, int, int]]) -> np.record:
    """The sums of a batch (`scheduled_tokens`), as device models take them."""
    batch = np.zeros(1, BATCH)[0]
    for req, tokens, computed in rows:
        context = len(req.origin_input_ids) + len(req.output_ids)
        add(batch, tokens, computed - tokens, len(req.output_ids) > 0 and computed - tokens == context - 1)
    return batch
