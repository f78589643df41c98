"""Medha's adaptive chunking, as QoServe compares with it (its section 4.5.1).

Chunks shrink as the context grows, so that the time between tokens stays constant. Slack is not used.
"""

from servegym.policy import (
    MISFIT_STOP,
    Fact,
    Parameter,
    Parameters,
    Policy,
    is_decoding,
    register,
    scheduler,
    tokens_of_decode,
)

P = Parameters(
    Parameter("tbt_s", Fact("min_tpot_slo_s"), "time a batch may take, before division by safety", 0.001, 10, "s",
              log=True, source="Medha: the TBT SLO"),
    Parameter("safety", 1.2, "safety factor: tbt_s is divided by it", 1, 10, source="as for qoserve"),
    Parameter("largest_chunk_tokens", 2500, "most prefill tokens in a batch", 1, 2**20, "tokens", integer=True,
              log=True, source="QoServe, section 4.1.4"),
    Parameter("max_num_seqs", 128, "most requests that may hold memory", 1, 2**20, "requests", integer=True,
              log=True, source="Sarathi-Serve"),
)  # fmt: skip


@scheduler
def medha(context, ranks, limits):
    p, decodes = P.read(context), 0
    for position in range(context.queue.shape[0]):
        request = context.requests[context.queue[position]]
        decoding = is_decoding(request)
        if decoding:
            decodes += 1
        ranks[position].tier = 0 if decoding else 1
        ranks[position].key = request.arrival_s
    limits.time_budget_s = p.tbt_s / p.safety
    limits.untimed_decodes = 1
    limits.misfit = MISFIT_STOP
    limits.max_num_batched_tokens = decodes * tokens_of_decode(context.engine) + p.largest_chunk_tokens
    limits.max_num_seqs = p.max_num_seqs


register(
    Policy(
        "medha",
        "scheduler",
        "Decodes first, then prefill chunks in order of arrival, each cut to hold a fixed time between tokens.",
        "QoServe, section 4.5.1; Medha",
        medha,
        parameters=P,
    )
)  # fmt: skip
