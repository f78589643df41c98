"""`servegym warm-up`: compile kernels ahead of time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from servegym.cli.output import console_for
from servegym.errors import EnvError

if TYPE_CHECKING:
    from servegym.simulator.compilation.kernels import Compiled

EXAMPLES = """\
[bold]Examples[/bold]

servegym warm-up

servegym warm-up policies

servegym warm-up EngineBatching-v0 ClusterRouting-v0
"""
POLICIES = "policies"
STEPS = 20


def warm_up(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WHAT]...",
            help=f"Environments, such as EngineBatching-v0; {POLICIES}: all that runs of shipped policies need. By "
            "default everything.",
        ),
    ] = None,
) -> None:
    """Compile the kernels of policies, device models and environments, single and in vectors; all take some minutes,
    once for each version.

    They are kept in $SERVEGYM_CACHE, or ~/.cache/servegym. Progress is on standard error.
    """
    from servegym.envs.registration import NAMES

    known = (POLICIES, *NAMES)
    names = [name.removeprefix("servegym:") for name in what or known]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise EnvError(f"no environment {unknown[0]!r}; there are {', '.join(NAMES)}, and {POLICIES}")
    console = console_for(None)
    for number, name in enumerate(names, start=1):
        begin_s = time.monotonic()
        if name == POLICIES:
            serve_a_little()
        else:
            play_a_little(name)
        seconds = time.monotonic() - begin_s
        console.print(f"{name}: ready ({number} of {len(names)}, {seconds:.1f} s)", highlight=False)


def serve_a_little() -> None:
    """Make one run, and compile the functions of all others."""
    import servegym

    servegym.simulate(requests=STEPS)
    for kernel in shipped_kernels():
        kernel.entry  # noqa: B018


def shipped_kernels() -> Iterator[Compiled]:
    """Yield the event loops, and every function that a run may be given: of policies, latency models and gains."""
    from servegym.baselines import registry
    from servegym.latency_models.forms import forms
    from servegym.simulator.policies.gains import FUNCTIONS
    from servegym.simulator.runs.loops import LOOPS

    yield from LOOPS
    yield from FUNCTIONS.values()
    for form in forms().values():
        yield from (kernel for kernel in (form.batch_s, form.exec_s, form.request_s) if kernel is not None)
    for names, find in (
        (registry.scheduler_names(), registry.scheduler),
        (registry.router_names(), registry.router),
        (registry.scaler_names(), registry.scaler),
    ):
        for policy in map(find, names):
            yield from (policy.function, policy.victims)


def play_a_little(name: str) -> None:
    """Make some steps in an environment, single and in a vector."""
    import gymnasium as gym

    env = gym.make(f"servegym:{name}", disable_env_checker=True)
    _, info = env.reset(seed=0)
    for _ in range(STEPS):
        _, _, terminated, truncated, info = env.step(info["base_action"])
        if terminated or truncated:
            break
    envs = gym.make_vec(f"servegym:{name}", num_envs=2, vectorization_mode="vector_entry_point")
    _, infos = envs.reset(seed=0)
    envs.step(infos["base_action"])
