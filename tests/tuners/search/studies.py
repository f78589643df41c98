"""A study that costs nothing, in this process and in others that can be killed.

As a program it is one worker: `python studies.py URL|- FOLDER NAME TRIALS SECONDS SAMPLER`. Each start and end of an
evaluation is a line of FOLDER/evaluations: "start INDEX NUMBER WORKER X Y" or "end ...".
"""

import functools
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna

from servegym.errors import ServegymError
from servegym.tuners.search import workers
from servegym.tuners.search.samplers import IndexedCmaEs, seed_of
from servegym.tuners.search.storage import open_storage, open_study
from servegym.tuners.search.workers import index_of, worker_of

WARM_START = {"x": 0.5, "y": 0.25}
SAMPLERS = {
    "random": lambda seed: optuna.samplers.RandomSampler(seed),
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed, n_startup_trials=4, multivariate=True),
    "cma-es": lambda seed: IndexedCmaEs(seed=seed, n_startup_trials=3, popsize=4),
    "nsga-ii": lambda seed: optuna.samplers.NSGAIISampler(seed=seed, population_size=4),
    "gp": lambda seed: optuna.samplers.GPSampler(seed=seed, n_startup_trials=3),
}


def opened(folder: Path, url: str | None = None, name: str = "toy", **settings: Any) -> optuna.Study:
    storage = open_storage(url, folder, **({"grace_s": 5} | settings))
    return open_study(storage, name, {"toy": 1}, ["maximize"], optuna.pruners.NopPruner())


def sampler_of(index: int, sampler: str = "random") -> optuna.samplers.BaseSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return SAMPLERS[sampler](seed_of(7, index))


def work(
    study: optuna.Study, objective: workers.Objective, trials: int, sampler: str = "random", **more: Any
) -> list[optuna.trial.FrozenTrial]:
    return workers.work(study, objective, trials, functools.partial(sampler_of, sampler=sampler), **more)


def bowl(trial: optuna.Trial) -> float:
    x = trial.suggest_float("x", 0, 1)
    y = trial.suggest_float("y", 0.01, 1, log=True)
    return -((x - 0.3) ** 2) - (y - 0.2) ** 2


def points(done: list[optuna.trial.FrozenTrial]) -> list[tuple[int | None, dict[str, Any], list[float]]]:
    """What a study is about: attempts, parameters and values."""
    return [(index_of(trial), trial.params, trial.values) for trial in done]


def wait_until(reached: Callable[[], bool], what: str, limit_s: float = 60.0) -> None:
    limit = time.monotonic() + limit_s
    while not reached():
        assert time.monotonic() < limit, f"no {what} in {limit_s} s"
        time.sleep(0.01)


class Workers:
    """Worker processes; those that still run are killed at the end."""

    def __init__(self, folder: Path, url: str | None, trials: int, seconds: float, sampler: str = "random") -> None:
        self.folder, self.url, self.trials, self.seconds, self.sampler = folder, url, trials, seconds, sampler
        self.processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> "Workers":
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def start(self, alone: bool = False) -> subprocess.Popen[str]:
        """alone: as on another machine, from which the others cannot be seen."""
        variables = dict(os.environ)
        if alone:
            variables["TMPDIR"] = str(self.folder / f"machine-{len(self.processes)}")
            Path(variables["TMPDIR"]).mkdir()
        words = [self.url or "-", self.folder, "toy", self.trials, self.seconds, self.sampler]
        command = [sys.executable, __file__, *map(str, words)]
        self.processes.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables))
        return self.processes[-1]

    def lines(self, kind: str) -> list[list[str]]:
        path = self.folder / "evaluations"
        text = path.read_text() if path.exists() else ""
        return [words[1:] for line in text.splitlines() if (words := line.split())[0] == kind]

    def wait_for(self, kind: str, count: int) -> None:
        wait_until(lambda: len(self.lines(kind)) >= count, f"{count} lines of {kind}")

    def wait_for_each(self) -> None:
        """Until every worker has ended a trial."""
        count = len(self.processes)
        wait_until(
            lambda: len({worker for _, _, worker, *_ in self.lines("end")}) == count, f"trials of {count} workers"
        )

    def running(self) -> list[list[str]]:
        ended = self.lines("end")
        return [words for words in self.lines("start") if words not in ended]

    def kill_one_that_runs(self) -> str:
        """Kill -9 a worker that has just begun a trial; returns the trial's index."""
        before = self.running()
        wait_until(lambda: any(words not in before for words in self.running()), "a trial that begins")
        index, _, worker, *_ = self.running()[-1]
        victim = next(process for process in self.processes if process.pid == int(worker.split("-")[-2]))
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        return index

    def join(self, limit_s: float = 60.0) -> list[tuple[int, str]]:
        """Exit statuses and standard errors of those that were not killed."""
        ends = [(process, process.communicate(timeout=limit_s)[1]) for process in self.processes]
        return [(process.returncode, errors) for process, errors in ends if process.returncode != -signal.SIGKILL]


def main(url: str, folder: str, name: str, trials: str, seconds: str, sampler: str) -> None:
    log = Path(folder) / "evaluations"

    def objective(trial: optuna.Trial) -> float:
        value = bowl(trial)
        frozen = trial.study.get_trials(deepcopy=False)[trial.number]
        line = f"{index_of(frozen)} {trial.number} {worker_of(frozen)} {trial.params['x']!r} {trial.params['y']!r}\n"
        with log.open("a") as file:
            file.write("start " + line)
        for step in range(4):
            time.sleep(float(seconds) / 4)
            trial.report(value, step)
        with log.open("a") as file:
            file.write("end " + line)
        return value

    try:
        study = opened(Path(folder), None if url == "-" else url, name)
        work(study, objective, int(trials), sampler, enqueue=[WARM_START])
    except ServegymError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main(*sys.argv[1:])
