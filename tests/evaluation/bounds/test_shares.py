"""Shares of the bound: of the runs of a comparison, on the command line too, and where there is none."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest

from servegym.baselines.registry import scaler, scheduler
from servegym.errors import ExperimentError
from servegym.evaluation.bounds.cache import cached_bound
from servegym.evaluation.bounds.clairvoyant import Bound, check_scenario, tdg_upper_bound
from servegym.evaluation.bounds.shares import MOST_REQUESTS, find_bounds, why_no_bounds, with_shares
from servegym.evaluation.compared import COMPARED
from servegym.evaluation.comparison import Comparison
from servegym.latency_models.profile import load_profile
from servegym.scenarios.fleets import deployment_of
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.prefixes import PrefixStore, Prompts
from tests.cli.conftest import servegym  # noqa: F401 - a fixture

PROFILE = load_profile("a100-llama3-8b")
SMALL = Comparison(COMPARED.replaced(scheduler=("edf", "vllm-fcfs"), load=(0.7, 3.0), requests=30), 2)
ARGUMENTS = ("compare", "--scheduler", "edf", "--scheduler", "vllm-fcfs", "--load", "0.7", "--load", "3",
             "--seeds", "2", "--requests", "30", "--bound")  # fmt: skip


def of_spec(**words) -> Comparison:
    return dataclasses.replace(SMALL, spec=SMALL.spec.replaced(**words))


def scene(**more) -> Scenario:
    workload = Workload.from_columns({"arrival_s": [0.0, 1.0], "prompt_tokens": 40, "output_tokens": 3})
    return Scenario(workload, PROFILE.deployment(2), scheduler("edf"), **more)


def with_store(scenario: Scenario, prefixes: Prompts | None) -> Scenario:
    deployment = dataclasses.replace(scenario.deployment, prefix_store=PrefixStore(1000))
    workload = dataclasses.replace(scenario.workload, prefixes=prefixes)
    return dataclasses.replace(scenario, workload=workload, deployment=deployment)


def test_no_bound_where_prompts_are_taken_from_stores(tmp_path):
    """A prompt that costs less than the bound charges could gain more than it."""
    alike = Prompts(16, np.array([0, 2, 4]), np.array([0, 1, 0, 1]))
    for find in (check_scenario, tdg_upper_bound, lambda scenario: cached_bound(scenario, tmp_path)):
        with pytest.raises(ExperimentError, match="prefix stores"):
            find(with_store(scene(), alike))
    assert not list(tmp_path.iterdir())
    check_scenario(with_store(scene(), None))  # a store, and nothing to keep there


def test_no_bound_where_requests_share_memory():
    alike = Prompts(16, np.array([0, 2, 4]), np.array([0, 1, 0, 1]))
    shared = dataclasses.replace(scene(), workload=dataclasses.replace(scene().workload, prefixes=alike))
    with pytest.raises(ExperimentError, match="--prefix-caching off"):
        check_scenario(shared)
    check_scenario(dataclasses.replace(shared, deployment=dataclasses.replace(shared.deployment, prefix_caching=False)))


def test_no_bound_where_engines_come_and_go():
    with pytest.raises(ExperimentError, match="fail, return"):
        check_scenario(scene(incidents=(Incident(1.0, 0, "fail"),)))
    static = scaler("static")
    check_scenario(scene(scaler=static))
    halves = deployment_of(ServingSpec().replaced(prefill=1, decode=1))
    check_scenario(dataclasses.replace(scene(), deployment=halves))
    with pytest.raises(ExperimentError, match="move decode engines"):
        check_scenario(dataclasses.replace(scene(scaler=static), deployment=halves))


@pytest.mark.slow
def test_every_workload_has_its_bound(tmp_path):
    told = []
    bounds = find_bounds(SMALL, tmp_path, lambda done, in_all: told.append((done, in_all)))
    assert set(bounds) == {(load, seed) for load in (0.7, 3.0) for seed in (0, 1)}
    assert told == [(done, 4) for done in range(5)]
    assert len(list(tmp_path.iterdir())) == 4
    for (load, seed), bound in bounds.items():
        alone = Scenario(SMALL.workloads[load, seed], SMALL.deployment, scheduler("sjf"))
        assert tdg_upper_bound(alone).gain == pytest.approx(bound.gain, rel=1e-6)


def test_shares_go_by_load_and_seed_and_are_unknown_where_prefill_engines_went_on_with_decodes():
    bounds = {(load, seed): Bound(10 * load + seed, 99.0, 1.0, 1, 1, 1, 0.0) for load in (1.0, 2.0) for seed in (0, 1)}
    rows = [(load, seed, 5.0, int(seed)) for load in (2.0, 1.0) for seed in (1, 0)]
    cells = pd.DataFrame(rows, columns=["load", "seed", "gain", "reroutes"])
    shares = with_shares(SMALL, cells, bounds)["share_of_bound"].tolist()
    assert shares == [5 / 21, 5 / 20, 5 / 11, 5 / 10]
    halves = of_spec(prefill=1, decode=1)
    shares = with_shares(halves, cells, bounds)["share_of_bound"]
    assert shares.isna().tolist() == [True, False, True, False]


def test_why_there_are_no_bounds():
    assert why_no_bounds(SMALL) is None
    assert f"at most {MOST_REQUESTS}" in why_no_bounds(of_spec(requests=MOST_REQUESTS + 1))
    failing = of_spec(engines=2, incidents=("fail:0@1",))
    assert "fail, return" in why_no_bounds(failing)
    with pytest.raises(ExperimentError, match="fail, return"):
        find_bounds(failing, "nowhere")


def test_compare_shows_the_share(servegym, tmp_path):  # noqa: F811
    done = servegym(*ARGUMENTS, "--json", "-", "--report", "r.html")
    assert done.status == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["no_bound"] is None
    assert "% of bound" in done.stderr and "<th>% of bound</th>" in (tmp_path / "r.html").read_text()
    cells = pd.read_parquet(next((tmp_path / "results").glob("compare-*/cells.parquet")))
    bounds = find_bounds(SMALL, tmp_path / "results/bounds")
    assert len(list((tmp_path / "results/bounds").iterdir())) == 4
    for row in cells.itertuples():
        assert row.share_of_bound == pytest.approx(row.gain / bounds[row.load, row.seed].gain, rel=1e-6)
        assert row.share_of_bound <= 1
    assert cells["share_of_bound"].min() < 0.99
    for row in document["summary"]:
        here = cells[(cells["load"] == row["load"]) & (cells["scheduler"] == row["scheduler"])]
        assert row["share_of_bound"] == pytest.approx(here["share_of_bound"].mean())
        assert row["share_of_bound_ci_low"] <= row["share_of_bound"] <= row["share_of_bound_ci_high"]


@pytest.mark.slow
def test_compare_says_why_there_is_none_and_goes_on(servegym):  # noqa: F811
    done = servegym(*ARGUMENTS, "--engines", "2", "--incident", "fail:1@1", "--json", "-")
    assert done.status == 0
    document = json.loads(done.stdout)
    assert "fail, return" in document["no_bound"] and len(document["summary"]) == 4
    assert "share_of_bound" not in document["summary"][0]
    assert "No share of the bound: engines fail, return" in done.stderr and "% of bound" not in done.stderr


@pytest.mark.slow
def test_compare_says_what_the_solver_said(servegym, monkeypatch):  # noqa: F811
    def failing(scenario, directory):
        raise ExperimentError("no bound: HiGHS says 'Time limit reached'")

    monkeypatch.setattr("servegym.evaluation.bounds.shares.cached_bound", failing)
    done = servegym(*ARGUMENTS, "--json", "-")
    assert done.status == 0
    assert json.loads(done.stdout)["no_bound"] == "no bound: HiGHS says 'Time limit reached'"
    assert "No share of the bound: no bound: HiGHS says" in done.stderr


@pytest.mark.slow
def test_without_bound_nothing_is_said_of_it(servegym):  # noqa: F811
    done = servegym(*ARGUMENTS[:-1])
    assert done.status == 0 and "bound" not in done.stdout + done.stderr


def test_no_bound_where_arrivals_depend_on_completions(tmp_path):
    """What is served sooner lets others come sooner: a bound for one order of arrivals says nothing of others."""
    plain = scene()
    n = len(plain.workload)
    turns = SessionDependencies(np.r_[-1, np.zeros(n - 1, "i8")], np.zeros(n))
    columns = {field: plain.workload.table[field] for field in plain.workload.table.dtype.names}
    for change in ({"clients": 1}, {"max_concurrency": 1}, {"workload": Workload.from_columns(columns, turns=turns)}):
        for find in (check_scenario, tdg_upper_bound, lambda scenario: cached_bound(scenario, tmp_path)):
            with pytest.raises(ExperimentError, match="arrivals depend on completions") as error:
                find(dataclasses.replace(plain, **change))
            assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
