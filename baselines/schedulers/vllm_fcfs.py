"""vLLM-FCFS as ProServe compares with it: prefill first, first come first served, static limits (its section 5.1)."""

from servegym.simulator.compilation import kernel
from servegym.simulator.policies import Parameter, Policy, register
from servegym.simulator.requests import is_decoding
from servegym.simulator.signatures import scheduler
from servegym.simulator.types import MISFIT_STOP, PHASE_FIRST_DECIDES

PARAMETERS = (
    Parameter("token_budget", 8192, "tokens in a batch; a longer prompt runs alone", 1, 2**20, "tokens",
              integer=True, log=True, source="ours"),
    Parameter("max_sequences", 256, "requests that may hold memory", 1, 2**20, "requests",
              integer=True, log=True, source="vLLM"),
)  # fmt: skip


@kernel
def take_whole_prompts(limits):
    """Prefills or decodes, whole prompts, and none out of its turn."""
    limits.phase = PHASE_FIRST_DECIDES
    limits.misfit = MISFIT_STOP
    limits.whole_prompts = 1


@kernel
def set_budgets(parameters, limits):
    """The limits of PARAMETERS, which are a policy's first, over whole prompts."""
    limits.token_budget = int(parameters[0])
    limits.holder_budget = int(parameters[1])
    take_whole_prompts(limits)


@scheduler
def vllm_fcfs(now_s, engine, requests, queue, state, parameters, estimator, plan, limits):
    set_budgets(parameters, limits)
    for place in range(queue.shape[0]):
        request = requests[queue[place]]
        plan[place].tier = 1 if is_decoding(request) else 0
        plan[place].key = request.arrival_s


register(
    Policy(
        "vllm-fcfs",
        "scheduler",
        "Prefills first, whole prompts, in order of arrival; decodes run when no prefill can.",
        "ProServe, section 5.1; vLLM V0",
        vllm_fcfs,
        parameters=PARAMETERS,
    )
)
