"""The process that checks a file of policies: `python -m servegym.evaluation.policy_checks.worker FILE.py SECONDS`.

It prints a line of JSON for each step: {"at": ...} before a step that may crash or never end, {"refused": ...} for a
refused policy.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from servegym.errors import PolicyError, ServegymError

if TYPE_CHECKING:
    from servegym.simulator.compilation.kernels import Compiled
    from servegym.simulator.inputs.scenario import Scenario
    from servegym.simulator.policies.policy import Policy

GENERATORS = ("RandomState", "Random", "Generator")  # of NumPy and Python
COMPILING_S = 600  # limit of compiling a policy


def send(**line: str) -> None:
    print(json.dumps(line), flush=True)


def main(path: Path, limit_s: int) -> None:
    from servegym.baselines import registry

    registry.load()
    try:
        check_file(path, limit_s, send)
    except ServegymError as error:
        send(refused=str(error))


def check_file(path: Path, limit_s: int, send: Callable[..., None]) -> list[Policy]:
    """Check the policies that a file registers, and return them. Everything compiled from now on checks bounds.

    Raises PolicyError for a policy that did what it should not.
    """
    from servegym.evaluation.policy_checks.scenes import scenes_for
    from servegym.simulator.compilation.settings import check_bounds
    from servegym.simulator.runs.loops import WHOLE

    WHOLE.entry  # noqa: B018  Load the loop without bounds checks, with which it would compile for a minute.
    check_bounds()
    found = loaded(path, limit_s, send)
    for policy in found:
        for function in (policy.function, policy.victims):
            check_no_dice(policy, function)
        for name, scenario in scenes_for(policy):
            send(at=f"{policy.kind} {policy.name}: {name}")
            serve(policy, scenario, limit_s)
    return found


def loaded(path: Path, limit_s: float, send: Callable[..., None]) -> list[Policy]:
    """Return the policies that a file registers; SIGALRM ends this process if its top-level code takes too long."""
    from servegym.evaluation.policy_files import load_policy_files
    from servegym.simulator.policies import policy as policies

    send(at=f"{path.name} itself, as it is imported")
    before = policies.registered()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    load_policy_files([path], option="")
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    return [policy for key, policy in policies.registered().items() if key not in before]


def check_no_dice(policy: Policy, function: Compiled) -> None:
    """Raise PolicyError for a function that draws random numbers without a known seed."""
    from servegym.simulator.compilation.digests import reached_kernels, reached_values
    from servegym.simulator.policies.compile_errors import line_of

    for kernel in reached_kernels(function):
        for name, value in reached_values(kernel):
            if type(getattr(value, "__self__", None)).__name__ in GENERATORS:
                raise PolicyError(
                    f"{line_of(function, name.rpartition('.')[2])}: {policy.kind} {policy.label} draws from {name}; "
                    "its decision should depend on its arguments alone: servegym.policy has "
                    "uniform(seed, stream, counter)"
                )


def serve(policy: Policy, scenario: Scenario, limit_s: int) -> None:
    """Run a small scenario, and check each decision of the policy in it.

    Raises PolicyError for a policy that did what it should not. The process ends by SIGALRM after limit_s.
    """
    from servegym.evaluation.policy_checks.guards import check_decision
    from servegym.simulator.policies.compile_errors import ensure_compiled
    from servegym.simulator.records.statuses import AT_BATCHES, AT_CHECKS, AT_ROUTES
    from servegym.simulator.runs.loops import WHOLE
    from servegym.simulator.runs.simulation import Simulation

    signal.alarm(COMPILING_S)
    for function in (policy.function, policy.victims):
        ensure_compiled(f"{policy.kind} {policy.label}", function)
    simulation = Simulation(scenario)
    simulation.loop = WHOLE  # which is compiled
    signal.alarm(limit_s)  # ends this process, which alone interrupts a kernel that never returns
    stop_at = {"scheduler": AT_BATCHES, "router": AT_ROUTES, "scaler": AT_CHECKS}[policy.kind]
    try:
        while simulation.advance_to(stop_at):
            check_decision(simulation, policy)
    except PolicyError:
        # The loop calls a router or scaler before its guard does, which finds the line of a failed bounds check.
        if simulation.failures and not simulation.failures[0].file:
            check_decision(simulation, policy)
        raise
    finally:
        signal.alarm(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
