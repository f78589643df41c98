"""Driving vLLM's V1 scheduler alone, without worker, weights or GPU: steps take what a device model says.

For comparing its decisions with the simulator's, and for measuring the time a decision takes. The clock is virtual.
"""

import dataclasses
import inspect
import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from experiments.engines.cached_blocks import Key, Name, PoolWatch, names_by_key
from servegym.errors import VllmError
from servegym.simulator.inputs.deployment import LatencyModel
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.kv_groups import KvCacheGroup
from servegym.simulator.policies.gains import Gain
from servegym.simulator.records.batches import add
from servegym.simulator.records.types import BATCH

SURROUNDINGS = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1",
}  # fmt: skip
MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 32, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float16",
}  # fmt: skip
MOST_ID = 2**31 - 1  # none has weights for these
MOST_IDLE_STEPS = 200  # in a row, on a clock that stands still: a policy that fails leaves few
SLOS = ("ttft_slo_s", "tpot_slo_s", "ttlt_slo_s", "weight")


@dataclasses.dataclass(frozen=True)
class Limits:
    """vLLM's settings: those of `vllm serve`, and the KV cache in blocks (vLLM keeps one more, the null block)."""

    blocks: int
    block_tokens: int = 16
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    scheduling_policy: str = "fcfs"
    watermark: float = 0.0
    max_model_len: int = 32768
    async_scheduling: bool = False
    prefix_caching: bool = False
    chunked_prefill: bool = True
    drafts: int = 0  # speculative decoding, by matches in the prompt
    groups: tuple[KvCacheGroup, ...] = ()  # of layers; (): one of full attention
    long_prefill_token_threshold: int = 0

    @property
    def caches_states(self) -> bool:
        return self.prefix_caching and any(group.state for group in self.groups)

    @property
    def hashed_tokens(self) -> int:
        """Tokens of a block that vLLM hashes: a divisor of all groups' blocks."""
        if not (self.groups and self.prefix_caching):
            return self.block_tokens
        return math.gcd(*(group.block_tokens for group in self.groups))


@dataclasses.dataclass
class Step:
    """One step that scheduled something: (request, tokens) in vLLM's order, and the requests that were preempted.

    cached_tokens: of each request scheduled, what it had before. Where prefixes are cached, the names of contents:
    free, of the free blocks before the step, in the order in which they will be taken (None: no content); overwritten,
    in that order.
    """

    start_s: float
    end_s: float
    scheduled: list[tuple[int, int]]
    preempted: set[int]
    used_blocks: int
    cached_tokens: dict[int, int] = dataclasses.field(default_factory=dict, compare=False)
    free: list[Name | None] = dataclasses.field(default_factory=list, compare=False)
    overwritten: list[Name] = dataclasses.field(default_factory=list, compare=False)


@dataclasses.dataclass
class Drive:
    """A workload served to its end. token_s: of each request, when its tokens came out."""

    steps: list[Step]
    token_s: list[list[float]]

    def gain(self, workload: Workload, gain: Gain | None = None) -> tuple[float, float]:
        """Gain (TDG) and ideal gain of the whole workload."""
        gain = gain or Gain()
        first, later = gain.token_gains(workload.table)
        total = 0.0
        for row, times, w_first, w_later in zip(workload.table, self.token_s, first, later, strict=True):
            interval_s = 0.0 if np.isfinite(row.ttlt_slo_s) else row.tpot_slo_s
            deadline_s = row.arrival_s + (row.ttlt_slo_s if np.isfinite(row.ttlt_slo_s) else row.ttft_slo_s)
            for number, time_s in enumerate(times):
                if time_s < deadline_s + number * interval_s:
                    total += w_first if number == 0 else w_later
        return float(total), float(gain.ideal(workload).sum())


@contextmanager
def model_folder(max_model_len: int) -> Iterator[str]:
    """A folder with the configuration of a tiny model; there are no weights."""
    with tempfile.TemporaryDirectory() as folder:
        document = MODEL | {"max_position_embeddings": max_model_len}
        (Path(folder) / "config.json").write_text(json.dumps(document))
        yield folder


