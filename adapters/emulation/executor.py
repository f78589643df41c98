"""vLLM's executor on an emulated device (--distributed-executor-backend servegym.adapters.emulation.Executor)."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.executor.abstract import Executor as VllmExecutor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput

from servegym.adapters.emulation.batches import Requests, Step
from servegym.adapters.emulation.device import Device, finished
from servegym.adapters.emulation.platform import Platform
from servegym.adapters.emulation.settings import DEVICE, TIME, Settings
from servegym.errors import EmulationError

NULL_BLOCKS = 1  # vLLM keeps one block for itself
LAYOUT = "LBHNC"  # any of vLLM's would do, as blocks have no contents
LETTERS, FIRST_LETTER = 26, 64  # 64 is the id of "a" in byte-level vocabularies, where "!" is 0


class Executor(VllmExecutor):
    """Runs no model: a step takes the profile's time, and its tokens are letters.

    An answer ends at `max_tokens`, or after `output_tokens` of vllm_xargs with the model's end-of-sequence token.
    Raises EmulationError for a configuration of the engine that is not emulated.
    """

    supports_pp = False

    def _init_executor(self) -> None:
        self.settings = Settings.from_environment(os.environ)
        self._check()
        self.device = Device(self.settings)
        self.requests = Requests()
        self._step: Step | None = None
        end = self.model_config.hf_config.eos_token_id
        self._end_token = end[0] if isinstance(end, list) else end

    def _check(self) -> None:
        profile, parallel = self.settings.profile, self.parallel_config
        if not isinstance(current_platform, Platform):
            raise EmulationError(
                "vLLM is on its own platform, which turns asynchronous scheduling off and takes other KV blocks; "
                "start it without VLLM_TARGET_DEVICE, in an environment that servegym is installed in"
            )
        if self.settings.virtual and multiprocessing.parent_process() is not None:
            raise EmulationError(
                f"{TIME}=virtual needs the engine in the process that drives it: clients of a server are in real time "
                "(see experiments.engines.virtual_time)"
            )
        if profile.kv.groups:
            raise EmulationError(
                f"{DEVICE}: {profile.name} has layers with windows or states; it can emulate only devices "
                "whose layers all keep every token"
            )
        if self.cache_config.block_size != profile.kv.block_tokens:
            raise EmulationError(
                f"{DEVICE}: {profile.name} has KV blocks of {profile.kv.block_tokens} tokens and vLLM is set to "
                f"{self.cache_config.block_size}; start it with --block-size {profile.kv.block_tokens}"
            )
        for name, value in (("tensor", parallel.tensor_parallel_size), ("pipeline", parallel.pipeline_parallel_size)):
            if value != 1:
                raise EmulationError(
                    f"{name} parallel size is {value}: the profile is that of all devices together; leave it at 1"
                )
        if self.vllm_config.speculative_config is not None:
            raise EmulationError("speculative decoding is not emulated; start vLLM without it")

    # Calls of vLLM to its workers

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: tuple = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
    ) -> Any:
        """Answer the calls that this class has methods for; workers would do nothing for any other."""
        name = method if isinstance(method, str) else getattr(method, "__name__", "")
        answer = {"get_supported_tasks": ("generate",)}.get(name)
        return finished([answer]) if non_block else [answer]

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        model, parallel = self.model_config, self.parallel_config
        spec = FullAttentionSpec(
            block_size=self.cache_config.block_size,
            num_kv_heads=model.get_num_kv_heads(parallel),
            head_size=model.get_head_size(),
            dtype=model.dtype,
        )
        self._bytes_per_block = spec.page_size_bytes * model.get_num_layers(parallel)
        return [{f"model.layers.{layer}.self_attn.attn": spec for layer in range(model.get_num_layers(parallel))}]

    def determine_available_memory(self) -> list[int]:
        """Return the bytes of the profile's number of KV blocks, at the served model's bytes a block."""
        return [(self.settings.profile.kv.total_blocks + NULL_BLOCKS) * self._bytes_per_block]

    def initialize_from_config(self, kv_cache_configs: list[Any]) -> None:
        wanted, got = self.settings.profile.kv.total_blocks + NULL_BLOCKS, kv_cache_configs[0].num_blocks
        if got != wanted and self.cache_config.num_gpu_blocks_override is None:
            raise EmulationError(
                f"vLLM made {got} KV blocks of memory for {wanted}; is the model something else than a plain decoder?"
            )

    def compile_or_warm_up_model(self) -> None:
        pass

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        return [[LAYOUT]]

    def set_kv_cache_layout(self, layout_name: str, *others: Any) -> None:
        self.cache_config.kv_cache_layout = layout_name

    def check_health(self) -> None:
        pass

    def shutdown(self) -> None:
        self.device.close()

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        return True

    # vLLM calls execute_model, which has no result yet, then sample_tokens.

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        future: Future
        if scheduler_output.total_num_scheduled_tokens == 0:
            self.requests.leave(scheduler_output)
            future = finished(EMPTY_MODEL_RUNNER_OUTPUT)
        else:
            self._step = self.requests.step(scheduler_output)
            future = finished(None)
        return future if non_block else future.result()

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        step, self._step = self._step, None
        if step is None:
            raise EmulationError("vLLM asked for the tokens of a step that it did not begin")
        future = self.device.run(step.sums, self._output(step))
        return future if non_block else future.result()

    def _output(self, step: Step) -> ModelRunnerOutput:
        tokens = [[self._token(*each)] if each[0] > 0 else [] for each in zip(step.emitted, step.ends, strict=True)]
        places = {name: place for place, name in enumerate(step.ids)}
        return ModelRunnerOutput(req_ids=step.ids, req_id_to_index=places, sampled_token_ids=tokens)

    def _token(self, emitted: int, ends: bool) -> int:
        if ends and isinstance(self._end_token, int):
            return self._end_token
        return FIRST_LETTER + emitted % LETTERS
