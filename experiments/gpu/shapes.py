"""More than one shape on a GPU: a model with experts, 8-bit weights, and prefix caching on sessions.

    python3 -m experiments.gpu.shapes --out $OUT --limit-s 480

Each in a process of its own (`--only NAME` is one of them here), since vLLM does not give all of a GPU back before its
process ends: the saturation of a trace, then load 1.4 and 0.8 by vLLM's own scheduler and by expected-gain. What of it
OUT/runs.jsonl has is not run again. Two engines behind a proxy: `two_engines.py`.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from experiments.gpu.first_life import start
from experiments.gpu.served import planned, serve_one
from experiments.gpu.starting import Shape, lines_of, parser_of
from experiments.gpu.workloads import PROFILE, STOCK, profile_of

SHAPES = {
    "experts": (Shape("qwen3-30b-a3b", asynchronous=True), "azure-conv"),
    "prefixes": (Shape(asynchronous=True, more={"enable_prefix_caching": True}), "chat-sessions"),
    "fp8": (Shape(asynchronous=True, more={"quantization": "fp8"}), "azure-conv"),
}
ON_A_CPU = ("experts", "prefixes")  # what a rehearsal can do
LOADS, POLICIES, REQUESTS = (1.4, 0.8), (STOCK, "expected-gain"), 200
LEAST_S, REST_S = 90.0, 10.0


def run_here(name: str, arguments: Sequence[str]) -> int:
    """One shape, in this process."""
    given = parser_of(__doc__, 240.0).parse_args(arguments)
    lines = lines_of(given)
    lines.surroundings["shape"] = name
    shape, trace = SHAPES[name]
    meter = start(lines, shape, given.models, given.rehearse)
    if meter is None:
        return 1
    loads, requests = (LOADS[:1], 10) if given.rehearse else (LOADS, REQUESTS)
    for run in planned([trace], loads, POLICIES, (0,)):
        serve_one(meter, lines, run, requests, profile_of(PROFILE), f"{name}: ")
    meter.close()
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "--only" in words:
        at = words.index("--only")
        return run_here(words[at + 1], [*words[:at], *words[at + 2 :]])
    given = parser_of(__doc__, 480.0).parse_args(words)
    until_s, failed = time.monotonic() + given.limit_s, 0
    names = [name for name in SHAPES if name in ON_A_CPU or not given.rehearse]
    for place, name in enumerate(names):
        left_s = until_s - time.monotonic()
        if left_s < LEAST_S:
            break
        own_s = left_s / (len(names) - place) - REST_S
        command = [sys.executable, "-P", "-m", "experiments.gpu.shapes", *words, "--only", name]
        command += ["--limit-s", f"{own_s:.0f}"]  # the last one counts
        try:
            failed += subprocess.run(command, env=os.environ, timeout=left_s).returncode != 0
        except subprocess.TimeoutExpired:
            failed += 1
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
