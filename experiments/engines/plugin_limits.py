"""What it costs where vLLM cannot be made to do what a policy decides, in the simulator
(docs/results/vllm-parity.md).

    python -m experiments.engines.plugin_limits [--seeds 10] [--requests 3000] [--loads 0.7 1.0 1.4]

Each variant is slide-batching as an engine would serve it that takes less from the plug-in:

running first   what runs goes before all that wait, as vLLM's loop does: no running request is skipped
in order        a batch ends at the first request that does not fit, as a token budget does: nothing is passed over
both            only vLLM's order and budgets are set, and nothing is skipped or hidden

Printed: the mean TDG ratio of the policy as decided and of each variant over the seeds, and the paired difference with
its 95 % interval.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

from servegym.baselines import registry
from servegym.baselines.schedulers.slide_batching import slide_batching as decide
from servegym.evaluation.compared import COMPARED
from servegym.evaluation.comparison import Comparison
from servegym.evaluation.intervals import student_interval
from servegym.evaluation.markdown import narrow_header, row
from servegym.simulator.compilation.kernels import specialised
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.policy import Policy, get_policy
from servegym.simulator.records.signatures import scheduler
from servegym.simulator.records.types import LEAVE_OUT, MISFIT_STOP
from servegym.simulator.runs.simulation import Simulation

WAITING = 2**40  # tiers between those that run and those that wait


@scheduler
def running_first(context, ranks, limits):
    decide(context, ranks, limits)
    for position in range(context.queue.shape[0]):
        if context.requests[context.queue[position]].blocks == 0 and ranks[position].tier < LEAVE_OUT:
            ranks[position].tier += WAITING


@scheduler
def in_order(context, ranks, limits):
    decide(context, ranks, limits)
    limits.misfit = MISFIT_STOP


@scheduler
def running_first_in_order(context, ranks, limits):
    decide(context, ranks, limits)
    for position in range(context.queue.shape[0]):
        if context.requests[context.queue[position]].blocks == 0 and ranks[position].tier < LEAVE_OUT:
            ranks[position].tier += WAITING
    limits.misfit = MISFIT_STOP


VARIANTS = {"running first": running_first, "in order": in_order, "both": running_first_in_order}


def as_served(policy: Policy, variant: str) -> Policy:
    """The policy as an engine serves it that takes less from the plug-in."""
    function = specialised(VARIANTS[variant], decide=policy.function)
    return dataclasses.replace(policy, name=f"{policy.name}, {variant}", function=function)


def ratios(comparison: Comparison, policies: dict[str, Policy], load: float) -> dict[str, list[float]]:
    """TDG ratio of each policy for each seed; all of a seed serve the same requests."""
    found: dict[str, list[float]] = {name: [] for name in policies}
    for seed in range(comparison.seeds):
        for name, policy in policies.items():
            scenario = Scenario(comparison.workloads[load, seed], comparison.deployment, policy)
            found[name].append(float(Simulation(scenario).run().summary["tdg_ratio"]))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trace", default="azure-conv")
    parser.add_argument("--device", default="a100-llama3-8b")
    parser.add_argument("--policy", default="slide-batching")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.7, 1.0, 1.4])
    given = parser.parse_args(arguments)
    registry.load()
    decided = get_policy("scheduler", given.policy)
    policies = {"as decided": decided} | {variant: as_served(decided, variant) for variant in VARIANTS}
    policies["vLLM's own"] = get_policy("scheduler", "vllm-v1")
    spec = COMPARED.replaced(
        trace=given.trace, device=given.device, scheduler=given.policy, load=given.loads, requests=given.requests
    )
    comparison = Comparison(spec, given.seeds)
    print(f"{comparison.title}: {decided.label}\n")
    print(*narrow_header("load", "what vLLM is made to do", "TDG ratio", "difference", "95 % interval"), sep="\n")
    for load in given.loads:
        found = ratios(comparison, policies, load)
        for name, values in found.items():
            mean = sum(values) / len(values)
            change = student_interval([a - b for a, b in zip(values, found["as decided"], strict=True)])
            gap = [f"{change.mean:+.4f}", f"{change.low:+.4f} to {change.high:+.4f}"]
            print(row(f"{load:g}", name, f"{mean:.4f}", *(["", ""] if name == "as decided" else gap)), flush=True)


if __name__ == "__main__":
    main()
