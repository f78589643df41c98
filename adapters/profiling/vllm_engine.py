"""Measures the steps of vLLM's engine core in this process: its own scheduler, worker and sampler.

The engine forms a designed batch from the requests that it is given: decodes are prefilled first, then run together; a
prompt to be continued is admitted with the token budget of its first part. A measurement has the batch that the
scheduler's output names, and the time of the engine core's step: scheduling, the model, the sampler and the update of
the scheduler. The rest of a server is not measured: HTTP, tokenization, and messages between its processes.

On a CPU with one thread, the time of a step is the processor time of that thread, which stands still while other
processes have the core. `undisturbed` is the share of the repeats that had the core throughout, `wall_s` the median
wall-clock time of the repeats.

Consecutive batches of a server seldom have the same number of tokens, and matrix products cache what they prepare for a
number of rows. So each repeat has one token less than the last. Where oneDNN makes a kernel for each number of rows, as
on a CPU, all of them are made beforehand, as making one takes half a batch's time.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from servegym.adapters.profiling.design import Batch, Prefill, Space, mean_sums
from servegym.adapters.profiling.measuring import Measurement
from servegym.errors import ProfilingError

FIRST_ID, SPARE_STEPS, WARM_UP_STEPS = 16, 16, 20
UNDISTURBED = 0.98  # least share of a step's wall-clock time that the thread computed
MOST_FEWER = 0.02  # most of a chunk's tokens, as a share, that repeats have less than the first
KERNELS = "8192"  # kernels that oneDNN caches: one for each number of tokens and layer's shape
OWN: dict[str, Any] = {"enable_prefix_caching": False, "async_scheduling": False, "disable_log_stats": True}
MOST_STEPS = 100_000  # steps to form a batch; an engine that takes more makes no progress


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the engine. None: vLLM's default. more: further arguments of vllm.LLM, which override `OWN`."""

    model: str
    batch_tokens: int | None = None
    sequences: int | None = None
    context_tokens: int | None = None
    memory_share: float | None = None
    eager: bool = False
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Step(NamedTuple):
    """A step of the engine: the batch that it computed, its seconds, processor seconds of its thread, and the tokens
    that each request emitted."""

    batch: Batch
    seconds: float
    computing_s: float
    emitted: dict[str, int]


