"""One run of Vidur's simulator: vidur_replay.py TRACE.csv SETTINGS.json

A script for the Python of Vidur's environment (vidur_setup.sh), which has no servegym. Vidur looks up how long the
operators of a model take in tables, which it makes from profiles that it downloads. Here the tables are those of the
settings, and Vidur's own compiled code looks them up. Its metrics and traces are off; its event loop alone is timed.
Prints JSON: the seconds of the event loop (`loop_s`), and figures that tell whether it did the same work.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

MS = 1e3  # Vidur's tables are in milliseconds a layer
ONCE_A_BATCH = "mlp_up_proj"  # has all that does not depend on what is cached; the other operators take no time
OTHERS = (
    "attn_pre_proj", "attn_post_proj", "mlp_down_proj", "mlp_act", "attn_rope", "attn_kv_cache_save",
    "input_layernorm", "post_attention_layernorm", "add",
)  # fmt: skip


def operator_tables(settings: dict, layers: int) -> dict:
    """{operator: {key: milliseconds a layer}}, by the keys that Vidur looks up.

    settings: batch_s[t - 1] of a batch of t tokens; decodes_s[n - 1][k] more with n decodes of k steps of cached tokens
    each, and prefill_s[k][c] more with a chunk of c + 1 steps that ends at k steps of cached tokens.
    """
    a_layer = MS / layers
    cached, chunk = settings["cached_step_tokens"], settings["chunk_step_tokens"]
    tables: dict = {name: {(t,): 0.0 for t in range(1, len(settings["batch_s"]) + 1)} for name in OTHERS}
    tables[ONCE_A_BATCH] = {(t,): a_layer * seconds for t, seconds in enumerate(settings["batch_s"], 1)}
    tables["attn_decode"] = {
        (n, cached * k): a_layer * seconds
        for n, row in enumerate(settings["decodes_s"], 1)
        for k, seconds in enumerate(row)
    }
    tables["attn_prefill"] = {
        (cached * k, chunk * (c + 1)): a_layer * seconds
        for k, row in enumerate(settings["prefill_s"])
        for c, seconds in enumerate(row)
    }
    return tables


def replay(trace: str, settings: dict, folder: str) -> dict:
    # Imported here: only Vidur's environment has it, and servegym's tools import every module of the package.
    from vidur import config
    from vidur.execution_time_predictor import ExecutionTimePredictorRegistry
    from vidur.execution_time_predictor.random_forrest_execution_time_predictor import (
        RandomForrestExecutionTimePredictor,
    )
    from vidur.simulator import Simulator
    from vidur.types import ExecutionTimePredictorType

    class Given(RandomForrestExecutionTimePredictor):
        """Vidur's predictor, with the tables given instead of downloaded."""

        def _load_predictions_from_hf(self) -> dict:
            return operator_tables(settings, self._num_layers_per_pipeline_stage)

    forest = ExecutionTimePredictorType.RANDOM_FORREST
    ExecutionTimePredictorRegistry.unregister(forest)
    ExecutionTimePredictorRegistry.register(forest, Given)
    simulator = Simulator(
        config.SimulationConfig(
            log_level="error",
            cluster_config=config.ClusterConfig(
                num_replicas=1,
                replica_config=config.ReplicaConfig(
                    model_name="meta-llama/Llama-3-8B",
                    num_pipeline_stages=1,
                    tensor_parallel_size=1,
                    device="a100",
                    network_device="a100_dgx",
                ),
                cache_config=config.CacheConfig(
                    block_size=settings["block_tokens"],
                    num_blocks=settings["total_blocks"],
                    watermark_blocks_fraction=settings["watermark"],
                ),
                replica_scheduler_config=config.SarathiSchedulerConfig(
                    batch_size_cap=settings["max_num_seqs"], chunk_size=settings["max_num_batched_tokens"]
                ),
            ),
            request_generator_config=config.TraceRequestGeneratorConfig(
                trace_file=trace,
                date=settings["date"],
                prefill_scale_factor=1.0,
                decode_scale_factor=1.0,
                time_scale_factor=1.0,
                max_tokens=settings["max_tokens"],
            ),
            execution_time_predictor_config=config.RandomForrestExecutionTimePredictorConfig(
                cache_dir=f"{folder}/cache",
                kv_cache_prediction_granularity=settings["cached_step_tokens"],
                attention_decode_batching_overhead_fraction=0.0,
                use_native_execution_time_predictor=True,  # looks the same tables up, a tenth faster
            ),
            metrics_config=config.MetricsConfig(
                write_metrics=False, enable_chrome_trace=False, store_plots=False, output_dir=f"{folder}/output"
            ),
        )
    )
    requests = [event._request for _, event in simulator._event_queue]
    begin = time.perf_counter()
    simulator.run()
    loop_s = time.perf_counter() - begin
    done = [request for request in requests if request.completed]
    decodes = [request for request in done if request.num_decode_tokens > 1]
    decode_s = [
        (request.completed_at - request.prefill_completed_at) / (request.num_decode_tokens - 1) for request in decodes
    ]
    return {
        "loop_s": loop_s,
        "requests": len(done),
        "prompt_tokens": int(sum(request.num_prefill_tokens for request in done)),
        "output_tokens": int(sum(request.num_decode_tokens for request in done)),
        "mean_ttft_s": sum(request.prefill_completed_at - request.arrived_at for request in done) / max(1, len(done)),
        "mean_tpot_s": sum(decode_s) / max(1, len(decode_s)),
        "restarts": sum(request.num_restarts for request in done),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        os.chdir(folder)  # where it puts its own files
        result = replay(sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), folder)
    print(json.dumps(result))
