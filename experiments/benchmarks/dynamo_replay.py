"""One offline replay of NVIDIA Dynamo: dynamo_replay.py TRACE.jsonl OPTIONS_AS_JSON

A script for the Python of Dynamo's environment (dynamo_setup.sh), which has no servegym. The options are keyword
arguments of its `run_trace_replay`. Prints JSON: the seconds of the simulation (`loop_s`: Dynamo's own wall_time_ms,
the construction and execution of its Rust runtime), those of the whole call, which also reads the trace (`call_s`),
and figures that tell whether it did the same work.
"""

import json
import sys
import time


def replay(trace: str, options: dict) -> dict:
    # Imported here: only Dynamo's environment has it, and servegym's tools import every module of the package.
    from dynamo.replay import run_trace_replay

    begin = time.perf_counter()
    report = run_trace_replay(trace, **options)
    call_s = time.perf_counter() - begin
    summary = report.summary
    return {
        "loop_s": summary["wall_time_ms"] / 1e3,
        "call_s": call_s,
        "requests": summary["completed_requests"],
        "prompt_tokens": summary["total_input_tokens"],
        "output_tokens": summary["total_output_tokens"],
        "mean_ttft_s": summary["mean_ttft_ms"] / 1e3,
        "mean_tpot_s": summary["mean_tpot_ms"] / 1e3,
        "span_s": summary["duration_ms"] / 1e3,
    }


if __name__ == "__main__":
    arguments = sys.argv[1], json.loads(sys.argv[2])
    replay(*arguments)  # the first replay of a process is slower, as the first run of ours is
    print(json.dumps(replay(*arguments)))
