"""The process that checks a file of policies: `python -m servegym.evaluation.policy_checks.worker FILE.py SECONDS`.

A line of JSON for each step: {"at": ...} before what may crash or never end, {"refused": ...} where a policy is.
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
COMPILING_S = 600  # at most, for all that is compiled


def say(**line: str) -> None:
    print(json.dumps(line), flush=True)


def main(path: Path, limit_s: int) -> None:
    from servegym.baselines import registry

    registry.load()
    try:
        check_file(path, limit_s, say)
    except ServegymError as error:
        say(refused=str(error))


def check_file(path: Path, limit_s: int, say: Callable[..., None]) -> list[Policy]:
    """Check what a file registers; shipped policies are loaded. Everything compiled from now on checks bounds.

    Raises PolicyError with what a policy did that it should not.
    """
    from servegym.evaluation.policy_checks.scenes import scenes_for
    from servegym.simulator.compilation import kernels as compilation
    from servegym.simulator.runs.loops import WHOLE

    WHOLE.entry  # noqa: B018  The loop itself as it always is: its bounds are its own affair, and this is a minute less
    compilation.check_bounds()
    found = loaded(path, limit_s, say)
    for policy in found:
        for function in (policy.function, policy.victims):
            check_no_dice(policy, function)
        for name, scenario in scenes_for(policy):
            say(at=f"{policy.kind} {policy.name}: {name}")
            serve(policy, scenario, limit_s)
    return found


def loaded(path: Path, limit_s: float, say: Callable[..., None]) -> list[Policy]:
    """The policies that a file registers; SIGALRM ends this process if its top-level code takes too long."""
    from servegym.evaluation.policy_files import load_policy_files
    from servegym.simulator.policies import policy as policies

    say(at=f"{path.name} itself, as it is imported")
    before = policies.registered()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    load_policy_files([path])
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    return [policy for key, policy in policies.registered().items() if key not in before]


def check_no_dice(policy: Policy, function: Compiled) -> None:
    """Raise PolicyError for a function that draws random numbers without a known seed."""
    from servegym.simulator.compilation.kernels import reached_kernels, reached_values
    from servegym.simulator.policies.compile_errors import line_of

    for kernel in reached_kernels(function):
        for name, value in reached_values(kernel):
            if type(getattr(value, "__self__", None)).__name__ in GENERATORS:
                raise PolicyError(
                    f"{line_of(function, name.rpartition('.')[2])}: {policy.kind} {policy.label} draws from {name}; "
                    "what it decides should be the same whenever it is asked the same: servegym.policy has "
                    "uniform(seed, stream, counter)"
                )


def serve(policy: Policy, scenario: Scenario, limit_s: int) -> None:
    """One small scenario, each decision of the policy asked for under guard, and the run as it is.

    Raises PolicyError with what the policy did that it should not. The process ends by SIGALRM after limit_s.
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
    simulation.loop = WHOLE  # which is ready
    signal.alarm(limit_s)  # ends this process: the only way to interrupt a kernel that never returns
    stop_at = {"scheduler": AT_BATCHES, "router": AT_ROUTES, "scaler": AT_CHECKS}[policy.kind]
    try:
        while simulation.advance_to(stop_at):
            check_decision(simulation, policy)
    except PolicyError:
        # A router or scaler has been asked before its guard is: of a bounds check that says the line.
        if simulation.failures and not simulation.failures[0].file:
            check_decision(simulation, policy)
        raise
    finally:
        signal.alarm(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
