"""Sarathi-Serve's stall-free batching, and ProServe's extension by priority (its section 5.1)."""

from servegym.policy import Fact, Parameter, Parameters, Policy, register, score

P = Parameters(
    Parameter("max_num_batched_tokens", Fact("profiled_token_budget"), "most tokens in a batch", 1, 2**20, "tokens",
              integer=True, log=True, source="Sarathi-Serve, section 4: a full batch meets the TBT SLO"),
    Parameter("max_num_seqs", 128, "most requests that may hold memory", 1, 2**20, "requests",
              integer=True, log=True, source="Sarathi-Serve"),
)  # fmt: skip


LIMITS = {"max_num_batched_tokens": "max_num_batched_tokens", "max_num_seqs": "max_num_seqs"}


@score(P, limits=LIMITS, decodes="first")
def sarathi_fcfs(request, engine, now_s, estimates, p):
    return request.arrival_s


@score(P, limits=LIMITS, decodes="first", by_priority=True)
def sarathi_priority(request, engine, now_s, estimates, p):
    return request.arrival_s


register(
    Policy(
        "sarathi-fcfs",
        "scheduler",
        "Decodes first, then prefill chunks in order of arrival, under a static token budget.",
        "Sarathi-Serve; ProServe, section 5.1",
        sarathi_fcfs,
        parameters=P,
    )
)
register(
    Policy(
        "sarathi-priority",
        "scheduler",
        "Decodes first, then prefill chunks by priority, then arrival, under a static token budget.",
        "ProServe, section 5.1",
        sarathi_priority,
        parameters=P,
    )
)
