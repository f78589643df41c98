"""Measured closed loops simulated under several assumptions: the headline, and each term of it changed alone."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from experiments.measured.closed_loops import Loop
from experiments.measured.closed_settings import MODELS, SHORTEST_SHARE
from experiments.measured.known_terms import ASYNCHRONOUS, FRONT_END, default_terms, step_terms
from experiments.measured.profiles import ROOFLINE, composed_profile, model_named
from servegym.baselines.registry import scheduler
from servegym.evaluation.measured.engine_terms import EngineTerms
from servegym.evaluation.measured.figures import HEADLINE
from servegym.evaluation.measured.serving import VLLM, with_terms
from servegym.latency_models.building.huggingface import Model
from servegym.latency_models.profile import Profile
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.simulation import Simulation

GOALS = {"tpot": 12.0, "ttft": 30.0}  # median absolute error, percent; stated before anything was simulated
TAU_GOAL = 0.9  # mean of Kendall's tau over groups of three and more configurations, by each of ranking.ORDERED_BY
METRICS = tuple(GOALS)
DISTINCT_PROMPTS = 100
SKEWS = (1.01, 1.2)  # skews in the tables of experts, beside even routing
# Cases added after the headline's errors were seen; the headline itself was not changed.
AFTERWARDS = ("16-bit keys", "spread", "100 prompts", "uneven lengths")


def terms_of(loop: Loop) -> EngineTerms:
    """What is stated of the engine, else what its version has by default."""
    return ASYNCHRONOUS if loop.asynchronous else default_terms(loop.engine_version)


def with_front_end(loop: Loop) -> EngineTerms:
    terms = terms_of(loop)  # the constants are fitted to other runs than these
    return dataclasses.replace(FRONT_END, step_cpu_s=terms.step_cpu_s, asynchronous=terms.asynchronous)


def unchanged(loop: Loop) -> Loop:
    return loop


@dataclass(frozen=True)
class Case:
    """One set of assumptions. engine: what is changed of a point's engine. by: what its profile rests on.

    median: of requests, instead of their mean. warm: each client's first request is left out. unknown: whether nobody
    has stated that it is not so, so that it belongs to the range of a point. applies: to which points.
    """

    name: str
    what: str
    terms: Callable[[Loop], EngineTerms] = terms_of
    engine: Callable[[Loop], Loop] = unchanged
    by: str | None = None
    median: bool = False
    warm: bool = False
    unknown: bool = True
    applies: Callable[[Loop], bool] = lambda loop: True


CASES = (
    Case(HEADLINE, "tables; the engine as stated, else vLLM's defaults; means; no front end"),
    Case("medians", "medians over requests instead of means", median=True),
    Case("warm", "without the first request of each client, so without the burst at the start", warm=True),
    Case("front end", "constants of HTTP from other runs added", terms=with_front_end),
    Case(
        "asynchronous",
        "asynchronous scheduling, where it is not stated",
        terms=lambda loop: ASYNCHRONOUS,
        applies=lambda loop: not loop.asynchronous,
    ),
    Case(
        "2048 a batch",
        "max_num_batched_tokens 2048, where it is not stated",
        engine=lambda loop: dataclasses.replace(loop, batch_tokens=2048),
        applies=lambda loop: loop.source == "NVIDIA",
    ),
    Case(
        "8-bit weights",
        "where it is not stated",
        engine=lambda loop: dataclasses.replace(loop, precision="fp8"),
        applies=lambda loop: loop.precision == "bf16",
    ),
    Case(
        "8-bit keys",
        "keys and values in 8 bits, where it is not stated and weights are",
        engine=lambda loop: dataclasses.replace(loop, kv_precision="fp8"),
        applies=lambda loop: loop.source == "NVIDIA" and loop.precision != "bf16",
    ),
    Case(
        "16-bit keys",
        "where the scripts say 8",
        engine=lambda loop: dataclasses.replace(loop, kv_precision="bf16"),
        applies=lambda loop: loop.kv_precision == "fp8",
    ),
    Case(
        "spread",
        "9.3 ms on average from a client to the queue, exponential, in the loop: clients fall out of step",
        engine=lambda loop: dataclasses.replace(loop, apart_s=FRONT_END.before_s),
    ),
    Case(
        "100 prompts",
        "sent in turn, prefix caching on (vLLM's default), where nothing is stated",
        engine=lambda loop: dataclasses.replace(loop, prompts=DISTINCT_PROMPTS),
        applies=lambda loop: loop.source == "NVIDIA",
    ),
    Case(
        "uneven lengths",
        "uniform from 80 % of isl and osl, as InferenceX has them, where nothing is stated",
        engine=lambda loop: dataclasses.replace(loop, shortest_share=SHORTEST_SHARE),
        applies=lambda loop: loop.source == "NVIDIA",
    ),
    Case(
        "skew 1.01",
        "tokens choose experts by a power law, as the tables have it, not evenly",
        engine=lambda loop: dataclasses.replace(loop, skew=SKEWS[0]),
        applies=lambda loop: loop.experts,
    ),
    Case(
        "skew 1.2",
        "by a steeper one",
        engine=lambda loop: dataclasses.replace(loop, skew=SKEWS[1]),
        applies=lambda loop: loop.experts,
    ),
    Case(
        "experts whole",
        "spread over the GPUs whole, where they are said to be cut",
        engine=lambda loop: dataclasses.replace(loop, expert_parallel=loop.tensor_parallel),
        applies=lambda loop: loop.experts and loop.expert_parallel < loop.tensor_parallel,
    ),
    Case("roofline", "the GPU's data sheet instead of tables", by=ROOFLINE, unknown=False),
)


def model_of_loop(loop: Loop, folder: Path) -> Model:
    """By models.csv, or by its config where that has none."""
    from servegym.latency_models.building.huggingface import model_of

    served = MODELS[loop.model]
    if served.config is None:
        return model_named(served.listed, folder, loop.precision, loop.kv_precision)
    return model_of(served.config, loop.model, loop.precision, loop.model, loop.kv_precision)


def profile_of(loop: Loop, folder: Path, by: str | None = None) -> Profile:
    model = model_of_loop(loop, folder)
    return composed_profile(loop.gpu, model, loop.tensor_parallel, by, loop.expert_parallel, loop.skew)


def served(loop: Loop, profile: Profile, terms: EngineTerms) -> pd.DataFrame:
    """The requests of a closed loop in the order in which they are sent; of the terms, with those of steps alone."""
    requests = Simulation(scenario_of(loop, profile, terms)).run().requests
    if loop.apart_s:
        requests = requests.sort_values("request")
        later_s = loop.later_s()
        requests = requests.assign(ttft_s=requests["ttft_s"] + later_s, ttlt_s=requests["ttlt_s"] + later_s)
    return requests


def scenario_of(loop: Loop, profile: Profile, terms: EngineTerms, name: str = VLLM) -> Scenario:
    """The closed loop before one engine. name: of its scheduler."""
    deployment = Deployment(
        terms.device(profile.device),
        profile.estimator,
        profile.kv.total_blocks,
        1,
        profile.kv.block_tokens,
        name=loop.name,
        prefix_caching=loop.prompts > 0,
        async_scheduling=terms.asynchronous,
    )
    policy = scheduler(name).with_settings(max_num_batched_tokens=loop.batch_tokens, max_num_seqs=loop.sequences)
    clients = None if loop.apart_s else loop.clients  # apart, requests follow each other
    return Scenario(loop.workload(), deployment, policy, clients=clients)


def figures_of(requests: pd.DataFrame, loop: Loop, case: Case) -> dict[str, float]:
    """ttft and tpot in seconds, over requests."""
    seen = with_terms(requests, case.terms(loop))[["ttft_s", "itl_s"]].iloc[loop.clients if case.warm else 0 :]
    seen = seen.median() if case.median else seen.mean()
    return {"ttft": float(seen["ttft_s"]), "tpot": float(seen["itl_s"])}


def study(loops: Iterable[Loop], folder: Path, cases: Iterable[Case] = CASES) -> pd.DataFrame:
    """One row a point and case: what the point is, and TTFT and TPOT, measured and simulated, s, with signed errors.

    Cases that differ in what is counted only share a simulation.
    """
    cases, rows = tuple(cases), []
    for loop in loops:

        @functools.cache
        def simulated(engine: Loop, by: str | None, of_steps: EngineTerms) -> pd.DataFrame:
            return served(engine, profile_of(engine, folder, by), of_steps)

        for case in cases:
            if not case.applies(loop):
                continue
            engine = case.engine(loop)
            found = figures_of(simulated(engine, case.by, step_terms(case.terms(engine))), engine, case)
            row = {
                "case": case.name, "point": loop.name, "series": loop.series, "source": loop.source, "gpu": loop.gpu,
                "model": loop.model, "tp": loop.tensor_parallel, "precision": loop.precision,
                "experts": loop.experts,
                "configuration": loop.configuration, "isl": loop.isl, "osl": loop.osl, "clients": loop.clients,
            }  # fmt: skip
            for metric, measured in (("ttft", loop.ttft_s), ("tpot", loop.tpot_s)):
                error = 100 * (found[metric] / measured - 1)
                row |= {f"{metric}_s": measured, f"simulated_{metric}_s": found[metric], f"{metric}_error": error}
            rows.append(row)
    return pd.DataFrame(rows)


def medians(errors: pd.DataFrame) -> dict[str, float]:
    """Median absolute error of each metric over points, percent."""
    return {metric: float(errors[f"{metric}_error"].abs().median()) for metric in METRICS}
