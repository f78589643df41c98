"""A study made of numbers that are known: gamma matters and eta does not, the best gamma is 4, the default 1."""

import math

import numpy as np
import pandas as pd

from servegym.tuners.studies.config import FIGURES
from servegym.tuners.studies.results import StudyResults
from servegym.tuners.studies.tables import differences_table

PANEL = {"trace": ["azure-conv"], "device": ["a100-llama3-8b"], "load": [1.0, 1.4], "seeds": 4, "requests": 100,
         "engines": 1, "slo": "proserve", "first_seed": 0}  # fmt: skip
WINNER_GAMMA, SCHEDULED_GAMMA = 3.0, 4.0


def score(gamma: float, seed: int) -> float:
    """0.9 at gamma 4, less towards others; a seed moves all policies alike."""
    return 0.9 - 0.1 * abs(math.log(gamma / 4)) / math.log(4) + 0.001 * seed


def runs(candidate: str, gamma: float, luck: float = 0.0) -> list[dict]:
    rows = []
    for load in (1.0, 1.4):
        for seed in range(4):
            value = score(gamma, seed) + luck * (-1) ** seed
            rows.append(
                {"candidate": candidate, "policy": candidate, "trace": "azure-conv", "device": "a100-llama3-8b",
                 "load": load, "seed": seed} | dict.fromkeys(FIGURES, value)
            )  # fmt: skip
    return rows


def made(name: str = "engine", winner: float = WINNER_GAMMA, objectives: tuple[str, ...] = ("tdg",)) -> StudyResults:
    rng = np.random.default_rng(0)
    gammas = [1.0, *np.exp(rng.uniform(math.log(0.1), math.log(10), 59))]
    etas = [0.03, *np.exp(rng.uniform(math.log(0.005), math.log(0.5), 59))]
    trials = pd.DataFrame(
        [
            {"trial": number, "state": "pruned" if number % 10 == 9 else "complete"}
            | dict.fromkeys(FIGURES, score(gamma, 0) + 0.002 * rng.normal())
            | {"cost_engine_s": 10 * gamma, "instances": 8, "feasible": True, "worker": "one",
               "scheduler.gamma": gamma, "scheduler.eta": eta}
            for number, (gamma, eta) in enumerate(zip(gammas, etas, strict=True))
        ]
    )  # fmt: skip
    best = int(trials.loc[trials["state"] == "complete", "tdg_ratio"].idxmax())
    validation = pd.DataFrame([*runs("defaults", 1.0), *runs("trial 3", winner), *runs(f"trial {best}", 2.0)])
    slices = pd.DataFrame(
        [{"parameter": "scheduler.gamma", "value": value} | run
         for value in (0.1, 1.0, winner, 10.0) for run in runs("x", value)]
        + [{"parameter": "scheduler.eta", "value": value} | run
           for value in (0.005, 0.5) for run in runs("x", winner, luck=0.01)]
    ).drop(columns="candidate")  # fmt: skip
    test = pd.DataFrame([*runs("defaults", 1.0), *runs("winner", winner), *runs("schedule", SCHEDULED_GAMMA)])
    shape = {"unit": "", "log": True, "choices": "", "source": "a paper"}
    parameters = pd.DataFrame(
        [
            {"parameter": "scheduler.gamma", "variable": "gamma", "default": 1.0, "winner": winner, "low": 0.1,
             "high": 10, "at_load_1": 4.0, "at_load_1.4": 4.0} | shape,
            {"parameter": "scheduler.eta", "variable": "eta", "default": 0.03, "winner": 0.03, "low": 0.005,
             "high": 0.5, "at_load_1": 0.03, "at_load_1.4": 0.03} | shape | {"unit": "s"},
        ]
    )  # fmt: skip
    document = {
        "tuning": "made", "study": name, "description": "Hypothesis: 4 is best.",
        "winner": {"candidate": "trial 3", "is_defaults": False, "settings": {"scheduler": {"gamma": winner}},
                   "labels": {"scheduler": f"slide-batching:gamma={winner:g}"}},
        "defaults": {"policies": {"scheduler": {"name": "slide-batching", "settings": {}}}},
        "trials": {"asked_for": 60, "complete": 54, "pruned": 6, "best": best},
        "seeds": {}, "versions": {"servegym": "0"}, "importance": {"scheduler.gamma": 0.9, "scheduler.eta": 0.1},
        "config": {"objectives": list(objectives), "sampler": "tpe", "pruner": "wilcoxon", "seed": 0, "panel": PANEL,
                   "validation": PANEL | {"first_seed": 500_000}, "test": PANEL | {"first_seed": 1_000_000},
                   "studies": {name: {}}},
    }  # fmt: skip
    return StudyResults(document, trials, validation, slices, test, parameters, differences_table(test))


def write(results: StudyResults, folder) -> None:
    """As `servegym tune` leaves it."""
    import json

    folder.mkdir(parents=True, exist_ok=True)
    for name in ("trials", "validation", "slices", "test", "parameters", "differences"):
        getattr(results, name).to_csv(folder / f"{name}.csv", index=False)
    (folder / "outcome.json").write_text(json.dumps(results.document))
