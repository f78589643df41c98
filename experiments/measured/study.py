"""Measured runs under several assumptions: the headline, and each term of it changed alone."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from experiments.measured.known_terms import CPU_BY_REQUEST, FRONT_END, SYNCHRONOUS, default_terms, step_terms
from experiments.measured.profiles import LONG_BY_VLLM, ROOFLINE, profile_of
from servegym.evaluation.measured import figures
from servegym.evaluation.measured.engine_terms import EngineTerms
from servegym.evaluation.measured.figures import HEADLINE
from servegym.evaluation.measured.runs import Run
from servegym.evaluation.measured.serving import served, with_terms

GOALS = {"e2e": 6.0, "itl": 6.0, "ttft": 15.0}  # median absolute errors of means over runs, percent


@dataclass(frozen=True)
class Case:
    """One set of assumptions. terms: of a run's engine. by: what its profile rests on instead of the tables.

    what: for readers. engine: what is changed of a run's engines. applies: to which runs.
    """

    name: str
    what: str
    terms: Callable[[Run], EngineTerms]
    by: str | None = None
    caching: bool = True
    engine: Callable[[Run], Run] = lambda run: run
    applies: Callable[[Run], bool] = lambda run: True


def of_version(run: Run) -> EngineTerms:
    """What the engine's version has by default, and the client's side where there is one."""
    return default_terms(run.engine_version)


def with_front_end(run: Run) -> EngineTerms:
    terms = of_version(run)
    return EngineTerms(
        "with front end", f"{terms.source}; {FRONT_END.source}", terms.step_cpu_s, terms.asynchronous,
        FRONT_END.before_s, FRONT_END.after_s, FRONT_END.after_s_per_token, terms.step_cpu_per_request_s,
    )  # fmt: skip


CASES = (
    Case(HEADLINE, "tables, prefix caching, asynchronous scheduling as the version has it; no front end", of_version),
    Case("front end", "the source's constants of HTTP added", with_front_end, applies=lambda run: run.over_http),
    Case(
        "synchronous",
        "0.9 ms of CPU time a step, no step ahead",
        lambda run: SYNCHRONOUS,
        applies=lambda run: not run.asynchronous,
    ),
    Case(
        "CPU by request",
        "synchronous, and 50 us for each request of a batch",
        lambda run: CPU_BY_REQUEST,
        applies=lambda run: not run.asynchronous,
    ),
    Case(
        "ranks apart",
        "data-parallel ranks that do not wait for each other",
        of_version,
        engine=lambda run: dataclasses.replace(run, lockstep=1),
        applies=lambda run: run.lockstep > 1,
    ),
    Case("no caching", "prefix caching off", of_version, caching=False),
    Case("roofline", "the GPU's data sheet instead of tables", of_version, by=ROOFLINE),
    Case(
        "vLLM's all-reduce",
        "messages from 8 MiB by vLLM's table of RTX PRO 6000s, not NCCL's",
        of_version,
        by=LONG_BY_VLLM,
        applies=lambda run: run.gpu.startswith("RTX-PRO") and run.tensor_parallel * run.engines > 1,
    ),
)


def study(runs: Iterable[Run], folder: Path, cases: Iterable[Case] = CASES) -> Iterator[tuple[Run, Case, pd.DataFrame]]:
    """(run, case, simulated requests), run by run. Cases that differ in the client's side only share a simulation."""
    cases = tuple(cases)
    for run in runs:
        done: dict[object, pd.DataFrame] = {}
        for case in cases:
            if case.applies(run):
                terms = case.terms(run)
                engine = case.engine(run)
                key = (case.by, step_terms(terms), case.caching, engine.lockstep)
                if key not in done:
                    done[key] = served(engine, profile_of(run, folder, case.by), terms, case.caching)
                yield run, case, with_terms(done[key], terms)


def errors_of(served: Iterable[tuple[Run, Case, pd.DataFrame]]) -> pd.DataFrame:
    """The errors of a study, as `figures.errors_of` has them."""
    return figures.errors_of((run, case.name, requests) for run, case, requests in served)
