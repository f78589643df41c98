"""DistServe as FlowPrefill compares with it (its section 6.1): whole prompts by arrival, or chunks by deadline.

The same policy runs on prefill engines and on decode engines. Chunks of 2048 and of 8192 tokens have names of their
own, as in the paper's figures.
"""

from servegym.baselines.schedulers.vllm_fcfs import WHOLE_PROMPTS
from servegym.policy import Parameter, Parameters, Policy, is_decoding, limits_kernel, register, scheduler, score

DECODE_BATCH_SIZE = Parameter("decode_batch_size", 1024, "most requests in a batch on a decode engine", 1, 2**20,
                              "requests", integer=True, log=True, source="DistServe, evaluation code")  # fmt: skip
P = Parameters(
    Parameter("max_num_batched_tokens", 8192, "most tokens in a batch; a longer prompt runs alone", 1, 2**20, "tokens",
              integer=True, log=True, source="DistServe, evaluation code"),
    Parameter("prefill_batch_size", 128, "most prompts in a batch", 1, 2**20, "requests", integer=True, log=True,
              source="DistServe, evaluation code"),
    DECODE_BATCH_SIZE,
)  # fmt: skip
set_limits = limits_kernel({"max_num_batched_tokens": "max_num_batched_tokens", **WHOLE_PROMPTS}, P)


def chunks(tokens: int) -> Parameters:
    """Return the parameters of chunked prefill with this default chunk size."""
    return Parameters(
        Parameter("max_num_batched_tokens", tokens, "most tokens in a batch", 1, 2**20, "tokens", integer=True,
                  log=True, source="FlowPrefill, section 6.1"),
        DECODE_BATCH_SIZE,
    )  # fmt: skip


CHUNKS = {"distserve-cp2k": chunks(2048), "distserve-cp8k": chunks(8192)}


@scheduler
def distserve(context, ranks, limits):
    p = P.read(context)
    set_limits(limits, p)
    limits.sequence_budget = p.decode_batch_size
    for position in range(context.queue.shape[0]):
        request, rank = context.requests[context.queue[position]], ranks[position]
        rank.tier = 1
        rank.key = request.arrival_s
        if not is_decoding(request):
            rank.tier = 0
            limits.sequence_budget = p.prefill_batch_size


@score(
    CHUNKS["distserve-cp2k"],
    limits={"max_num_batched_tokens": "max_num_batched_tokens", "sequence_budget": "decode_batch_size"},
    decodes="first",
)
def distserve_chunks(request, engine, now_s, estimates, p):
    return request.first_deadline_s


register(
    Policy(
        "distserve",
        "scheduler",
        "Whole prompts in order of arrival, several in a batch up to a number of tokens; decodes in order of arrival.",
        "DistServe; FlowPrefill, section 6.1",
        distserve,
        parameters=P,
    )
)
for _name, _parameters in CHUNKS.items():
    register(
        Policy(
            _name,
            "scheduler",
            f"Chunked prefill by deadline: after every {_parameters[0].default} tokens the earliest deadline is next.",
            "FlowPrefill, section 6.1",
            distserve_chunks,
            parameters=_parameters,
        )
    )
