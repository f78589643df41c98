"""The OpenEnv environment: server and client, every task, programs of the mutator.

In an environment of its own, with the package that `forms openenv` writes and the OpenEnv it asks for (tried: 0.10.0):

    python -m experiments.evolution.forms openenv build/openenv
    python -m venv .openenv
    (cd build/openenv/servegym_search && ../../../.openenv/bin/pip install servegym-*.whl .)
    .openenv/bin/python -m experiments.evolution.openenv_run --attempts 3

The last program of each task imports os: it must be refused, with a reward less than all others.
"""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request

import numpy as np
import typer

from experiments.evolution.mutator import mutated

NAME = "servegym_search"


def run(address: str, task: str, attempts: int, seed: int) -> list[float]:
    """Play an episode of a task. Returns its rewards; raises SystemExit for an answer that is not right."""
    from servegym_search import ProgramAction, SearchEnv

    random = np.random.default_rng(seed)
    rewards: list[float] = []
    with SearchEnv(base_url=address).sync() as env:
        program = env.reset(task=task, attempts=attempts).observation.program
        for attempt in range(attempts):
            last = attempt == attempts - 1
            result = env.step(ProgramAction(program=f"import os\n{program}" if last else program))
            if result.done != last or result.observation.refused != last or not result.observation.feedback:
                raise SystemExit(f"{task}: the environment answered {result}")
            rewards.append(float(result.reward))
            program = mutated(program, random)
    return rewards


def wait_for(address: str, seconds: float) -> None:
    """Return once the server is healthy. Raises SystemExit if it is not in time."""
    for _ in range(int(seconds * 2)):
        try:
            urllib.request.urlopen(f"{address}/health", timeout=2.0)
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.5)
    raise SystemExit(f"no server at {address} in {seconds:g} s")


def tasks_of(address: str) -> list[str]:
    """The names that the server's Task API lists."""
    asked = urllib.request.Request(
        f"{address}/{NAME}/tasks", json.dumps({"split": "train"}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=10.0) as answer:
        return [one["id"] for one in json.load(answer)["tasks"]]


def main(attempts: int = 3, seed: int = 0, port: int = 8423) -> None:
    address = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([sys.executable, "-m", "servegym_search.server.app", "--port", str(port)])
    try:
        wait_for(address, 60.0)
        for task in tasks_of(address):
            rewards = run(address, task, attempts, seed)
            print(f"{task}: {', '.join(f'{reward:.4f}' for reward in rewards)}", flush=True)
            if not rewards[-1] < min(rewards[:-1]):
                raise SystemExit(f"{task}: a refused program has a reward of {rewards[-1]}")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    typer.run(main)
