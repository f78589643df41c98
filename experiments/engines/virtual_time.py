"""Drive vLLM's engine on an emulated device in virtual time: a workload's requests in, the times of its tokens out.

Nothing waits: the clock is the device's, and what the host's Python takes is not in it. So a run here and a simulated
one differ by what the schedulers decide and by nothing else.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from servegym.adapters.emulation.device import VIRTUAL_CLOCK
from servegym.adapters.emulation.settings import DEVICE, TIME
from servegym.errors import EmulationError
from servegym.simulator.inputs.workload import Workload

# Of vLLM, for an engine in this process. No telemetry: the clock that says when to send it stands still.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
OPTIONS = {
    "distributed_executor_backend": "servegym.adapters.emulation.Executor",
    "enable_prefix_caching": False,
    "enforce_eager": True,
    "disable_log_stats": True,
}
FIRST_TOKEN, LAST_TOKEN = 3, 256  # of prompts: any but special ones


def make_engine(model: str, device: str, **options: Any) -> Any:
    """vLLM's LLMEngine for a model folder, on a device (name or path of a profile) in virtual time.

    options: of vllm.EngineArgs. vLLM must not have been imported: it reads its environment when it is.
    """
    os.environ.update(ENVIRONMENT | {DEVICE: device, TIME: "virtual"})
    from vllm import EngineArgs, LLMEngine, envs

    if envs.VLLM_ENABLE_V1_MULTIPROCESSING:
        raise EmulationError("vLLM has been set up to run its engine in another process; import it after make_engine")
    with VIRTUAL_CLOCK.installed():
        return LLMEngine.from_engine_args(EngineArgs(model=model, **OPTIONS | options))


def drive(
    engine: Any,
    workload: Workload,
    arguments: Callable[[np.record], Mapping[str, Any]] | None = None,
    until_s: float = np.inf,
) -> list[np.ndarray]:
    """Serve a workload from time 0 on; the times in seconds at which each request's tokens came out, float64[tokens].

    arguments: what a request brings as vllm_xargs, of its row of the workload. until_s: stop at this time.
    Each answer has the workload's length (max_tokens, end of sequence ignored).
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    rng = np.random.default_rng(0)
    times: list[list[float]] = [[] for _ in range(len(workload))]
    table, arrived = workload.table, 0
    with VIRTUAL_CLOCK.installed():
        while arrived < len(table) or engine.has_unfinished_requests():
            if not engine.has_unfinished_requests():
                VIRTUAL_CLOCK.wait_until(float(table[arrived]["arrival_s"]))
            now_s = VIRTUAL_CLOCK.now_s()
            if now_s >= until_s:
                break
            while arrived < len(table) and table[arrived]["arrival_s"] <= now_s:
                row = table[arrived]
                params = SamplingParams(
                    max_tokens=int(row["output_tokens"]),
                    ignore_eos=True,
                    output_kind=RequestOutputKind.DELTA,
                    detokenize=False,
                    extra_args=dict(arguments(row)) if arguments else None,
                )
                prompt = {"prompt_token_ids": rng.integers(FIRST_TOKEN, LAST_TOKEN, row["prompt_tokens"]).tolist()}
                engine.add_request(
                    str(arrived), prompt, params, arrival_time=float(row["arrival_s"]), priority=int(row["priority"])
                )
                arrived += 1
            for output in engine.step():
                # vLLM may add to the name it was given.
                request = times[int(output.request_id.partition("-")[0])]
                request.extend([VIRTUAL_CLOCK.now_s()] * len(output.outputs[0].token_ids))
    return [np.array(request) for request in times]
