"""Two vLLM servers on one GPU, half of its memory each, behind `servegym proxy`: routers in their order, measured.

    python3 -m experiments.gpu.two_engines --out $OUT --limit-s 480

Agents' sessions with prefix caching, no longer than a GPU has time for. The saturation of both engines together by
round-robin, then each router at loads 1.4 and 1.0, over HTTP: a line in OUT/runs.jsonl for each. The engines share the
GPU's time too, so it is the order of the routers that says something, and not how much two engines serve. `--warm`
only compiles the routers' kernels, while another script has the GPU.
"""

import contextlib
import dataclasses
import itertools
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.engines.servers import HOST, MODEL, Emulated, counters, start, wait_for
from experiments.engines.serving import artifact_for
from experiments.engines.two_servers import Settings, proxy
from experiments.gpu.driving import Served
from experiments.gpu.models import config_of, make_shape
from experiments.gpu.records import Lines, coded
from experiments.gpu.starting import ENVIRONMENT, REHEARSAL, Shape, lines_of, parser_of
from experiments.gpu.workloads import profile_of, workload_of
from servegym.adapters.replay.bodies import Bodies
from servegym.adapters.replay.sending import Endpoint, replay
from servegym.baselines.artifact import save_artifact
from servegym.latency_models.profile import Profile
from servegym.simulator.inputs.workload import Workload

ROUTERS = ("round-robin", "predicted-cost", "prefix-affinity", "min-load")  # round-robin first: it measures saturation
LOADS, TRACE = (1.4, 1.0), "agent-sessions"
CONTEXT_TOKENS, OUTPUT_TOKENS = 12288, 400  # of the trace, at most
REQUESTS, PORT, LEAST_S = 250, 18300, 40.0
MEMORY_SHARE = 0.43  # of the GPU, each


@dataclasses.dataclass(frozen=True)
class Real(Emulated):
    """A server with vLLM's own device. memory_share: of the GPU."""

    memory_share: float = MEMORY_SHARE
    rehearse: bool = False

    def command(self) -> list[str]:
        limits = {
            "max-num-seqs": self.max_num_seqs, "max-num-batched-tokens": self.max_num_batched_tokens,
            "max-model-len": self.max_model_len, "gpu-memory-utilization": self.memory_share,
        }  # fmt: skip
        return [
            str(self.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model),
            "--served-model-name", MODEL, "--host", HOST, "--port", str(self.port), "--load-format", "dummy",
            "--enable-prefix-caching", "--disable-uvicorn-access-log",
            *(word for name, value in limits.items() for word in (f"--{name}", str(value))),
            *(["--enforce-eager"] if self.rehearse else []), *self.options,
        ]  # fmt: skip

    def variables(self) -> dict[str, str]:
        return super().variables() | {"SERVEGYM_DEVICE": ""} | ENVIRONMENT | (REHEARSAL if self.rehearse else {})


def servers(models: Path, rehearse: bool) -> list[Real]:
    shape = Shape(batch_tokens=512, sequences=32, context_tokens=2048) if rehearse else Shape()
    return [
        Real(
            python=Path(sys.executable), model=make_shape(models, shape.model, tiny=rehearse), port=PORT + 1 + place,
            device="", max_num_seqs=shape.sequences, max_num_batched_tokens=shape.batch_tokens,
            max_model_len=shape.context_tokens, rehearse=rehearse,
            memory_share=0.1 if rehearse else MEMORY_SHARE,
        )
        for place in range(2)
    ]  # fmt: skip


def sent(up: list[Real], requests: int, rate_per_s: float | None, profile: Profile) -> Workload:
    return workload_of(TRACE, requests, rate_per_s, 0, context_tokens_of(up), profile, OUTPUT_TOKENS)


def context_tokens_of(up: list[Real]) -> int:
    return min(CONTEXT_TOKENS, up[0].max_model_len)


