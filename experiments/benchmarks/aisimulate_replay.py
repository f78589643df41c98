"""One offline replay of NVIDIA AISimulate: aisimulate_replay.py TRACE.jsonl OPTIONS_AS_JSON

A script for the Python of AISimulate's environment (aisimulate_setup.sh), which has no servegym. The options: `rank`,
its description of an engine; `workers`; `trace_block_size`, tokens of a block of the trace. Prints JSON: the seconds of
the simulation (`loop_s`: AISimulate's own wall_time_ms), those of the whole call, which also reads the trace, of the
clock (`call_s`) and of the processor (`cpu_s`), and figures that tell whether it did the same work.
"""

import json
import sys
import time


def replay(trace: str, options: dict) -> dict:
    # Imported here: only AISimulate's environment has it, and servegym's tools import every module of the package.
    from aisimulate._runtime import run_replay_json

    # What its own command line hands to its compiled replay for a Mooncake trace and workers without adapters.
    nothing = {"config": None}
    spec = {
        "version": 1,
        "topology": {"kind": "aggregated", "workers": {"initial_workers": options["workers"], "startup_delay_ms": 0.0}},
        "engine": {"rank": options["rank"], "dp_size": 1, "num_gpu_blocks_is_explicit": True},
        "adapters": {"placement": {"provider": "round_robin"} | nothing, "scaling": {"provider": "none"} | nothing},
        "max_sim_time_ms": None,
        "max_in_flight": None,
        "record_per_request": False,
        "sla": {},
        "requests": [],
    }
    traffic = {
        "source_type": "trace",
        "load_type": "trace_timestamps",
        "trace_path": trace,
        "trace_format": "mooncake",
        "trace_block_size": options["trace_block_size"],
        "arrival_speedup_ratio": 1.0,
    }
    begin, cpu_begin = time.perf_counter(), time.process_time()
    report = json.loads(run_replay_json(json.dumps({"spec": spec, "traffic": traffic})))
    call_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu_begin
    return {
        "loop_s": report["wall_time_ms"] / 1e3,
        "call_s": call_s,
        "cpu_s": cpu_s,
        "requests": report["completed_requests"],
        "prompt_tokens": report["total_input_tokens"],
        "output_tokens": report["total_output_tokens"],
        "mean_ttft_s": report["mean_ttft_ms"] / 1e3,
        "mean_tpot_s": report["mean_tpot_ms"] / 1e3,
        "span_s": report["duration_ms"] / 1e3,
    }


if __name__ == "__main__":
    arguments = sys.argv[1], json.loads(sys.argv[2])
    replay(*arguments)  # the first replay of a process is slower, as the first run of ours is
    print(json.dumps(replay(*arguments)))
