"""Asynchronous scheduling: vLLM with it and the simulator with `async_scheduling`, the same at every step?

    python -m experiments.engines.async_parity

Runs where vLLM is installed, for some minutes. vLLM's AsyncScheduler is driven as its engine core drives it: each step
is scheduled when the one before it starts (driving_ahead.py). Compared at each step: the tokens scheduled of each
request and the clock. Printed is a table, a line for each of CASES.
"""

from collections.abc import Iterator

from experiments.engines.plugin_parity import (
    batches_of,
    first_difference,
    own_scheduler,
    plugged_in,
    random_workload,
    simulate,
)
from experiments.engines.plugin_prefixes import demanding_sessions
from experiments.engines.vllm_driving import Limits
from experiments.engines.vllm_driving_ahead import drive_ahead
from servegym.adapters.vllm.versions import installed_version
from servegym.baselines import registry
from servegym.evaluation.markdown import narrow_header, narrow_row, row
from servegym.latency_models.profile import Profile, load_profile
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.policy import get_policy

OWN = "vllm-v1:max_num_batched_tokens={},max_num_seqs=256,watermark=0"
# The policy (vLLM itself: a token budget), blocks of 16 tokens, seed, requests (with caching: sessions), rate/s.
CASES: tuple[tuple[str | int, int, int, int, float, bool], ...] = (
    (1024, 4000, 1, 120, 20.0, False),
    (512, 900, 2, 120, 20.0, False),
    (1024, 500, 3, 120, 30.0, False),
    ("slide-batching", 4000, 1, 120, 20.0, False),
    ("slide-batching", 900, 1, 120, 60.0, False),
    ("slide-batching:variant=xllm,gamma=2", 900, 1, 120, 40.0, False),
    ("expected-gain", 900, 1, 120, 60.0, False),
    ("sarathi-fcfs:max_num_batched_tokens=512", 900, 1, 120, 40.0, False),
    ("weighted-vtc:max_num_batched_tokens=1024", 900, 1, 120, 40.0, False),
    ("vllm-v1:max_num_batched_tokens=1024", 900, 1, 120, 40.0, False),
    (1024, 900, 2, 60, 4.0, True),
    ("slide-batching", 900, 2, 60, 4.0, True),
    ("expected-gain", 400, 10, 60, 8.0, True),
    ("vllm-v1:max_num_batched_tokens=1024", 400, 3, 60, 4.0, True),
)


def workload_for(caching: bool, seed: int, count: int, rate_per_s: float) -> Workload:
    if caching:
        return demanding_sessions(seed, count, rate_per_s)
    return random_workload(seed, count, rate_per_s, 3000, 300)


def lines(profile: Profile) -> Iterator[str]:
    """The table."""
    yield from narrow_header(
        "decides", "blocks", "caching", "steps of both", "steps", "preemptions", "gain", "not as decided", "fallback"
    )
    total = equal = 0
    for decides, blocks, seed, count, rate_per_s, caching in CASES:
        stock, workload = isinstance(decides, int), workload_for(caching, seed, count, rate_per_s)
        limits = Limits(
            blocks,
            max_num_batched_tokens=int(decides) if stock else 2**16,
            async_scheduling=True,
            prefix_caching=caching,
        )
        policy = get_policy("scheduler", OWN.format(decides) if stock else str(decides))
        result = simulate(workload, limits, policy, profile, corrected=not stock)
        made = own_scheduler(limits) if stock else plugged_in(workload, limits, policy, profile, "exact")
        served = drive_ahead(made, workload, profile.device)
        first, steps = first_difference(served, result), len(served.steps)
        total, equal = total + steps, equal + (steps if first is None else first)
        gain = served.gain(workload)[0] / float(result.arrays.status[0].gain)
        counts = {} if stock else made.servegym.metrics.counts
        simulated = len(batches_of(result))
        said = "all equal" if first is None else f"equal up to step {first:,} of {simulated:,} simulated"
        yield row(
            "its own, vllm-v1" if stock else f"{decides}, plug-in", blocks, "yes" if caching else "no", said,
            f"{steps:,}", sum(len(step.preempted) for step in served.steps), f"{gain:.4f}",
            f"{counts.get('deviating_steps', 0):.0f}", f"{counts.get('fallback_steps', 0):.0f}",
        )  # fmt: skip
    yield narrow_row("in all", "", "", f"{equal:,} before the first difference of each", f"{total:,}", *[""] * 4)


def main() -> None:
    registry.load()
    print(f"vLLM {installed_version()}\n")
    for line in lines(load_profile("a100-llama3-8b")):
        print(line, flush=True)


if __name__ == "__main__":
    main()
