"""`servegym warm-up`: compile the kernels of environments ahead of time."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from servegym.cli.output import console_for
from servegym.errors import EnvError

EXAMPLES = """\
[bold]Examples[/bold]

servegym warm-up

servegym warm-up EngineBatching-v0 ClusterRouting-v0
"""
STEPS = 20


def warm_up(
    environments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ENVIRONMENT]...", help="Environments, such as EngineBatching-v0; all, if none is named."
        ),
    ] = None,
) -> None:
    """Compile the kernels of environments, single and in vectors: once for a version, some minutes for all.

    They are kept in $SERVEGYM_CACHE, or ~/.cache/servegym. What is compiled, and how much of it is left, is on
    standard error.
    """
    from servegym.envs.registration import NAMES

    names = [name.removeprefix("servegym:") for name in environments or NAMES]
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise EnvError(f"no environment {unknown[0]!r}; there are {', '.join(NAMES)}")
    console = console_for(None)
    for number, name in enumerate(names, start=1):
        begin_s = time.monotonic()
        play_a_little(name)
        seconds = time.monotonic() - begin_s
        console.print(f"{name} is ready ({number} of {len(names)}, {seconds:.1f} s)", highlight=False)


def play_a_little(name: str) -> None:
    """Some steps of an environment's own episodes, alone and side by side."""
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