@contextmanager
def surrounded() -> Iterator[None]:
    """Set SURROUNDINGS, which vLLM reads when imported; a server started later must not inherit its CPU platform."""
    added = SURROUNDINGS.keys() - os.environ.keys()
    os.environ.update({name: SURROUNDINGS[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


@surrounded()
def make_scheduler(scheduler_cls: Any, limits: Limits, additional_config: dict[str, Any] | None = None) -> Any:
    """One of vLLM's schedulers, or of ours, with nothing around it."""
    from vllm.config import (
        CacheConfig,
        DeviceConfig,
        ModelConfig,
        ParallelConfig,
        SchedulerConfig,
        SpeculativeConfig,
        VllmConfig,
    )
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    wanted = {
        "policy": limits.scheduling_policy,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "max_num_seqs": limits.max_num_seqs,
        "long_prefill_token_threshold": limits.long_prefill_token_threshold,
        "max_model_len": limits.max_model_len,
        "watermark": limits.watermark,
        "enable_chunked_prefill": limits.chunked_prefill,
        # (It refuses it beside matches in the prompt, though its scheduler does the same for drafts of a model.)
        "async_scheduling": limits.async_scheduling and not limits.drafts,
        "is_encoder_decoder": False,
    }
    known = inspect.signature(SchedulerConfig).parameters
    with model_folder(limits.max_model_len) as folder:
        cache = CacheConfig(block_size=limits.block_tokens, enable_prefix_caching=limits.prefix_caching)
        model = ModelConfig(model=folder, dtype="float16", skip_tokenizer_init=True)
        speculative = None
        if limits.drafts:
            speculative = SpeculativeConfig(
                method="ngram", num_speculative_tokens=limits.drafts, prompt_lookup_max=3,
                target_model_config=model, target_parallel_config=ParallelConfig(),
            )  # fmt: skip
        config = VllmConfig(
            scheduler_config=SchedulerConfig(**{name: value for name, value in wanted.items() if name in known}),
            model_config=model,
            speculative_config=speculative,
            cache_config=cache,
            device_config=DeviceConfig("cpu"),
            additional_config=additional_config or {},
        )
    config.scheduler_config.async_scheduling = limits.async_scheduling  # vLLM takes it back on a CPU
    cache.num_gpu_blocks = limits.blocks + 1
    if limits.caches_states:  # as vLLM sets them for a model with such layers
        cache.mamba_cache_mode, cache.block_size = "align", limits.hashed_tokens
    specs = [kept_by(group, limits) for group in limits.groups or (KvCacheGroup(limits.block_tokens),)]
    fields = {field.name for field in dataclasses.fields(KVCacheConfig)}
    retention = {"prefix_cache_retention_interval": getattr(cache, "prefix_cache_retention_interval", None)}
    kv_cache = KVCacheConfig(
        **{name: value for name, value in retention.items() if name in fields},
        num_blocks=limits.blocks + 1,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec([f"layer{place}"], spec) for place, spec in enumerate(specs)],
    )
    return scheduler_cls(
        vllm_config=config,
        kv_cache_config=kv_cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=math.lcm(*(spec.block_size for spec in specs)),
        hash_block_size=limits.hashed_tokens,
    )


def kept_by(group: KvCacheGroup, limits: Limits) -> Any:
    """What vLLM is told of a group's layers; a state is in one block, or with prefix caching in blocks of the tokens of
    the full groups' blocks."""
    import torch
    from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, FullAttentionSpec, MambaSpec, SlidingWindowSpec

    if group.state:
        aligned = limits.caches_states
        # Named only where they are wanted: vLLM 0.26 has neither argument, 0.29 only the first.
        checkpoints = {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": 1}
        return MambaSpec(
            block_size=group.block_tokens if aligned else limits.max_model_len, shapes=((1,),),
            dtypes=(torch.float16,), mamba_cache_mode="align" if aligned else "none",
            **(checkpoints if group.checkpoints else {}),
        )  # fmt: skip
    numbers = {"block_size": group.block_tokens, "num_kv_heads": 1, "head_size": 32, "dtype": torch.float16}
    if group.local:
        return ChunkedLocalAttentionSpec(attention_chunk_size=group.window, **numbers)
    if group.window:
        return SlidingWindowSpec(sliding_window=group.window, **numbers)
    return FullAttentionSpec(**numbers)


def token_ids(workload: Workload, index: int) -> list[int]:
    """The tokens of a prompt and its answer: those of its chunks, of which equal ones are equal, and else its own."""
    row, prompts = workload.table[index], workload.prefixes
    length = int(row.prompt_tokens + row.output_tokens)
    ids = np.random.default_rng((0, index)).integers(MOST_ID, size=length)
    if prompts is not None:
        size = prompts.chunk_tokens
        for place, chunk in enumerate(prompts.chunks[prompts.offsets[index] : prompts.offsets[index + 1]].tolist()):
            ids[place * size : (place + 1) * size] = np.random.default_rng((1, chunk)).integers(MOST_ID, size=size)
    return ids.tolist()


def block_hasher(block_tokens: int) -> Any:
    """What gives vLLM's requests the hashes of their blocks."""
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    function = get_hash_fn_by_name("sha256")
    init_none_hash(function)
    return get_request_block_hasher(block_tokens, function)


def make_request(
    row: np.record, index: int, prompt_ids: list[int] | None = None, hasher: Any = None, **extra_args: Any
) -> Any:
    """A request of a workload as vLLM has it, its SLOs and weight as `vllm_xargs`.

    prompt_ids: its tokens; None: all the same. hasher: of its blocks, where prefixes are cached.
    """
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    terms = {name: float(row[name]) for name in SLOS if np.isfinite(row[name])}
    sampling = SamplingParams(ignore_eos=True, max_tokens=int(row.output_tokens), extra_args=terms | extra_args)
    return Request(
        request_id=f"{index:06d}",
        prompt_token_ids=[5] * int(row.prompt_tokens) if prompt_ids is None else prompt_ids,
        sampling_params=sampling,
        pooling_params=None,
        arrival_time=float(row.arrival_s),
        priority=int(row.priority),
        block_hasher=hasher,
    )


def drive(
    scheduler: Any, workload: Workload, device: LatencyModel, most_steps: int = 10**6, contents: bool = True
) -> Drive:
    """Serve a workload, every step taking what the device model says. A step that schedules nothing takes no time.

    contents: where prefixes are cached, steps say what free blocks hold and what was overwritten (which takes a number
    for each free block and step).
    Raises VllmError where requests wait and nothing is ever scheduled.
    """
    from vllm.v1.outputs import ModelRunnerOutput

    table, now_s, arrived = workload.table, 0.0, 0
    if hasattr(scheduler, "use_clock"):
        scheduler.use_clock(lambda: now_s)
    steps: list[Step] = []
    token_s: list[list[float]] = [[] for _ in table]
    pool = scheduler.kv_cache_manager.block_pool
    usable = pool.num_gpu_blocks - 1
    caching = scheduler.kv_cache_manager.enable_caching
    hashed_tokens = getattr(scheduler, "hash_block_size", scheduler.block_size)
    hasher = block_hasher(hashed_tokens) if caching else None
    ids_of = [token_ids(workload, index) for index in range(len(table))] if caching else None
    watch, requests = PoolWatch(pool) if caching and contents else None, list[Any]()
    kept: list[tuple[list[Key | None], list[Key]]] = []  # of each step: the free blocks before it, and overwritten
    idle_steps = 0
    while arrived < len(table) or scheduler.has_unfinished_requests():
        if not scheduler.has_unfinished_requests():
            now_s = max(now_s, float(table["arrival_s"][arrived]))
        while arrived < len(table) and table["arrival_s"][arrived] <= now_s:
            prompt = None if ids_of is None else ids_of[arrived][: int(table["prompt_tokens"][arrived])]
            requests.append(make_request(table[arrived], arrived, prompt, hasher))
            scheduler.add_request(requests[-1])
            arrived += 1
        free = watch.free() if watch is not None else []
        output = scheduler.schedule()
        scheduled = output.num_scheduled_tokens
        used = usable - pool.get_num_free_blocks()
        idle_steps = 0 if scheduled else idle_steps + 1
        if idle_steps > MOST_IDLE_STEPS:
            raise VllmError(f"{len(scheduler.requests)} requests wait, and {idle_steps} steps have scheduled nothing")
        start_s = now_s
        if scheduled:
            now_s += float(device.batch_s(batch_of(scheduler, scheduled), device.coefficients))
        ids, present = list(scheduled), scheduler.requests
        had = {int(i): int(present[i].num_computed_tokens) - n for i, n in scheduled.items()}
        next_ids = [7 if ids_of is None else ids_of[int(i)][present[i].num_tokens] for i in ids]
        tokens = [[] if present[i].is_prefill_chunk else [one] for i, one in zip(ids, next_ids, strict=True)]
        results = scheduler.update_from_output(
            output, ModelRunnerOutput(req_ids=ids, req_id_to_index={i: n for n, i in enumerate(ids)},
                                      sampled_token_ids=tokens)
        )  # fmt: skip
        for outputs in results.values():
            for result in outputs.outputs:
                token_s[int(result.request_id)] += [now_s] * len(result.new_token_ids)
        if scheduled:
            batch = [(int(i), n) for i, n in scheduled.items()]
            preempted = {int(i) for i in output.preempted_req_ids or ()}
            steps.append(Step(start_s, now_s, batch, preempted, used, had))
            kept.append((free, watch.overwritten() if watch is not None else []))
            if len(steps) >= most_steps:
                break
    if watch is not None:
        names, groups = names_by_key(requests, workload, hashed_tokens), len(scheduler.kv_cache_config.kv_cache_groups)

        def name_of(key: Key) -> Name:
            return names[key[0]] if groups == 1 else (*names[key[0]], key[1])

        for step, (free, overwritten) in zip(steps, kept, strict=True):
            step.free = [None if key is None else name_of(key) for key in free]
            step.overwritten = [name_of(key) for key in overwritten]
    return Drive(steps, token_s)


def batch_of(scheduler: Any, scheduled: dict[str, int]) -> np.record:
    """The sums of what has just been scheduled, as device models take them."""
    batch = np.zeros(1, BATCH)[0]
    for request_id, tokens in scheduled.items():
        request = scheduler.requests[request_id]
        cached = request.num_computed_tokens - tokens
        add(batch, tokens, cached, request.num_output_tokens > 0 and cached == request.num_tokens - 1)
    return batch
