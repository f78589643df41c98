"""How much is measured, and the scenario that most benchmarks share."""

from dataclasses import dataclass

from servegym.baselines.registry import scheduler
from servegym.latency_models.profile import load_profile
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.traces.workloads import build_workload

TRACE, RATE_PER_S, MAX_PROMPT_TOKENS = "azure-conv", 6.0, 4096
DEVICE = "a100-llama3-8b"
TOKEN_BUDGET, MAX_SEQUENCES = 512, 128
SCHEDULER = f"sarathi-fcfs:max_num_batched_tokens={TOKEN_BUDGET},max_num_seqs={MAX_SEQUENCES}"


@dataclass(frozen=True)
class Sizes:
    """How much is measured; the bounds are stated for the defaults.

    repetitions: of what is timed inside this process; the median is reported.
    process_repetitions: the same for whole processes.
    scheduler_queue_length: requests queued where schedulers are compared, for scheduler_iterations iterations.
    decisions: of each scheduler, in one repetition.
    streamed_days: of memory_requests requests each, streamed from a file.
    queue_length: requests queued in the overload benchmark; other_queue_lengths: where its cost is compared.
    cluster_requests, cluster_engines: served in one run; cluster_repetitions: runs, each in a process of its own.
    routed_engines: of the cluster in which routers are timed, routed_requests_per_engine of the run they are in the
    middle of, and routed_decisions the requests routed there.
    session_requests, session_engines: served in one run where sessions are measured.
    compared_cluster_requests: served by us and by Dynamo with several engines. compared_trace_requests: of Mooncake's
    trace, by us and by AISimulate; None: all.
    episode_requests: an engine's, of the episodes that environments are measured by; environment_steps: a quarter of
    those of one alone in one repetition; ppo_rollouts: that PPO collects and learns from in one repetition.
    """

    requests: int = 4000
    repetitions: int = 5
    queue_length: int = 2700
    other_queue_lengths: tuple[int, ...] = (700, 1400, 5400)
    memory_requests: int = 1_000_000
    streamed_days: int = 4
    process_requests: int = 1000
    process_repetitions: int = 3
    scheduler_queue_length: int = 2000
    scheduler_iterations: int = 400
    decisions: int = 500
    cluster_requests: int = 300_000
    cluster_engines: int = 64
    cluster_repetitions: int = 3
    routed_engines: int = 128
    routed_requests_per_engine: int = 400
    routed_decisions: int = 1000
    session_requests: int = 537_600
    session_engines: int = 256
    compared_cluster_requests: int = 8000
    compared_trace_requests: int | None = None
    environment_steps: int = 2000
    episode_requests: int = 400
    ppo_rollouts: int = 4


QUICK = Sizes(repetitions=2, process_repetitions=1, cluster_repetitions=1, session_requests=53_760, session_engines=32)


def workload(requests: int, rate_per_s: float | None = RATE_PER_S, slo: str = "proserve") -> Workload:
    """Poisson arrivals with lengths of Azure's conversations; without a rate, all at once."""
    return build_workload(
        TRACE,
        requests=requests,
        rate_per_s=rate_per_s,
        arrivals="at-once" if rate_per_s is None else None,
        max_prompt_tokens=MAX_PROMPT_TOKENS,
        slo=slo,
        seed=0,
    )


def scenario(served: Workload, policy: str = SCHEDULER) -> Scenario:
    """A workload on one A100 with Llama-3-8B, to the end."""
    return Scenario(served, load_profile(DEVICE).deployment(), scheduler(policy))
