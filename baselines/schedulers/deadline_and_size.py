"""EDF and SJF under a token budget or a fixed batch size (ProServe, section 3.2, Figures 3 and 4)."""

from servegym.policy import ByWord, Fact, Parameter, Parameters, Policy, kernel, next_deadline_s, register, score

P = Parameters(
    Parameter("max_num_batched_tokens", ByWord("budget", {"fixed": 512, "profiled": Fact("profiled_token_budget")}),
              "most tokens in a batch", 1, 2**20, "tokens", integer=True, log=True),
    Parameter("batch_size", 0, "most requests in a batch, each run whole; 0: the token budget counts instead", 0, 2**20,
              "requests", integer=True, source="ours"),
    Parameter("budget", "fixed", "fixed: 512 tokens in a batch; profiled: as many as the device computes within the "
              "TPOT SLO, as under sarathi-fcfs", choices=("fixed", "profiled")),
)  # fmt: skip


@kernel
def fix_budget(limits, p):
    """Set a fixed batch size if there is one, else a token budget."""
    if p.batch_size > 0:
        limits.sequence_budget = p.batch_size
    else:
        limits.max_num_batched_tokens = p.max_num_batched_tokens


@score(P, limits=fix_budget)
def edf(request, engine, now_s, estimates, p):
    return next_deadline_s(request)


@score(P, limits=fix_budget)
def sjf(request, engine, now_s, estimates, p):
    return estimates.exec_s


register(
    Policy(
        "edf",
        "scheduler",
        "Earliest deadline of the next token first, under a fixed token budget or batch size.",
        "ProServe, section 3.2",
        edf,
        parameters=P,
    )
)
register(
    Policy(
        "sjf",
        "scheduler",
        "Shortest job first: least estimated time for what is left to compute, fixed token budget or batch size.",
        "ProServe, section 3.2",
        sjf,
        parameters=P,
    )
)
