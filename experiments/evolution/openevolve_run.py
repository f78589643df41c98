"""OpenEvolve on a task, its language model replaced by a stub that answers with the mutator's programs.

In an environment of its own, with servegym and OpenEvolve (tried: 0.4.1):

    python -m venv .openevolve && .openevolve/bin/pip install -e . openevolve
    .openevolve/bin/python -m experiments.evolution.openevolve_run --iterations 10

It shows that the protocol is what the framework asks for: metrics arrive in its database, and feedback in its prompts.
With a model of your own: `openevolve-run initial_program.py evaluator.py --config ...` in a task's folder.
"""

import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import typer

from experiments.evolution.mutator import BEGIN, mutated

TASK = Path(__file__).parent / "batch_scheduler"
PROGRAM = re.compile(r"```python\n(.*?)```", re.DOTALL)
FEEDBACK = "loses most on"  # as `results.feedback` says


def stub(change: Callable[[str], str], prompts: list[str]) -> ThreadingHTTPServer:
    """A chat completion API on a free port of 127.0.0.1: it answers with the last program of the prompt, changed."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompt = "\n".join(str(message["content"]) for message in body["messages"])
            prompts.append(prompt)
            program = [code for code in PROGRAM.findall(prompt) if BEGIN in code][-1]
            message = {"role": "assistant", "content": f"```python\n{change(program)}\n```"}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            answer = {
                "id": "stub",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [choice],
            }
            text = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def run(iterations: int, seed: int, folder: Path) -> tuple[Any, list[str]]:
    """What OpenEvolve returns, and the prompts it sent."""
    from openevolve import run_evolution
    from openevolve.config import Config, LLMModelConfig

    random, prompts = np.random.default_rng(seed), []  # type: ignore[var-annotated]
    server = stub(lambda program: mutated(program, random), prompts)
    address = f"http://127.0.0.1:{server.server_address[1]}/v1"
    config = Config()
    config.random_seed, config.diff_based_evolution = seed, False
    model = LLMModelConfig(name="stub", api_base=address, api_key="none", timeout=60, retries=1, retry_delay=1)
    model.max_tokens, model.temperature = 4096, 0.0
    config.llm.models = config.llm.evaluator_models = [model]
    config.evaluator.parallel_evaluations, config.evaluator.cascade_evaluation = 1, False
    config.evaluator.timeout, config.evaluator.max_retries = 900, 0
    try:
        found = run_evolution(
            TASK / "initial_program.py", TASK / "evaluator.py", config, iterations, str(folder), cleanup=False
        )
    finally:
        server.shutdown()
    return found, prompts


def main(iterations: int = 10, seed: int = 0, out: Path = Path("results/openevolve")) -> None:
    found, prompts = run(iterations, seed, out)
    heard = sum(FEEDBACK in prompt for prompt in prompts)
    print(f"best combined_score {found.best_score:.4f} after {iterations} iterations; {len(prompts)} prompts, "
          f"{heard} of them with the feedback; metrics: {', '.join(sorted(found.metrics)[:6])}, ...")  # fmt: skip
    if not prompts or not heard or found.best_score <= 0 or "slo_attainment" not in found.metrics:
        raise SystemExit("OpenEvolve and the evaluator did not understand each other")


if __name__ == "__main__":
    typer.run(main)
