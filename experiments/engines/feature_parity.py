"""Each feature of vLLM by itself, at vLLM's defaults: how many steps were not as the policy had decided?

    python -m servegym.experiments.engines.feature_parity [--steps 1000]

Runs where vLLM is installed. The scenes are those of fuzz.py with prefix caching, asynchronous scheduling and chunked
prefill, and one feature; nothing but the feature can be why vLLM does something else. What the fuzz checks is checked.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from servegym.adapters.vllm.versions import installed_version
from servegym.baselines import registry
from servegym.experiments.engines.fuzz import Run, plugged_in, scene_of
from servegym.experiments.engines.fuzz_requests import FEATURES

DEFAULTS = frozenset({"asynchronous", "prefix caching"})
COUNTED = ("decisions", "deviating_steps", "deviating_tokens", "deviating_hits", "fallback_steps")
FIRST_SEED = 1000  # apart from those of the fuzz


def of_feature(parts: frozenset[str], steps: int, folder: Path) -> tuple[Counter[str], Counter[str]]:
    """So many steps or more with these parts: counts, and what became of requests that were not served as decided.

    Raises what the fuzz raises.
    """
    counts: Counter[str] = Counter()
    deviations: Counter[str] = Counter()
    while counts["steps"] < steps:
        run = Run(scene := scene_of(FIRST_SEED + counts["scenes"], parts), plugged_in(scene, folder))
        run.serve()
        counts += Counter(scenes=1, steps=run.steps, preempted=run.preempted)
        for name in COUNTED:
            counts[name] += int(run.plugin.metrics.counts[name])
        deviations += run.deviations
    return counts, deviations


def lines(steps: int) -> Iterator[str]:
    yield "| with | scenes | steps | preempted | steps not as decided | tokens | hits | fallback |"
    yield "|---|---|---|---|---|---|---|---|"
    with tempfile.TemporaryDirectory() as folder:
        for feature in ("", *FEATURES):
            counts, _ = of_feature(DEFAULTS | ({feature} if feature else set()), steps, Path(folder))
            yield (
                f"| {feature or 'none of them'} | {counts['scenes']} | {counts['steps']:,} | {counts['preempted']} | "
                f"{counts['deviating_steps']} | {counts['deviating_tokens']} | {counts['deviating_hits']} | "
                f"{counts['fallback_steps']} |"
            )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=1000, help="of each feature, at least (default: %(default)s)")
    given = parser.parse_args(arguments)
    registry.load()
    print(f"vLLM {installed_version()}\n")
    for line in lines(given.steps):
        print(line, flush=True)


if __name__ == "__main__":
    main()
