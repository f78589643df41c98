"""DistServe as FlowPrefill compares with it (its section 6.1): whole prompts by arrival, or chunks by deadline.

Prefill engines run prompts, decode engines all their decodes; the same policy serves on both. Chunks of 2048 and of
8192 tokens have names of their own, as in the paper's figures.
"""

from servegym.baselines.schedulers.sarathi import rank_after_decodes
from servegym.baselines.schedulers.vllm_fcfs import take_whole_prompts
from servegym.simulator.policies import Parameter, Policy, register
from servegym.simulator.requests import is_decoding
from servegym.simulator.signatures import scheduler

DECODE_BATCH_SIZE = Parameter(
    "decode_batch_size", 1024, "requests in a batch on a decode engine", 1, 2**20, "requests", integer=True, log=True,
    source="DistServe, evaluation code",
)  # fmt: skip


@scheduler
def distserve(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    take_whole_prompts(limits)
    limits.token_budget = int(parameters[0])
    limits.sequence_budget = int(parameters[2])
    for place in range(queue.shape[0]):
        request = requests[queue[place]]
        plan[place].tier = 1
        plan[place].key = request.arrival_s
        if not is_decoding(request):
            plan[place].tier = 0
            limits.sequence_budget = int(parameters[1])


@scheduler
def distserve_chunks(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    limits.token_budget = int(parameters[0])
    limits.sequence_budget = int(parameters[1])
    for place in range(queue.shape[0]):
        request = requests[queue[place]]
        rank_after_decodes(request, plan[place], 0, request.first_deadline_s)


register(
    Policy(
        "distserve",
        "scheduler",
        "Whole prompts in order of arrival, several in a batch up to a number of tokens; decodes in order of arrival.",
        "DistServe; FlowPrefill, section 6.1",
        distserve,
        parameters=(
            Parameter("token_budget", 8192, "tokens in a batch; a longer prompt runs alone", 1, 2**20, "tokens",
                      integer=True, log=True, source="DistServe, evaluation code"),
            Parameter("prefill_batch_size", 128, "prompts in a batch", 1, 2**20, "requests", integer=True, log=True,
                      source="DistServe, evaluation code"),
            DECODE_BATCH_SIZE,
        ),
    )
)  # fmt: skip
for _name, _chunk_tokens in (("distserve-cp2k", 2048), ("distserve-cp8k", 8192)):
    register(
        Policy(
            _name,
            "scheduler",
            f"Chunked prefill by deadline: prompts are cut and taken anew after every {_chunk_tokens} tokens.",
            "FlowPrefill, section 6.1",
            distserve_chunks,
            parameters=(
                Parameter("token_budget", _chunk_tokens, "tokens in a batch", 1, 2**20, "tokens", integer=True,
                          log=True, source="FlowPrefill, section 6.1"),
                DECODE_BATCH_SIZE,
            ),
        )
    )  # fmt: skip