class VllmMeter:
    """Measures batches on vLLM's engine core.

    Raises ProfilingError if vLLM is not installed, does not have the model, or does not start.
    """

    def __init__(self, options: Options):
        self.options = options
        self.engine = _started(options)
        client = self.engine.engine_core
        self.core: Any = getattr(client, "engine_core", None)
        if self.core is None or not hasattr(self.core, "step_fn"):
            raise ProfilingError(
                f"vLLM {_version()} has no engine core that can be stepped in this process; 0.26 to 0.33 have one"
            )
        config = self.engine.vllm_config
        blocks, block_tokens = config.cache_config.num_gpu_blocks, config.cache_config.block_size
        self.blocks, self.block_tokens = int(blocks), int(block_tokens)
        self.space = Space(
            int(config.scheduler_config.max_num_batched_tokens),
            int(config.scheduler_config.max_num_seqs),
            int(config.model_config.max_model_len),
            self.blocks * self.block_tokens,
        )
        self._prompts: dict[str, int] = {}  # prompt tokens of unfinished requests
        self._rng = np.random.default_rng(0)
        self.vocabulary = int(config.model_config.get_vocab_size())
        self._numbered = 0
        self._one_thread = _on_one_cpu_thread(self.core)
        self._scheduled: Any = None
        self._watch(self.core.scheduler)

    def _watch(self, scheduler: Any) -> None:
        """Keep the scheduler's output of each step."""
        schedule = scheduler.schedule

        def watched(*arguments: Any, **named: Any) -> Any:
            self._scheduled = schedule(*arguments, **named)
            return self._scheduled

        scheduler.schedule = watched

    def facts(self) -> dict[str, Any]:
        import torch

        config = self.engine.vllm_config
        return {
            "engine": f"vLLM {_version()}, in process",
            "model": self.options.model,
            "dtype": str(config.model_config.dtype),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "cpu",
            "torch": torch.__version__,
            "torch_threads": torch.get_num_threads(),
            "eager": self.options.eager,
            "kv_blocks": self.blocks,
            "kv_block_tokens": self.block_tokens,
            "clock": f"time.{'thread_time' if self._one_thread else 'perf_counter'} around the engine core's step",
        }

    def warm_up(self) -> None:
        for tokens in (1, 16, 128, self.space.batch_tokens):
            self.measure(Batch((Prefill(min(tokens, self.space.context_tokens - 1)),)), 2)
        few = min(4, self.space.sequences)
        self.measure(Batch(decodes=(min(64, self.space.context_tokens // 2),) * few), WARM_UP_STEPS)
        if self._one_thread:
            for tokens in range(1, min(self.space.batch_tokens, self.space.context_tokens - 1) + 1):
                self.measure(Batch((Prefill(tokens),)), 1)

    def measure(self, batch: Batch, repeats: int) -> Measurement | None:
        let_in = max((each.cached for each in batch.prefills), default=0)
        room = max(1, self.space.batch_tokens - len(batch.decodes))
        steps = repeats * (2 + let_in // room) + SPARE_STEPS
        contexts = [min(context, self.space.context_tokens - steps) for context in batch.decodes]
        running = [self.add(prompt, before + steps) for prompt, before in prompts_of(contexts, room)]
        ran: list[Step] = []
        try:
            self._until_decoding(running)
            for repeat in range(repeats):
                step = self._repeat(fewer(batch, repeat))
                if step is None:
                    return None
                ran.append(step)
        finally:
            self._abort(running)
        sums = mean_sums([step.batch for step in ran])
        wall_s = np.array([step.seconds for step in ran])
        if not self._one_thread:
            return Measurement(sums, wall_s)
        computing_s = np.array([step.computing_s for step in ran])
        undisturbed = float(np.mean(computing_s >= UNDISTURBED * wall_s))
        return Measurement(sums, computing_s, {"undisturbed": undisturbed, "wall_s": float(np.median(wall_s))})

    def _repeat(self, batch: Batch) -> Step | None:
        """Run one step with the batch; None if the engine formed another batch."""
        added = []
        try:
            for place, prefill in enumerate(batch.prefills):
                added.append(self.add(prefill.tokens + prefill.cached, 1))
                if place == 0 and prefill.cached:
                    self._let_in(prefill.cached, len(batch.decodes))
            ran = self.step()
        finally:
            self._abort(added)
        found, wanted = ran.batch, batch
        same = len(found.decodes) == len(wanted.decodes) and sorted(map(_pair, found.prefills)) == sorted(
            map(_pair, wanted.prefills)
        )
        return ran if same else None

    def _let_in(self, tokens: int, decodes: int) -> None:
        """Make the engine compute only the first `tokens` of the one waiting prompt."""
        scheduler = self.core.scheduler
        budget = scheduler.max_num_scheduled_tokens
        left = tokens
        try:
            while left > 0:
                part = min(left, budget - decodes)
                scheduler.max_num_scheduled_tokens = part + decodes
                self.step()
                left -= part
        finally:
            scheduler.max_num_scheduled_tokens = budget

    def _until_decoding(self, requests: list[str]) -> None:
        for _ in range(MOST_STEPS):
            known = self.core.scheduler.requests
            if all(known[name].num_computed_tokens >= self._prompts[name] for name in requests):
                return
            self.step()
        raise ProfilingError(f"vLLM has not prefilled {len(requests)} prompts in {MOST_STEPS} steps")

    def step(self) -> Step:
        """Run one step of the engine core."""
        self._scheduled = None
        begin, computing = time.perf_counter(), time.thread_time()
        outputs, executed = self.core.step_fn()
        seconds, computing_s = time.perf_counter() - begin, time.thread_time() - computing
        self.core.post_step(executed)
        emitted = {
            each.request_id: len(each.new_token_ids) for client in (outputs or {}).values() for each in client.outputs
        }
        return Step(self.computed(self._scheduled), seconds, computing_s, emitted)

    def computed(self, scheduled: Any) -> Batch:
        """Convert a SchedulerOutput to a Batch."""
        if scheduled is None:
            return Batch()
        before = {each.req_id: each.num_computed_tokens for each in scheduled.scheduled_new_reqs}
        cached = scheduled.scheduled_cached_reqs
        before |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        prefills, decodes = [], []
        for name, tokens in scheduled.num_scheduled_tokens.items():
            if before[name] >= self._prompts[name]:
                decodes.append(int(before[name]))
            else:
                prefills.append(Prefill(int(tokens), int(before[name])))
        return Batch(tuple(prefills), tuple(decodes))

    def add(
        self,
        prompt: int | list[int],
        output_tokens: int,
        arrival_s: float | None = None,
        priority: int = 0,
        extra_args: Mapping[str, Any] | None = None,
    ) -> str:
        """Add a request. prompt: token ids, or a number of random ones. Returns its id in the engine."""
        from vllm import SamplingParams

        self._numbered += 1
        name = f"profile-{self._numbered}"
        ids = self._rng.integers(FIRST_ID, self.vocabulary, prompt).tolist() if isinstance(prompt, int) else prompt
        sampling = SamplingParams(
            max_tokens=output_tokens, ignore_eos=True, temperature=0.0, detokenize=False,
            extra_args=dict(extra_args) if extra_args else None,
        )  # fmt: skip
        self.engine.add_request(name, {"prompt_token_ids": ids}, sampling, arrival_time=arrival_s, priority=priority)
        known = next(reversed(self.core.scheduler.requests))  # newer releases append to the id
        self._prompts[known] = len(ids)
        return known

    def _abort(self, names: list[str]) -> None:
        self.core.abort_requests([name for name in names if name in self.core.scheduler.requests])
        if not self.core.scheduler.requests and self.core.scheduler.has_requests():
            self.step()  # the worker drops aborted requests in the next step
        for name in names:
            self._prompts.pop(name, None)

    def close(self) -> None:
        self.engine.engine_core.shutdown()


def fewer(batch: Batch, tokens: int) -> Batch:
    """Make the batch with `tokens` less in its first prefill, at most MOST_FEWER of the prefill."""
    if not batch.prefills:
        return batch
    first, *others = batch.prefills
    less = min(tokens, int(MOST_FEWER * first.tokens))
    return dataclasses.replace(batch, prefills=(Prefill(first.tokens - less, first.cached), *others))


def prompts_of(contexts: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Find prompts that reach these contexts at one step: (prompt tokens, tokens that it emits until then) of each.
    The first decode while the others are prefilled, `room` tokens a step."""
    found, behind = [], 0
    for context in reversed(contexts):
        before = -(-behind // room)
        prompt = max(1, context - before)
        found.append((prompt, before))
        behind += prompt
    return found[::-1]


def _pair(prefill: Prefill) -> tuple[int, int]:
    return prefill.tokens, prefill.cached


def _version() -> str:
    import vllm

    return str(vllm.__version__)


def _started(options: Options) -> Any:
    """Start an LLMEngine whose core runs in this process. Raises ProfilingError."""
    if options.model.startswith((".", "/", "~")) and not (Path(options.model).expanduser() / "config.json").is_file():
        raise ProfilingError(f"{options.model} is no folder of a model: it has no config.json")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS)
    _let_vllm_scan()
    try:
        from vllm import LLM
    except ImportError as error:
        raise ProfilingError(
            f"--engine vllm needs a Python with vLLM ({error}); docs/engines.md says how to install one"
        ) from None
    given = {
        "max_num_batched_tokens": options.batch_tokens,
        "max_num_seqs": options.sequences,
        "max_model_len": options.context_tokens,
        "gpu_memory_utilization": options.memory_share,
    }
    try:
        llm = LLM(
            model=options.model,
            enforce_eager=options.eager,
            **OWN | {name: value for name, value in given.items() if value is not None} | dict(options.more),
        )
    except Exception as error:  # vLLM raises errors of many types, from many libraries
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ProfilingError(f"vLLM does not start with model {options.model}: {lines[0][:300]}") from error
    return llm.llm_engine


def _on_one_cpu_thread(core: Any) -> bool:
    """Whether the thread that steps the engine also computes the model, without others."""
    import torch
    from vllm.platforms import current_platform

    here = type(core.model_executor).__name__ == "UniProcExecutor"  # neither other processes nor an emulated device
    return here and bool(current_platform.is_cpu()) and torch.get_num_threads() == 1


def _let_vllm_scan() -> None:
    """Keep vLLM 0.32 from failing when it scans the variables of all objects in modules, as it does on CPUs: llvmlite's
    library, which Numba has loaded, returns a foreign function for any attribute, `__dict__` included."""
    from llvmlite.binding import ffi

    functions = getattr(ffi.lib, "_fntab", None)
    if isinstance(functions, dict):
        functions.setdefault("__dict__", {})
