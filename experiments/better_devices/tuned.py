"""The published tuning of ProServe on four A100s: what was tuned there held against the defaults on other devices, and
the tuning itself done again on one of them."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from servegym.errors import ExperimentError
from servegym.evaluation.panels.evaluation import Evaluation, run_evaluation
from servegym.evaluation.panels.sets import JOINED, SET
from servegym.evaluation.running import ThreadRunner
from servegym.tuners.studies.config import TuningConfig
from servegym.tuners.studies.reading import load_tuning
from servegym.tuners.studies.results import StudyResults
from servegym.tuners.studies.tuning import run_tuning

TUNING, PAGE = "proserve-a100", "tuning-proserve-a100.md"
STUDIES = ("engine", "router", "joint")  # of ProServe itself
DEFAULTS = "scheduler slide-batching + router gorouting"
OTHERS = (
    "scheduler slide-batching + router min-load",
    "scheduler expected-gain + router gorouting",
    "scheduler expected-gain + router min-load",
)
WINNER = re.compile(r"^### (?P<study>\S+)\n\nWinner: (?P<scheduler>[^`]+`[^`]+`), (?P<router>[^`]+`[^`]+`)\.", re.M)


def published(page: Path) -> dict[str, str]:
    """The winner of each of ProServe's studies on the page of the tuning, as a set of policies. Raises ExperimentError
    where the page does not have one."""
    text = page.read_text(encoding="utf-8")
    found = {
        one["study"]: JOINED.join(one[role].replace("`", "") for role in ("scheduler", "router"))
        for one in WINNER.finditer(text)
    }
    missing = [study for study in STUDIES if study not in found]
    if missing:
        raise ExperimentError(f"{page} names no winner of {', '.join(missing)}; it should be the page of {TUNING}")
    return {study: found[study] for study in STUDIES}


def moved(device: str) -> TuningConfig:
    """ProServe's studies of the tuning on another device: as many trials, the same traces, loads and seeds. Without
    slices, which say how far a parameter may move and have no say in which wins."""
    config = load_tuning(TUNING)
    panels = {name: getattr(config, name).replaced({"device": device}) for name in ("panel", "validation", "test")}
    studies = {name: config.studies[name] for name in STUDIES}
    return dataclasses.replace(config, name=f"{TUNING}-moved", studies=studies, slices=0, **panels)


def texts(page: Path) -> tuple[str, ...]:
    """The defaults, what was published, and others with nothing tuned, as an evaluation takes them."""
    return DEFAULTS, *published(page).values(), *OTHERS


def evaluation(device: str, page: Path) -> Evaluation:
    """The policies judged on the test of the tuning; seeds and traces are those of its page."""
    return Evaluation(moved(device).test, texts(page), SET)


def evaluate(device: str, page: Path, folder: Path) -> pd.DataFrame:
    """A row a run; those that are kept in the folder are not run again."""
    return run_evaluation(evaluation(device, page), folder)


def tune(device: str, folder: Path) -> Iterator[StudyResults]:
    """Each study's results as it is done; what is kept in the folder is not done again."""
    return run_tuning(moved(device), folder, ThreadRunner(1))
