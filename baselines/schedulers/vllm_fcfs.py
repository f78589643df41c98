"""vLLM-FCFS as ProServe compares with it: prefill first, first come first served, static limits (its section 5.1)."""

from servegym.policy import MISFIT_STOP, PHASE_FIRST_DECIDES, Parameter, Parameters, Policy, register, score

P = Parameters(
    Parameter("max_num_batched_tokens", 8192, "most tokens in a batch; a longer prompt runs alone", 1, 2**20, "tokens",
              integer=True, log=True, source="ours"),
    Parameter("max_num_seqs", 256, "most requests that may hold memory", 1, 2**20, "requests",
              integer=True, log=True, source="vLLM"),
)  # fmt: skip
# A batch is all prefills or all decodes, prompts are whole, and the first misfit ends it.
WHOLE_PROMPTS: dict[str, str | float] = {"phase": PHASE_FIRST_DECIDES, "misfit": MISFIT_STOP, "whole_prompts": 1}
LIMITS: dict[str, str | float] = {
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_num_seqs": "max_num_seqs",
    **WHOLE_PROMPTS,
}


@score(P, limits=LIMITS, decodes="last")
def vllm_fcfs(request, engine, now_s, estimates, p):
    return request.arrival_s


register(
    Policy(
        "vllm-fcfs",
        "scheduler",
        "Prefills first, whole prompts, in order of arrival; decodes run when no prefill can.",
        "ProServe, section 5.1; vLLM V0",
        vllm_fcfs,
        parameters=P,
    )
)
