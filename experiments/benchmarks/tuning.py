"""Tuning: trials a minute of the default study, sampler, journal and all, on every core there is."""

import tempfile
import time
from pathlib import Path

from experiments.benchmarks.figures import Figure
from experiments.benchmarks.scenarios import Sizes
from servegym.evaluation.running import ThreadRunner, cores
from servegym.tuners.search.storage import open_storage
from servegym.tuners.studies.reading import DEFAULT, load_tuning
from servegym.tuners.studies.search import Search

AT_LEAST_PER_MINUTE = 20.0  # 200 trials in ten minutes
STARTUP = 12  # trials before the clock starts: the sampler's model is in use by then


def measure(sizes: Sizes) -> list[Figure]:
    """Trials 12 and on; making the panel's requests and compiling come before."""
    timed = 4 * sizes.repetitions
    config = load_tuning(DEFAULT).replaced(trials=STARTUP + timed)
    search = Search(config, next(iter(config.studies)))
    search.instances.compile(search.policies)
    begins_s: list[float] = []

    def progress(what: str, done: int, trials: int) -> None:
        if done >= STARTUP:
            begins_s.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        trials = search.run_trials(open_storage(None, Path(folder)), ThreadRunner(cores()), progress)
    assert len(trials) == config.trials
    per_minute = 60 * timed / (begins_s[-1] - begins_s[0])
    runs = len(search.instances)
    return [
        Figure(
            "tuning_trials_per_min",
            per_minute,
            f"trials of the default tuning ({runs} runs of {config.panel.requests} requests on "
            f"{config.panel.spec.fleet.total} engines each), on all cores",
            at_least=AT_LEAST_PER_MINUTE,
        )
    ]
