"""Each feature of vLLM by itself, at vLLM's defaults: how many steps were not as the policy had decided, and how?

Runs where vLLM is installed, for parity_counts.py. The scenes are those of the fuzz with prefix caching, asynchronous
scheduling and chunked prefill, and one feature; nothing but the feature can be why vLLM does something else. What the
fuzz checks is checked.
"""

from collections import Counter
from pathlib import Path

from experiments.engines.fuzz_run import Run, plugged_in, scene_of

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