def policy_of(router: str, out: Path, workload: Workload, profile: Profile) -> Path:
    """The artifact of a router, under OUT/policies."""
    folder = out / "policies"
    folder.mkdir(parents=True, exist_ok=True)
    made = artifact_for({"router": router, "scheduler": "vllm-v1"}, workload, profile)
    return Path(save_artifact(made, folder / f"router-{router}.json"))


def prefix_hits(url: str) -> dict[str, float]:
    """Prompt tokens that the server has looked up in its prefix cache since it started, and those found there."""
    return {name.partition("{")[0]: value for name, value in counters(url, "vllm:prefix_cache_").items()}


def minus(after: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def warm(out: Path, up: list[Real]) -> None:
    """Compile what the proxy runs, by starting it once for each router."""
    profile = profile_of(None)
    workload = sent(up, 10, 1.0, profile)
    for router in ROUTERS:
        policy = policy_of(router, out, workload, profile)
        with proxy(Settings(port=PORT + 10), list(up), policy, policy.with_suffix(".log")):
            print(f"{router}: compiled", file=sys.stderr, flush=True)


def route(lines: Lines, up: list[Real], router: str, load: float | None, requests: int, rehearse: bool) -> None:
    """Serve with one router at one load (None: all at once). The prompts are of this run alone, since the engines still
    cache those of the runs before."""
    saturation = lines.found.get(f"two engines, {ROUTERS[0]}, saturation")
    rate_per_s = None if load is None or saturation is None else load * saturation["finished"] / saturation["span_s"]
    if load is not None and rate_per_s is None:
        return
    profile = profile_of(None)
    name = f"two engines, {router}, " + ("saturation" if load is None else f"load {load:g}")

    def run() -> dict[str, Any]:
        workload = sent(up, requests, rate_per_s, profile)
        policy = policy_of(router, lines.path.parent, workload, profile)
        vocabulary = int(config_of("llama-3.1-8b", rehearse)["vocab_size"])
        with proxy(Settings(port=PORT), list(up), policy, policy.with_suffix(".log")):
            endpoint = Endpoint(f"http://{HOST}:{PORT}", timeout_s=max(10.0, lines.budget.left_s - 5.0))
            before = [prefix_hits(server.url) for server in up]
            replayed = replay(workload, endpoint, Bodies(MODEL, vocabulary=vocabulary, seed=zlib.crc32(name.encode())))
            hits = [minus(prefix_hits(server.url), was) for server, was in zip(up, before, strict=True)]
        due_s = np.array([record.due_s for record in replayed.records])
        nothing = np.zeros(0)
        served = Served(due_s, [r.token_s for r in replayed.records], nothing, nothing, {}, replayed.interrupted)
        return {
            "trace": TRACE, "router": router, "load": load, "rate_per_s": rate_per_s, "seed": 0,
            "digest": workload.digest, "profile": profile.name, "context_tokens": context_tokens_of(up),
            "statuses": replayed.counts(), "prefix_hits": hits,
            **served.figures(workload), "arrays": coded(served.arrays(workload)),
        }  # fmt: skip

    lines.attempt(name, LEAST_S, run)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__, 480.0)
    parser.add_argument("--warm", action="store_true", help="compile what the proxy runs, and nothing else")
    given = parser.parse_args(arguments)
    up = servers(given.models, given.rehearse)
    if given.warm:
        warm(given.out, up)
        return 0
    lines = lines_of(given)
    loads, requests = (LOADS[:1], 10) if given.rehearse else (LOADS, REQUESTS)
    with contextlib.ExitStack() as stack:
        logs = [given.out / f"server-{place}.log" for place in range(len(up))]
        # One after the other: vLLM measures the free memory when it starts.
        for server, log in zip(up, logs, strict=True):
            process = stack.enter_context(start(server, log))
            wait_for(server, process, log)
        route(lines, up, ROUTERS[0], None, requests, given.rehearse)
        for load, router in itertools.product(loads, ROUTERS):
            route(lines, up, router, load, requests, given.rehearse)
    return 0


if __name__ == "__main__":
    sys.exit(main())
