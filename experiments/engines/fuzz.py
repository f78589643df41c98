"""Random workloads with all that vLLM offers, on its own scheduler and on ours: nothing may be lost, or happen twice.

    python -m experiments.engines.fuzz [--steps 10000] [--seed 0] [--minutes 8] [--parts LoRA images]

Runs where vLLM is installed. Each scene has settings, a policy and features drawn from its seed, which is printed
where it fails; it is served by vLLM's own scheduler and by the plug-in. What is looked at is in fuzz_run.py. Printed is
a table by feature: what was not as decided and why.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.engines.fuzz_requests import FEATURES
from experiments.engines.fuzz_run import SETTINGS, Run, plugged_in, scene_of
from experiments.engines.plugin_parity import own_scheduler
from servegym.adapters.vllm.versions import installed_version
from servegym.baselines import registry
from servegym.evaluation.markdown import narrow_header, row

COUNTERS = ("decisions", "deviating_steps", "deviating_hits", "fallback_steps", "malformed_xargs")


class Fuzzed(NamedTuple):
    """What a fuzz has seen. by_part: steps and COUNTERS of the plug-in, by what scenes have; "all": of all scenes.
    deviations: in scenes that enforce exactly, requests that got something else, by what became of them.
    """

    scenes: int
    failures: list[str]
    by_part: dict[str, Counter[str]]
    deviations: Counter[str]

    @property
    def steps(self) -> int:
        return self.by_part["all"]["steps"]

    def table(self) -> str:
        lines = narrow_header("scenes with", "steps", *(name.replace("_", " ") for name in COUNTERS))
        for part, counts in self.by_part.items():
            if counts["steps"] > 0:
                lines.append(row(part, *(f"{counts[name]:,}" for name in ("steps", *COUNTERS))))
        return "\n".join(lines)


def fuzz(steps: int, seed: int, minutes: float, only: frozenset[str] | None = None) -> Fuzzed:
    """Scenes from this seed on, until the plug-in has had so many steps. Prints what fails when it does."""
    result = Fuzzed(0, [], {part: Counter() for part in ("all", *SETTINGS, *FEATURES)}, Counter())
    end_s = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as folder:
        while result.steps < steps and time.monotonic() < end_s:
            scene = scene_of(seed + result.scenes, only)
            result = result._replace(scenes=result.scenes + 1)
            for name, make in (
                ("its own", lambda scene: own_scheduler(scene.limits)),
                ("plug-in", lambda scene: plugged_in(scene, Path(folder))),
            ):
                run = None
                try:
                    run = Run(scene, make(scene))
                    run.serve()
                except Exception as error:
                    result.failures.append(f"{name}, {scene.title}: {type(error).__name__}: {error}")
                    print(f"FAILED, {result.failures[-1]}", flush=True)
                if run is not None and run.plugin is not None:
                    for part in ("all", *scene.parts):
                        counts = result.by_part[part]
                        counts["steps"] += run.steps
                        for counter in COUNTERS:
                            counts[counter] += int(run.plugin.metrics.counts[counter])
                    if "order only" not in scene.parts:
                        result.deviations.update(run.deviations)
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=10_000, help="of the plug-in, at least (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first scene (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=8.0, help="after which no scene begins (default: %(default)s)")
    parser.add_argument(
        "--parts", nargs="*", choices=(*SETTINGS, *FEATURES), help="what scenes have (default: anything)"
    )
    given = parser.parse_args(arguments)
    registry.load()
    only = None if given.parts is None else frozenset(given.parts)
    found = fuzz(given.steps, given.seed, given.minutes, only)
    scenes = f"{found.scenes} scenes from seed {given.seed}, {found.steps:,} steps, {len(found.failures)} failed"
    print(f"vLLM {installed_version()}: {scenes}\n\n{found.table()}")
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
