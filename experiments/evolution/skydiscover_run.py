"""SkyDiscover on every task, its language model replaced by a stub that answers with the mutator's programs.

In an environment of its own, with servegym and SkyDiscover (tried: 0.1.0):

    python -m venv .skydiscover && .skydiscover/bin/pip install -e . skydiscover
    .skydiscover/bin/python -m experiments.evolution.skydiscover_run --iterations 3

The last answer of each task imports os: that program must score less than all others.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import typer
import yaml

from experiments.evolution.forms import TASKS, write
from experiments.evolution.mutator import mutated
from experiments.evolution.openevolve_run import FEEDBACK, stub


def run(folder: Path, iterations: int, seed: int) -> tuple[list[float], list[str]]:
    """Run `skydiscover-run` in a task's folder. Returns the score of each program in order, and the prompts."""
    random, prompts = np.random.default_rng(seed), []  # type: ignore[var-annotated]

    def change(program: str) -> str:
        return f"import os\n{program}" if len(prompts) >= iterations else mutated(program, random)

    config = yaml.safe_load((folder / "config.yaml").read_text("utf-8"))
    # The stub answers with whole programs, and adaevolve asks its model for more than programs.
    config |= {"diff_based_generation": False, "search": {"type": "topk"}}
    (folder / "stub.yaml").write_text(yaml.safe_dump(config), "utf-8")
    server = stub(change, prompts)
    words = ["initial_program.py", "evaluator.py", "--config", "stub.yaml", "--output", "out", "--model", "stub"]
    words += ["--iterations", str(iterations), "--api-base", f"http://127.0.0.1:{server.server_address[1]}/v1"]
    program = Path(sys.executable).with_name("skydiscover-run")
    try:
        subprocess.run(
            [program, *words], cwd=folder, env=os.environ | {"OPENAI_API_KEY": "none"}, check=True, stdout=sys.stderr
        )
    finally:
        server.shutdown()
    last = max((folder / "out" / "checkpoints").iterdir(), key=lambda path: int(path.name.rpartition("_")[2]))
    programs = [json.loads(path.read_text("utf-8")) for path in (last / "programs").glob("*.json")]
    programs.sort(key=lambda one: one["iteration_found"])
    return [one["metrics"]["combined_score"] for one in programs], prompts


def main(iterations: int = 3, seed: int = 0) -> None:
    with tempfile.TemporaryDirectory() as out:
        write("skydiscover", Path(out), TASKS, None)
        for task in TASKS:
            found, prompts = run(Path(out) / task, iterations, seed)
            print(f"{task}: {', '.join(f'{score:.4f}' for score in found)}", flush=True)
            if not found[-1] < min(found[:-1]) or not any(FEEDBACK in prompt for prompt in prompts):
                raise SystemExit(f"{task}: SkyDiscover and the evaluator did not understand each other")


if __name__ == "__main__":
    typer.run(main)
